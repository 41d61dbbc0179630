"""The data of a run: the config's settings reach the rows, and every rank gets the same."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glmforge.config import RunConfig, config_from_mapping
from glmforge.data import train_vocabulary
from glmforge.data.selection import hash_of
from glmforge.distributed.collectives import Ranks
from glmforge.distributed.env import World
from glmforge.errors import ConfigError, DataError
from glmforge.models import load_tokenizer
from glmforge.train.preparation import TokenizerOf, worker_count
from glmforge.train.rundir import data_manifest
from glmforge.train.training_data import (
    TrainingData,
    from_main,
    in_turns,
    is_packed,
    prepare_alone,
    prepare_data,
)

ALONE = Ranks(world=World(), device=torch.device("cpu"))
MODEL = {
    "model_type": "chatglm", "_name_or_path": "THUDM/chatglm3-6b", "padded_vocab_size": 512,
    "ffn_hidden_size": 8, "hidden_size": 8, "kv_channels": 4, "num_layers": 1,
    "num_attention_heads": 2, "seq_length": 128,
}  # fmt: skip


def dialogue(number: int, **more: Any) -> dict[str, Any]:
    messages = [
        {"role": "user", "content": f"question {number}"},
        {"role": "assistant", "content": f"answer {number}"},
    ]
    return {"messages": messages, **more}


def write(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model") / "chatglm3"
    train_vocabulary([f"question {n} answer {n} weather" for n in range(99)], directory, 300)
    (directory / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    return directory


@pytest.fixture
def configured(model: Path, tmp_path: Path) -> Any:
    write(tmp_path / "train.jsonl", [dialogue(number) for number in range(30)])

    def make(**data: Any) -> RunConfig:
        settings = {"train": str(tmp_path / "train.jsonl"), "max_length": 64, **data}
        return config_from_mapping(
            {
                "model": {"model_name_or_path": str(model)},
                "data": settings,
                "training": {"output_dir": str(tmp_path / "runs" / "one")},
            }
        )

    return make


def prepared(config: RunConfig, packed: bool = True) -> tuple[TrainingData, list[str]]:
    said: list[str] = []
    tokenizer = load_tokenizer(config.model.model_name_or_path)
    return prepare_data(config, tokenizer, ALONE, said.append, packed=packed), said


def test_a_second_run_uses_the_set_of_the_first_and_says_so(configured: Any) -> None:
    first, said = prepared(configured())
    assert not any("using the prepared set" in line for line in said)
    again, said = prepared(configured())
    assert any("using the prepared set" in line for line in said)
    assert first.train_rows == again.train_rows
    assert hash_of(first.train) == hash_of(again.train)


def test_sets_lie_beside_the_run_directory_or_where_the_config_says(
    configured: Any, tmp_path: Path
) -> None:
    (found,) = prepare_alone(configured())
    assert found.parent == tmp_path / "runs" / ".prepared"
    (found,) = prepare_alone(configured(prepared_dir=str(tmp_path / "sets")))
    assert found.parent == tmp_path / "sets"


def test_rows_longer_than_the_positions_are_not_prepared(configured: Any) -> None:
    """As they would not be trained."""
    with pytest.raises(ConfigError, match=r"data\.max_length is 100000 tokens.*positions"):
        prepare_alone(configured(max_length=100_000))


def test_a_damaged_set_is_refused_by_a_run_and_made_anew_by_data_prepare(
    configured: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory,) = prepare_alone(configured())
    part = directory / "part-00000.arrow"
    part.write_bytes(part.read_bytes()[:-100])
    with pytest.raises(DataError, match="`glmforge data prepare`"):
        prepared(configured())
    with pytest.raises(DataError, match="`glmforge data prepare`"):
        prepare_alone(configured(), rebuild=False)  # how `glmforge train --nproc` calls it
    capsys.readouterr()
    assert prepare_alone(configured()) == [directory]
    assert "made anew" in capsys.readouterr().err
    _, said = prepared(configured())
    assert any("using the prepared set" in line for line in said)


def test_held_out_records_are_validation_rows_and_prompts(configured: Any) -> None:
    data, said = prepared(configured(validation_size=0.2))
    assert (len(data.train), len(data.validation)) == (24, 6)
    held = [example.source for example in data.validation]
    assert set(held).isdisjoint(example.source for example in data.train)
    numbers = [int(source.rpartition(":")[2]) - 1 for source in held[:4]]
    assert [prompt.text for prompt in data.prompts] == [f"question {number}" for number in numbers]
    for prompt, example in zip(data.prompts, data.validation):
        assert example.input_ids[: len(prompt.input_ids)].tolist() == list(prompt.input_ids)
    assert any("6 records of data.train held out" in line for line in said)


def test_prompts_know_the_tools_of_their_dialogue(configured: Any, tmp_path: Path) -> None:
    tools = [{"name": "weather", "description": "d", "parameters": {}}]
    plain = write(tmp_path / "plain.jsonl", [{"text": "a text"}, dialogue(1)])
    with_tools = write(tmp_path / "tools.jsonl", [dialogue(1, tools=tools)])
    (short,), (long,) = (
        prepared(configured(validation=path, max_length=999))[0].prompts
        for path in (plain, with_tools)
    )
    assert short.text == long.text == "question 1"
    assert len(long.input_ids) > len(short.input_ids) + 10


def test_weights_repeat_and_thin_sources(configured: Any, tmp_path: Path) -> None:
    more = write(tmp_path / "more.jsonl", [dialogue(number) for number in range(40, 50)])
    data, said = prepared(
        configured(train=[str(tmp_path / "train.jsonl"), {"path": more, "weight": 1.5}])
    )
    assert len(data.train) == 45
    assert any("45 rows after weights" in line for line in said)
    assert sorted(index for row in data.train_rows for index in row) == list(range(45))


def test_the_manifest_changes_with_the_rows_and_with_nothing_else(
    configured: Any, tmp_path: Path
) -> None:
    def manifest(**settings: Any) -> dict[str, Any]:
        data, _ = prepared(configured(**settings))
        return data_manifest(data.files, data.examples())

    first = manifest()
    assert manifest(prepared_dir=str(tmp_path / "elsewhere")) == first
    assert first["files"]["train"][0]["path"] == str(tmp_path / "train.jsonl")
    hashes = {
        values["hash"]
        for values in (
            first,
            manifest(validation_size=3),
            manifest(labels="last_turn", max_length=16),
            manifest(train={"path": str(tmp_path / "train.jsonl"), "weight": 2.0}),
        )
    }
    assert len(hashes) == 4


def test_each_part_has_a_hash_of_its_own_wherever_its_files_lie(
    configured: Any, tmp_path: Path
) -> None:
    """Other validation rows leave the training rows' hash; held-out rows have one too."""
    rows = [dialogue(number) for number in range(50, 53)]
    (tmp_path / "moved").mkdir()
    paths = [tmp_path / "v.jsonl", tmp_path / "moved" / "v.jsonl", tmp_path / "other.jsonl"]
    for path, found in zip(paths, (rows, rows, rows[:2]), strict=True):
        write(path, found)

    def hashes(**settings: Any) -> dict[str, str]:
        data, _ = prepared(configured(**settings))
        found: dict[str, str] = data_manifest(data.files, data.examples())["hashes"]
        return found

    first, moved, other = (hashes(validation=str(path)) for path in paths)
    assert moved == first
    assert other["train"] == first["train"]
    assert other["validation"] != first["validation"]
    assert hashes() == {"train": first["train"]}
    assert hashes(validation_size=3).keys() == {"train", "validation"}


