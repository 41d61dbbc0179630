"""What a plan offers is true once it is taken: the same memory, and nothing else changed."""

import dataclasses
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from planned import FACTS, config, plan

from glmforge.config import RunConfig
from glmforge.models.glm.configuration import ChatGLM2Config
from glmforge.plan.choice import settings_of
from glmforge.plan.report import Plan
from glmforge.plan.text import plan_lines

NINE = ChatGLM2Config(num_layers=40, padded_vocab_size=151552, rope_ratio=500.0)
OFF = {"device": "none"}
CPU = {"device": "cpu"}
UNPINNED = {"device": "cpu", "pin_memory": False}

RUNS: list[tuple[str, dict[str, Any] | None, int, float, float]] = [
    ("full", {"zero_optimization": {"stage": 2}}, 8, 12, 320),
    ("full", {"zero_optimization": {"stage": 2}}, 8, 24, 400),
    ("full", None, 1, 80, 512),
    ("full", {"zero_optimization": {"stage": 2, "offload_optimizer": UNPINNED}}, 4, 24, 512),
    ("full", {"zero_optimization": {"stage": 2, "offload_optimizer": OFF}}, 4, 40, 512),
    ("full", {"zero_optimization": {"stage": 3, "offload_param": UNPINNED}}, 4, 24, 512),
    (
        "full",
        {
            "train_batch_size": 16,
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 2,
            "zero_optimization": {
                "stage": 3,
                "offload_optimizer": {"device": "cpu", "ratio": 0.5},
                "stage3_max_live_parameters": 3e8,
            },
        },
        4,
        141,
        1000,
    ),
    ("full", {"zero_optimization": {"stage": "auto", "offload_optimizer": "auto"}}, 1, 80, 512),
    ("full", {"zero_optimization": {"offload_optimizer": {"device": "auto"}}}, 1, 80, 512),
    ("freeze", {"zero_optimization": {"stage": 3, "offload_param": CPU}}, 2, 24, 128),
    ("lora", {"zero_optimization": {"stage": 3}}, 4, 12, 128),
    ("lora", {"zero_optimization": {"stage": 1}}, 2, 80, 256),
]


@pytest.mark.parametrize(("method", "engine", "cards", "gib", "host"), RUNS)
def test_what_is_listed_as_fitting_fits_when_it_is_taken(
    method: str, engine: dict[str, Any] | None, cards: int, gib: float, host: float
) -> None:
    """Applied as settings and accounted again: the same card, the same host, and it fits."""
    sections = {} if engine is None else {"deepspeed": engine}
    written = (f"method={method}", "training.per_device_train_batch_size=2")
    written += () if engine and "train_batch_size" in engine else (ACCUMULATION,)

    def planned(*settings: str) -> Plan:
        run = config(*written, *settings, **sections)
        return plan(run, cards, gib, host=host, model=NINE)

    found = planned()
    assert found.contradictions == ()
    every = found.advice.ranked
    assert every
    for one in every[:6] + every[6::40] + every[-1:]:
        taken = planned(*shlex.split(" ".join(settings_of(one.workload, found.user_map))))
        assert taken.contradictions == ()
        mine, theirs = one.account, taken.written.account
        assert (mine.needed_gib, mine.host_gib) == (theirs.needed_gib, theirs.host_gib)
        assert taken.fits


ACCUMULATION = "training.gradient_accumulation_steps=2"
WAYS = {
    "ZeRO-2 with the optimizer on the host": {"stage": 2, "offload_optimizer": CPU},
    "ZeRO-3": {"stage": 3},
    "ZeRO-3 with the optimizer on the host": {"stage": 3, "offload_optimizer": CPU},
    "ZeRO-3 with weights and optimizer on the host": {
        "stage": 3,
        "offload_optimizer": CPU,
        "offload_param": CPU,
    },
}


