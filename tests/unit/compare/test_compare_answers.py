"""Nothing is generated twice, and who generates it changes nothing."""

from dataclasses import replace

import pytest
import torch

from glmforge.compare.answers import Asked, Kept, Work, ask, decodings
from glmforge.data import generation_prompt
from glmforge.distributed.collectives import Ranks
from glmforge.distributed.env import World
from glmforge.models import load_model

TEXTS = ["a", "什么时候发货？", "how much is it to send two parcels", "退货", "b c"]
CPU = torch.device("cpu")


class OneOfTwo(Ranks):
    """A rank of two whose exchanges are made by the test."""

    def gather_objects(self, value):
        return [value]

    def agree(self, value):
        return value


def alone():
    return Ranks(world=World(), device=CPU)


@pytest.fixture(scope="module")
def model(base_dir):
    return load_model(base_dir)


@pytest.fixture
def work(tokenizer):
    prompts = [generation_prompt([{"role": "user", "content": text}], tokenizer) for text in TEXTS]
    return Work(prompt_ids=prompts, stops=[2, 3006, 3008], max_new_tokens=6, batch_size=2)


@pytest.fixture(scope="module")
def ways():
    return decodings(beams=2, seeds=2, temperature=0.7, repetition_penalty=1.2, top_p=1.0)


def kept_in(directory, rank=0):
    kept = Kept(directory, rank)
    kept.load()
    return kept


def asked(model, tokenizer, work, ways, directory, ranks=None, identity="m"):
    lines = []
    who = Asked(name="m", identity=identity, model=model, tokenizer=tokenizer)
    found = ask(who, work, ways, kept_in(directory), ranks or alone(), lines.append)
    return found, lines


def test_ways_are_greedy_then_what_is_asked(ways):
    assert [way.name for way in ways] == ["greedy", "beam-2", "sample-1", "sample-2"]
    assert [way.is_drawn for way in ways] == [False, False, True, True]
    assert ways[2].sampling.repetition_penalty == 1.2


def test_an_interrupted_comparison_goes_on(model, tokenizer, work, ways, tmp_path):
    whole, _ = asked(lambda: model, tokenizer, work, ways, tmp_path / "whole")
    calls = 0

    def dies():
        nonlocal calls
        calls += 1
        if calls == 8:
            raise KeyboardInterrupt
        return model

    with pytest.raises(KeyboardInterrupt):
        asked(dies, tokenizer, work, ways, tmp_path / "cut")
    with (tmp_path / "cut" / "rank-0.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"key": "torn in the mid')
    resumed, lines = asked(lambda: model, tokenizer, work, ways, tmp_path / "cut")
    assert resumed == whole
    assert lines == ["m: 5 batches of up to 2 prompts (7 kept)"]

    def never():
        raise AssertionError("all answers are known")

    again, lines = asked(never, tokenizer, work, ways, tmp_path / "cut")
    assert (again, lines) == (whole, [])


def test_answers_do_not_depend_on_the_number_of_ranks(model, tokenizer, work, ways, tmp_path):
    whole, _ = asked(lambda: model, tokenizer, work, ways, tmp_path / "whole")
    who = Asked(name="m", identity="m", model=lambda: model, tokenizer=tokenizer)
    made = 0
    for rank in range(2):
        ranks = OneOfTwo(world=World(rank=rank, world_size=2), device=CPU)
        kept = Kept(tmp_path / "two", rank)
        with pytest.raises(KeyError):  # each rank alone lacks the other's batches
            ask(who, work, ways, kept, ranks, lambda line: None)
        made += len(kept.known())
    assert made == 12
    joined, lines = asked(lambda: model, tokenizer, work, ways, tmp_path / "two")
    assert (joined, lines) == (whole, [])


def test_whatever_changes_an_answer_makes_it_anew(model, tokenizer, work, ways, tmp_path):
    greedy = ways[:1]
    asked(lambda: model, tokenizer, work, greedy, tmp_path)
    for changed in (
        replace(work, stops=[2]),
        replace(work, max_new_tokens=5),
        replace(work, prompt_ids=work.prompt_ids[::-1][:2]),
    ):
        _, lines = asked(lambda: model, tokenizer, changed, greedy, tmp_path)
        assert lines, "generated again"
    assert asked(lambda: model, tokenizer, work, greedy, tmp_path, identity="other")[1]
    assert asked(lambda: model, tokenizer, work, ways[3:], tmp_path)[1]