@pytest.mark.parametrize("kind", ["files of one name", "an array on one line"])
def test_prompts_are_the_records_that_were_held_out(
    configured: Any, tmp_path: Path, kind: str
) -> None:
    """However hard it is to tell the records' places apart."""
    rows = [dialogue(number) for number in range(40)]
    if kind == "an array on one line":
        train: Any = str(tmp_path / "all.json")
        Path(train).write_text(json.dumps(rows), encoding="utf-8")
    else:
        train = []
        for name, part in (("a", rows[:20]), ("b", rows[20:])):
            (tmp_path / name).mkdir()
            train.append(write(tmp_path / name / "train.jsonl", part))
    data, _ = prepared(configured(train=train, validation_size=8))
    held = {tuple(example.input_ids.tolist()) for example in data.validation}
    assert len(held) == 8
    assert len(data.prompts) == 4
    for prompt in data.prompts:
        ids = tuple(prompt.input_ids)
        assert sum(row[: len(ids)] == ids for row in held) == 1
    assert len({example.source for example in data.train}) == 32


def test_every_skipped_record_is_written_out(configured: Any, tmp_path: Path) -> None:
    bad = write(tmp_path / "bad.jsonl", [dialogue(1), *[{"messages": []}] * 299, 3])
    with pytest.raises(DataError, match=r"bad\.jsonl:2"):
        prepared(configured(train=bad))
    data, said = prepared(configured(train=bad, on_error="skip"))
    data.write_skipped(tmp_path, said.append)
    lines = (tmp_path / "skipped.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["source"] for line in lines] == [
        f"bad.jsonl:{n}" for n in range(2, 302)
    ]
    assert "300 records were left out" in said[-1]


