"""The advisor: what it chooses for given cards, and what it says where nothing fits."""

import itertools
import re

import pytest
from plan_shapes import chatglm3, lora

from glmforge.plan.advisor import Machine, advise, judge, options, ways_out
from glmforge.plan.memory import account


def four_cards(gib: float, **changes: object):
    work = lora(micro_batch=2, accumulation=8, world_size=4, packed=True, **changes)
    return work, Machine(card_gib=gib, cards_per_host=4, host_gib=256)


def test_lora_stays_with_zero_2_where_the_weights_fit() -> None:
    """80 GiB cards: no ZeRO-3, no offloading, no checkpointing."""
    work, machine = four_cards(80)
    best = advise(chatglm3(), work, machine).best
    assert best is not None
    chosen = best.workload
    assert (chosen.zero_stage, chosen.offload, chosen.checkpointing) == (2, "none", False)


def test_zero_3_is_chosen_only_where_weights_do_not_fit() -> None:
    """12 GiB cards: the frozen weights alone are 11.6."""
    work, machine = four_cards(12)
    advice = advise(chatglm3(), work, machine)
    assert advice.best is not None
    assert advice.best.workload.zero_stage == 3
    assert any("ZeRO-3 because ZeRO-2 needs" in line for line in advice.sentences)


def test_offloading_comes_last() -> None:
    """Every configuration without it ranks before every one with it."""
    work, machine = four_cards(80, method="full")
    offloads = [one.workload.offload for one in advise(chatglm3(), work, machine).ranked]
    first = next(i for i, name in enumerate(offloads) if name != "none")
    assert "none" not in offloads[first:]


def test_the_rows_of_a_step_stay_what_they_are() -> None:
    """Splitting a step otherwise is no other training."""
    work, _ = four_cards(80)
    assert {one.micro_batch * one.accumulation for one in options(work)} == {16}


def test_every_ranked_configuration_fits_and_the_faster_comes_first() -> None:
    """Within one level of ZeRO and offloading."""
    work, machine = four_cards(40)
    ranked = advise(chatglm3(), work, machine).ranked
    plain = [
        one for one in ranked if one.workload.zero_stage == 2 and one.workload.offload == "none"
    ]
    speeds = [one.speed.tokens_per_second for one in plain]
    assert all(one.account.needed_gib <= 40 for one in ranked)
    assert speeds == sorted(speeds, reverse=True)


def test_four_times_12_gib_is_explained_with_numbers_of_the_account() -> None:
    """A guide says that ZeRO-2 with offload runs; it does not, and what does is named."""
    work, machine = four_cards(12)
    said = "\n".join(ways_out(chatglm3(), work, machine))
    freed = re.search(r"optimizer offload frees only (\S+) GiB", said)
    assert "the frozen weights alone are 11.6 GiB on every card" in said
    assert freed is not None
    assert float(freed[1]) < 0.05
    assert re.search(r"QLoRA \(4-bit base\), micro-batch 1, .*: fits, about", said)
    three = work.but(zero_stage=3, micro_batch=1, accumulation=16, checkpointing=True)
    needed = account(chatglm3(), three).needed_gib
    line = f"ZeRO-3, micro-batch 1, accumulation 16, checkpointing: fits, about {needed:.1f} GiB"
    assert line in said
    assert "data.max_length=1024 instead of 2048" in said


def test_where_nothing_fits_the_ways_out_are_judged_too() -> None:
    """Full parameters on one small card: not even offloading helps."""
    machine = Machine(card_gib=8, host_gib=32)
    advice = advise(chatglm3(), lora(method="full"), machine)
    assert advice.best is None
    assert "does not fit under any ZeRO stage" in advice.sentences[0]
    assert any("LoRA (r 8) instead of method full" in line for line in advice.sentences)


def test_host_memory_counts_all_ranks_of_a_machine() -> None:
    """Full 6B offloaded: 16 bytes a parameter, whatever the number of cards."""
    work = lora(method="full", world_size=4, offload_optimizer=True, checkpointing=True)
    small = Machine(card_gib=80, cards_per_host=4, host_gib=64)
    large = Machine(card_gib=80, cards_per_host=4, host_gib=256)
    assert not judge(chatglm3(), work, small).fits
    assert judge(chatglm3(), work, large).fits


