"""What a starting run does with its plan, on a card that the test makes up."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from glmforge.config import RunConfig, config_from_mapping
from glmforge.data.selection import RowFacts
from glmforge.distributed.collectives import Ranks
from glmforge.distributed.env import World
from glmforge.errors import TrainingError
from glmforge.models.glm.configuration import ChatGLM2Config
from glmforge.plan.report import Plan
from glmforge.plan.request import Card
from glmforge.train import memory_plan
from glmforge.train.memory_plan import facts_of, node_sayer, note_peak, plan_start

RANKS = Ranks(world=World(), device=torch.device("cpu"))


def data() -> Any:
    lengths = np.array([100, 50, 200], dtype=np.int64)
    facts = RowFacts(
        lengths=lengths,
        trained_counts=lengths // 2,
        copies=np.arange(3, dtype=np.uint64),
        starts=np.array([True, True, False]),
    )
    return SimpleNamespace(
        train=SimpleNamespace(facts=facts), train_rows=[(0, 1), (2,)], packed=True
    )


def config() -> RunConfig:
    return config_from_mapping(
        {
            "model": {"model_name_or_path": "chatglm3-6b"},
            "data": {"train": "train.jsonl"},
            "training": {"output_dir": "run"},
        }
    )


def start(said: list[str], *, ignore_plan: bool = False) -> Plan:
    planned: Any = SimpleNamespace(
        precision="bf16", model=SimpleNamespace(config=ChatGLM2Config()), data=data()
    )
    return plan_start(config(), planned, RANKS, said.append, ignore_plan=ignore_plan)


def test_the_data_is_counted_from_what_the_run_keeps_of_it() -> None:
    """Dialogues are records, not the rows that a long one is split into."""
    found = facts_of(data())
    assert (found.dialogues, found.rows, found.tokens) == (2, 2, 350)
    assert (found.trained_tokens, found.longest, found.estimated) == (175, 200, False)


def test_what_does_not_fit_this_card_is_refused_unless_the_user_insists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Five lines first, then the reasons and the option."""
    card = Card(name="small", capability=(8, 0))
    monkeypatch.setattr(memory_plan, "_card", lambda _: (card, 8.0, 7.5))
    said: list[str] = []
    with pytest.raises(TrainingError, match="--ignore-plan"):
        start(said)
    assert len(said) == 5
    said.clear()
    start(said, ignore_plan=True)
    assert any("does not fit" in line for line in said[5:])


def test_on_the_cpu_nothing_is_refused() -> None:
    """Memory there is the machine's: a line says it."""
    said: list[str] = []
    found = start(said)
    assert len(said) == 5
    assert "no card" in said[1]
    assert found.machine.cards_per_host == 1


def test_every_node_prints_the_plan_once_and_a_run_on_one_node_as_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By its first rank, wherever that is among all; the others are silent."""
    said: list[str] = []
    assert node_sayer(RANKS, said.append, [0, 1, 2]) == said.append
    for rank, local in enumerate(two_nodes := [0, 1, 0, 1]):
        world = World(rank=rank, local_rank=local, world_size=4, local_world_size=2)
        ranks = Ranks(world=world, device=torch.device("cpu"))
        node_sayer(ranks, said.append, two_nodes)("plan: five lines")
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("node 0 of 2 (")
    assert second.startswith("node 1 of 2 (")
    assert first.endswith("): plan: five lines")
    assert not said


def test_the_peak_is_said_once_after_the_second_step_of_each_start() -> None:
    """A resumed run goes on from step 40; a run of one step is measured at its end."""
    said: list[str] = []
    plan = start([])
    session: Any = SimpleNamespace(
        memory_plan=plan,
        begun_at=40,
        finished=False,
        ranks=RANKS,
        recorder=SimpleNamespace(say=said.append),
    )
    for step in (41, 42, 43):
        note_peak(session, _record(step))
    assert len(said) == 1
    assert "3.00 GiB resident" in said[0]
    session.finished = True
    note_peak(session, _record(41))
    assert len(said) == 2


def _record(step: int) -> Any:
    return SimpleNamespace(step=step, peak_gib=3.0)