def test_faults_of_all_sources_come_in_one_error(configured: Any, tmp_path: Path) -> None:
    first = write(tmp_path / "first.jsonl", [{"messages": []}])
    second = write(tmp_path / "second.jsonl", [3])
    with pytest.raises(DataError) as caught:
        prepared(configured(train=first, validation=second))
    text = str(caught.value)
    assert "first.jsonl:1" in text
    assert "second.jsonl:1" in text


def test_columns_and_repairs_reach_the_reader(configured: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "other.jsonl", [{"ask": " question 1 ", "reply": "answer 1"}])
    settings = {"columns": {"query": "ask", "response": "reply"}, "repair": ["trim"]}
    mapped, _ = prepared(configured(train=path, **settings))
    plain, _ = prepared(configured(train=write(tmp_path / "plain.jsonl", [dialogue(1)])))
    assert np.array_equal(mapped.train[0].input_ids, plain.train[0].input_ids)


def test_grouping_and_padding_shape_unpacked_batches(configured: Any) -> None:
    settings = {"packing": False, "group_by_length": True, "pad_to_multiple_of": 16}
    data, _ = prepared(configured(**settings), packed=False)
    from glmforge.plan.batch import BatchSizes

    plan = data.plan(BatchSizes(micro_batch=4, accumulation=1, world_size=1), 0)
    batches = plan.rank_batches(0, 0, rank=0, world_size=1, micro_batch=4, accumulation=1)
    (batch,) = batches.micro_batches
    assert batch.input_ids.shape[1] % 16 == 0
    assert batch.position_ids is None


def test_a_family_that_cannot_pack_does_not_and_says_so(
    configured: Any, model: Path, tmp_path: Path
) -> None:
    assert is_packed(configured(), print) is True
    assert is_packed(configured(packing=False), print) is False
    old = {"model_type": "chatglm", "position_encoding_2d": True, "vocab_size": 130528,
           "hidden_size": 8, "num_layers": 1, "num_attention_heads": 2,
           "inner_hidden_size": 8, "max_sequence_length": 64}  # fmt: skip
    (tmp_path / "6b").mkdir()
    (tmp_path / "6b" / "config.json").write_text(json.dumps(old), encoding="utf-8")

    def of_6b(**data: Any) -> RunConfig:
        values = configured(**data).model_dump(exclude_unset=True)
        return config_from_mapping(
            {**values, "model": {"model_name_or_path": str(tmp_path / "6b")}}
        )

    said: list[str] = []
    assert is_packed(of_6b(), said.append) is False
    assert said == [
        "packing is off: ChatGLM-6B has no attention that keeps the documents of a row apart"
    ]
    with pytest.raises(ConfigError, match=r"data\.packing is true, but ChatGLM-6B"):
        is_packed(of_6b(packing=True), said.append)