@pytest.mark.parametrize(("cards", "gib", "host"), [(8, 12, 256), (8, 12, 300), (1, 40, 256)])
def test_a_way_out_needs_what_it_says(cards: int, gib: float, host: float) -> None:
    """Card, host and verdict of each sentence are those of the run that takes it."""
    rows = ("method=full", "training.per_device_train_batch_size=1", ACCUMULATION)
    first = plan(config(*rows), cards, gib, host=host, model=NINE)
    seen = 0
    for way in first.ways_out:
        zero = WAYS.get(way.partition(", micro-batch 1")[0])
        if zero is None:
            continue
        run = config(*rows, deepspeed={"zero_optimization": zero})
        taken = plan(run, cards, gib, host=host, model=NINE)
        assert taken.fits == (": fits, about" in way)
        needed = re.search(r"([\d.]+) GiB a card(?: and (\d+) GiB of host)?", way)
        assert needed is not None
        found = taken.written.account
        assert float(needed[1]) == pytest.approx(found.needed_gib, abs=0.051)
        if needed[2]:
            assert float(needed[2]) == pytest.approx(found.host_gib * cards, abs=0.51)
        seen += 1
    assert seen >= 3


def choice(run: RunConfig, gib: float = 24) -> list[str]:
    lines = plan_lines(plan(run, 4, gib, model=NINE))
    (said,) = (line for line in lines if line.startswith("to take the choice: "))
    return shlex.split(said.removeprefix("to take the choice: "))


OWN = {
    "fp16": {"enabled": True, "initial_scale_power": 12},
    "gradient_clipping": 0.5,
    "train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"stage": 1, "reduce_bucket_size": 50_000_000},
}


@pytest.mark.parametrize("as_file", [True, False])
def test_taking_the_choice_keeps_what_else_the_map_says(tmp_path: Path, as_file: bool) -> None:
    """Loss scale, clipping and buckets of a file and of a map; only what is chosen changes."""
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(OWN))
    written = {"deepspeed": str(file) if as_file else OWN}
    settings = choice(config("method=full", **written))
    run = config("method=full", *settings, **written)
    assert isinstance(run.deepspeed, dict)
    same = {key: run.deepspeed[key] for key in ("fp16", "gradient_clipping")}
    assert same == {key: OWN[key] for key in same}
    zero = run.deepspeed["zero_optimization"]
    assert zero["reduce_bucket_size"] == 50_000_000
    assert zero["stage"] != 1
    assert plan(run, 4, 24, model=NINE).contradictions == ()


def test_a_choice_at_the_stage_that_is_written_says_nothing_of_deepspeed() -> None:
    """Only the batch and checkpointing change."""
    settings = choice(config(), gib=139)
    assert [one.partition("=")[0] for one in settings] == [
        "training.per_device_train_batch_size",
        "training.gradient_accumulation_steps",
        "training.gradient_checkpointing",
    ]


def test_a_faulty_map_gets_its_choice_too() -> None:
    """The faults are the plan's problems; the choice is of the rest."""
    zero = {"stage": 2, "offload_optimizer": 5, "offload_param": [1]}
    for faulty in ({"zero_optimization": zero}, {"zero_optimization": 3}, {"bf16": "yes"}):
        assert choice(config("method=full", deepspeed=faulty))


FEW = dataclasses.replace(FACTS, rows=80, dialogues=2_000)


@pytest.mark.parametrize(
    ("overrides", "sizes"),
    [
        ((), {"train_batch_size": 64}),
        ((), {"train_batch_size": 64, "gradient_accumulation_steps": 4}),
        ((), {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8}),
        (("data.packing=false",), {"train_batch_size": 64}),
    ],
)
def test_advice_about_few_steps_agrees_with_the_batch_of_the_map(
    overrides: tuple[str, ...], sizes: dict[str, int]
) -> None:
    """What it says to write can be written: more steps, and no contradiction."""
    facts = dataclasses.replace(FEW, packed=not overrides, rows=2_000 if overrides else 80)
    run = config(*overrides, deepspeed=sizes)
    found = plan(run, facts=facts)
    assert found.contradictions == ()
    (said,) = (text for text in found.warnings if "are few" in text)
    settings = re.findall(r"(?:training|deepspeed)\.\w+=\d+", said)
    assert len(settings) > 2
    taken = plan(config(*overrides, *settings, deepspeed=sizes), facts=facts)
    assert taken.contradictions == ()
    assert taken.length is not None
    assert found.length is not None
    assert taken.length.total_steps > found.length.total_steps
