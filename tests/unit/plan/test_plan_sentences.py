"""What a plan says of a run: each sentence is true of the numbers beside it."""

from typing import Any

from glmforge.config import RunConfig, config_from_mapping
from glmforge.models.glm.configuration import ChatGLM2Config
from glmforge.plan.advisor import Machine
from glmforge.plan.data_facts import DataFacts
from glmforge.plan.report import Plan, make_plan

FACTS = DataFacts(
    dialogues=10_000,
    rows=1_500,
    tokens=3_000_000,
    trained_tokens=1_200_000,
    longest=1900,
    packed=True,
)


def config(*overrides: str, **sections: Any) -> RunConfig:
    values: dict[str, Any] = {
        "model": {"model_name_or_path": "chatglm3-6b"},
        "data": {"train": "train.jsonl"},
        "training": {"output_dir": "run"},
        **sections,
    }
    return config_from_mapping(values, overrides)


def plan(run: RunConfig, world_size: int = 2, gib: float = 139.8, **options: Any) -> Plan:
    model = options.pop("model", ChatGLM2Config())
    machine = Machine(card_gib=gib, cards_per_host=world_size, host_gib=options.pop("host", 512))
    facts = options.pop("facts", FACTS)
    return make_plan(run, model, machine, world_size=world_size, facts=facts, **options)


def test_a_trainers_block_of_autos_is_said_not_to_count() -> None:
    """A scheduler of the map is never dropped in silence."""
    block = {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}}
    notes = "\n".join(plan(config(deepspeed={"scheduler": block})).notes)
    assert "deepspeed.scheduler leaves every value to the program" in notes
    assert "training.lr_scheduler_type=" in notes


def saved(*overrides: str) -> tuple[str, int]:
    found = plan(config(*overrides, "training.save_steps=5000"))
    (said,) = (text for text in found.warnings if "save_steps" in text)
    return said, found.checkpoints


def test_evaluations_that_write_checkpoints_are_said_and_counted() -> None:
    """1125 steps of 3 epochs: the epochs' ends, and every 100 steps, may be the best so far."""
    assert saved() == (
        "training.save_steps is 5000, but the run ends at step 1125: only the last checkpoint is "
        "written",
        1,
    )
    said, most = saved("data.validation=v.jsonl")
    assert "at the last step, and before it only where one of 2 evaluations (epochs' ends)" in said
    assert f"at most {most} lie on the disk" in said
    assert most == 3
    said, most = saved("data.validation=v.jsonl", "training.eval_steps=100")
    assert "one of 13 evaluations (epochs' ends, eval_steps 100) is the best so far" in said
    assert most == 4
    assert saved("data.validation=v.jsonl", "training.num_train_epochs=1")[1] == 1