class Talking:
    """Two ranks that only note what they say to each other."""

    def __init__(self, rank: int, heard: list[Any]) -> None:
        self.world = World(rank=rank, local_rank=rank, world_size=2)
        self.is_main = rank == 0
        self.world_size = 2
        self._heard = iter(heard)

    def gather_objects(self, value: Any) -> list[Any]:
        return [value, next(self._heard)] if self.is_main else [next(self._heard), value]

    def agree(self, value: Any) -> Any:
        return value if self.is_main else next(self._heard)


def test_what_one_rank_refuses_every_rank_refuses() -> None:
    def refuse() -> int:
        raise DataError("train.jsonl:3: wrong")

    for talking in (Talking(0, [()]), Talking(1, [("train.jsonl:3: wrong",)])):
        with pytest.raises(DataError, match=r"train\.jsonl:3: wrong"):
            in_turns(talking, refuse)  # type: ignore[arg-type]
    for talking in (Talking(0, []), Talking(1, [(None, ("train.jsonl:3: wrong",))])):
        with pytest.raises(DataError, match=r"train\.jsonl:3: wrong"):
            from_main(talking, refuse)  # type: ignore[arg-type]


def test_preparation_may_use_every_core_or_as_many_as_wanted() -> None:
    assert worker_count(None) == len(os.sched_getaffinity(0))
    assert worker_count(3) == 3


def test_a_tokenizer_goes_to_another_process_by_its_directory(model: Path) -> None:
    import pickle

    tokenizer = load_tokenizer(model)
    make = TokenizerOf(str(model), tokenizer)
    assert make() is tokenizer
    there = pickle.loads(pickle.dumps(make))()
    assert there.encode_text("question 1") == tokenizer.encode_text("question 1")


def test_what_a_directory_gave_is_said_and_splits_by_name_are_pointed_at(
    configured: Any, tmp_path: Path
) -> None:
    """Nothing is left out by its name in silence, and nothing is read so."""
    place = tmp_path / "many"
    place.mkdir()
    for name in ("train.jsonl", "dev.jsonl", "my_test.jsonl", "contest.jsonl"):
        write(place / name, [dialogue(1)])
    (place / "NOTES.txt").write_text("x")
    _, said = prepared(configured(train=str(place)))
    assert f"train: {place}: 4 file(s) read: contest.jsonl, dev.jsonl, my_test.jsonl, " \
        "train.jsonl; not read by their names: NOTES.txt" in said  # fmt: skip
    (line,) = (line for line in said if "another split" in line)
    assert line.startswith(f"train: {place}: dev.jsonl, my_test.jsonl is read like the others")


def test_validation_files_that_are_trained_on_are_refused(configured: Any, tmp_path: Path) -> None:
    """By their bytes, wherever they lie; when data is prepared, too."""
    copy = write(tmp_path / "copy.jsonl", [dialogue(number) for number in range(30)])
    for attempt in (
        lambda: prepared(configured(validation=copy)),
        lambda: prepare_alone(configured(validation=copy)),
    ):
        with pytest.raises(DataError, match="a validation file that is trained on too"):
            attempt()
    with pytest.raises(DataError, match=r"same bytes as .*train\.jsonl"):
        prepared(configured(validation=[write(tmp_path / "o.jsonl", [dialogue(77)]), copy]))
    prepared(configured(validation=str(tmp_path / "o.jsonl")))