def full_on_one_card(host: float):
    work = lora(method="full", micro_batch=2, checkpointing=True)
    return work, Machine(card_gib=80, cards_per_host=1, host_gib=host)


def test_what_is_chosen_is_never_called_impossible_beside_it() -> None:
    """Full 6B on one card of 80 GiB: offloading fits, and the ways out begin with it."""
    work, machine = full_on_one_card(512)
    best = advise(chatglm3(), work, machine).best
    assert best is not None
    assert (best.workload.zero_stage, best.workload.offload) == (2, "optimizer")
    said = list(ways_out(chatglm3(), work, machine))
    assert said[0].startswith("ZeRO-2 without offloading does not fit at any micro-batch")
    assert re.match(r"ZeRO-2 with the optimizer on the host, .*: fits, about", said[1])
    assert "frees only" not in "\n".join(said)


def test_a_shorter_row_that_changes_nothing_is_not_named() -> None:
    """The peak of full training is its update: rows do not matter."""
    work, machine = full_on_one_card(512)
    assert "max_length" not in "\n".join(ways_out(chatglm3(), work, machine))


def test_a_host_that_is_too_small_is_named_as_the_limit() -> None:
    """64 GiB of host memory hold no optimizer of 6B parameters."""
    work, machine = full_on_one_card(64)
    said = "\n".join(ways_out(chatglm3(), work, machine))
    limit = "does not fit either (the machine has 64 GiB of host memory), about"
    assert re.search(rf"ZeRO-2 with the optimizer on the host, .*: {re.escape(limit)}", said)
    assert re.search(rf"weights and optimizer on the host, .*: {re.escape(limit)}", said)


def test_8_bit_states_are_never_told_to_go_to_the_host() -> None:
    """The host's Adam is DeepSpeed's own, of 32 bits."""
    work = lora(method="full", eight_bit=True, checkpointing=True)
    said = "\n".join(ways_out(chatglm3(), work, Machine(card_gib=24, host_gib=512)))
    assert "on the host" not in said
    assert "offload" not in said


@pytest.mark.parametrize("method", ["lora", "qlora", "full"])
def test_the_ranking_and_the_ways_out_agree(method: str) -> None:
    """Whatever the cards: what can be chosen is a way out too, and no way fits where none is."""
    shape = chatglm3()
    sizes = itertools.product((1, 2, 4, 16), (8, 12, 24, 80, 141), (32, 128, 1000))
    for cards, gib, host in sizes:
        work = lora(method=method, world_size=cards, micro_batch=1, pin_memory=True)
        work = work.but(checkpointing=True, compiled=method != "qlora")
        machine = Machine(card_gib=gib, host_gib=host, cards_per_host=min(cards, 8))
        ranked = advise(shape, work, machine).ranked
        ways = [way for way in ways_out(shape, work, machine) if ": fits, about" in way]
        own = [way for way in ways if not way.startswith(("QLoRA", "LoRA", "ZeRO-3 with small"))]
        if judge(shape, work, machine).fits:
            assert any(one.workload == work for one in ranked)
        else:
            assert bool(ranked) == bool(own)


def test_a_host_that_holds_no_states_of_stage_2_is_why_stage_3_is_chosen() -> None:
    """128 GiB hold no 16-bit copy and largest weight besides, on one card of 24 GiB."""
    work = lora(method="full", micro_batch=1, checkpointing=True, pin_memory=True)
    said = advise(chatglm3(), work, Machine(card_gib=24, host_gib=128)).sentences
    assert "ZeRO-3 because ZeRO-2 needs 131 GiB of host memory, 128 GiB are there" in said


def test_where_nothing_fits_small_buckets_may() -> None:
    """Full 6B on 16 x 12 GiB: the first sentence does not deny what a later one offers."""
    work = lora(method="full", micro_batch=1, checkpointing=True, world_size=16)
    advice = advise(chatglm3(), work, Machine(card_gib=12, host_gib=32, cards_per_host=8))
    assert advice.best is None
    assert "or micro-batch with the buckets as they are" in advice.sentences[0]
    assert any(
        re.match("ZeRO-3 with small buckets .*: fits", sentence) for sentence in advice.sentences
    )
