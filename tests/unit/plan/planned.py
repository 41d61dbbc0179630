"""A run of 10,000 dialogues and its plan on some machine; shared by the tests of this folder."""

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
