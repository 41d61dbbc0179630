"""Which configuration to choose for the cards at hand, and what to change where none fits.

Owns the search: ZeRO stage, offloading, checkpointing and how the rows of a step are split into
micro-batches (the rows of a step stay as they are, for the training stays the same). Those that
fit are ranked by predicted tokens a second; every number in a sentence comes from the account.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from glmforge.plan.memory import Account, account
from glmforge.plan.shape import ModelShape
from glmforge.plan.speed import Links, Speed, predict_speed
from glmforge.plan.weights import trained_parameters
from glmforge.plan.workload import GIB, Workload, beside

NOTABLE_SHARE = 0.01
"""A change that frees less of the peak is not worth a sentence."""

OFFLOADS = ((False, False), (True, False), (True, True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The cards of a run: memory of each in GiB, host memory of one machine in GiB, and links.

    ``cards_per_host`` ranks share the host's memory. Infinite: not known, everything fits.
    """

    card_gib: float = math.inf
    host_gib: float = math.inf
    cards_per_host: int = 1
    links: Links = "nvlink"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A configuration with its account and its predicted speed."""

    account: Account
    speed: Speed
    fits: bool

    @property
    def workload(self) -> Workload:
        """The configuration."""
        return self.account.workload

    def verdict(self, machine: Machine) -> str:
        """Say whether it fits, and that the host's memory is what is missing where it is."""
        if self.fits:
            return "fits"
        host = self.account.host_gib * machine.cards_per_host
        if host <= machine.host_gib:
            return "does not fit"
        reason = (
            f"host memory: {beside(host, machine.host_gib)} GiB are needed on a machine, "
            f"{machine.host_gib:g} GiB are there"
        )
        if self.account.needed_gib > machine.card_gib:
            return f"does not fit, nor in {reason}"
        return f"does not fit because of {reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The ranked configurations that fit, and sentences about the choice (or its absence)."""

    ranked: tuple[Candidate, ...]
    sentences: tuple[str, ...]

    @property
    def best(self) -> Candidate | None:
        """The fastest that fits."""
        return self.ranked[0] if self.ranked else None


def judge(shape: ModelShape, work: Workload, machine: Machine) -> Candidate:
    """Account for one configuration and say whether it fits."""
    found = account(shape, work)
    host = found.host_gib * machine.cards_per_host
    fits = found.needed_gib <= machine.card_gib and host <= machine.host_gib
    return Candidate(account=found, speed=predict_speed(shape, work, machine.links), fits=fits)


def advise(shape: ModelShape, work: Workload, machine: Machine) -> Advice:
    """Rank all configurations of a run that fit; explain the first, or say what would."""
    every = [judge(shape, option, machine) for option in options(work)]
    ranked = sorted((one for one in every if one.fits), key=_order)
    if ranked:
        return Advice(ranked=tuple(ranked), sentences=_choice(shape, ranked, machine))
    return Advice(ranked=(), sentences=tuple(_nothing_fits(shape, work, machine)))


def options(work: Workload) -> Iterator[Workload]:
    """Yield the configurations of one run: same method, rows of a step, and cards."""
    rows = work.micro_batch * work.accumulation
    for stage in (2, 3):
        for optimizer, parameters in OFFLOADS:
            if parameters and stage != 3:
                continue
            if work.method == "qlora" and stage == 3:
                continue  # quantised weights cannot be divided by DeepSpeed
            if work.eight_bit and optimizer:
                continue  # the host's Adam is DeepSpeed's own
            for every in (0, 4, 2, 1):
                for micro in (size for size in range(1, rows + 1) if rows % size == 0):
                    yield work.but(
                        zero_stage=stage,
                        offload_optimizer=optimizer,
                        offload_param=parameters,
                        checkpointing=every > 0,
                        checkpoint_every=max(1, every),
                        micro_batch=micro,
                        accumulation=rows // micro,
                    )


def _order(one: Candidate) -> tuple[int, float, float]:
    """Offloading last, ZeRO-3 only where nothing less fits (a tenth slower is not worth it)."""
    work = one.workload
    level = 2 * (work.offload != "none") + (work.zero_stage == 3)
    if not work.is_low_rank:
        level = 2 * (work.offload != "none")
    return level, -one.speed.tokens_per_second, one.account.needed_gib


def _choice(shape: ModelShape, ranked: list[Candidate], machine: Machine) -> tuple[str, ...]:
    best = ranked[0]
    work = best.workload
    reasons = [
        f"choice: {work.sentence()}: {best.account.needed_gib:.1f} GiB a card, "
        f"about {best.speed.tokens_per_second:,.0f} tokens/s"
    ]
    if work.zero_stage == 3:
        reasons.append(_why_zero3(shape, work, machine))
    elif work.is_low_rank:
        reasons.append(
            "ZeRO-2 because the frozen weights fit whole on every card: ZeRO-3 would gather them "
            "for each forward and backward pass and divide nothing that matters"
        )
    else:
        other = judge(shape, work.but(zero_stage=3), machine)
        reasons.append(
            f"ZeRO-2 because ZeRO-3, all else the same, {_difference(other, best, machine)}"
        )
    if work.checkpointing:
        kept = account(shape, work.but(checkpointing=False)).needed_gib
        reasons.append(f"checkpointing because without it {kept:.1f} GiB would be needed")
    if work.offload != "none":
        reasons.append(f"offload ({work.offload}) because nothing fits without it")
    if len(ranked) > 1:
        second = ranked[1]
        reasons.append(
            f"runner-up: {second.workload.sentence()}: {second.account.needed_gib:.1f} GiB, about "
            f"{second.speed.tokens_per_second:,.0f} tokens/s; against the choice it "
            f"{_difference(second, best, machine)}"
        )
    return tuple(reasons)


def _difference(other: Candidate, best: Candidate, machine: Machine) -> str:
    """Say what another configuration saves and costs against the chosen one, in its numbers."""
    gib = other.account.needed_gib - best.account.needed_gib
    host = (other.account.host_gib - best.account.host_gib) * machine.cards_per_host
    pace, ours = other.speed.tokens_per_second, best.speed.tokens_per_second
    share = pace / ours - 1
    memory = f"takes {abs(gib):.1f} GiB {'less' if gib < 0 else 'more'} a card"
    if abs(gib) < 0.05:
        memory = "takes as much of a card"
    if abs(host) >= 0.5:
        memory += f", {abs(host):.0f} GiB {'less' if host < 0 else 'more'} of the host"
    if abs(share) < 0.0005:
        return f"{memory} and is as fast"
    return (
        f"{memory} and is {abs(share):.1%} {'slower' if share < 0 else 'faster'} "
        f"({abs(pace - ours):,.0f} tokens/s)"
    )


def _why_zero3(shape: ModelShape, work: Workload, machine: Machine) -> str:
    """Say what keeps ZeRO-2 from doing the same: the card, the host, or that it is slower."""
    whole = account(shape, work.but(zero_stage=2, offload_param=False))
    host = whole.host_gib * machine.cards_per_host
    if whole.needed_gib > machine.card_gib:
        return f"ZeRO-3 because ZeRO-2 needs {whole.needed_gib:.1f} GiB at the same micro-batch"
    if host > machine.host_gib:
        return (
            f"ZeRO-3 because ZeRO-2 needs {host:.0f} GiB of host memory, {machine.host_gib:g} GiB "
            "are there"
        )
    return "ZeRO-3 because its larger micro-batch is faster than gathering weights is slow"


def _nothing_fits(shape: ModelShape, work: Workload, machine: Machine) -> Iterator[str]:
    rows = work.micro_batch * work.accumulation
    least = work.but(
        micro_batch=1, accumulation=rows, checkpointing=True, checkpoint_every=1, zero_stage=2
    )
    found = account(shape, least)
    weights = found.term("weights").gib
    yield (
        f"{work.world_size} x {machine.card_gib:g} GiB, {work.method}, {work.row_tokens} tokens: "
        f"does not fit under any ZeRO stage, offload or micro-batch with the buckets as they are. "
        f"The least under ZeRO-2 "
        f"(micro-batch 1, checkpointing) is {found.needed_gib:.1f} GiB, of which the weights are "
        f"{weights:.1f} GiB on every card"
    )
    yield from ways_out(shape, work, machine)


def ways_out(shape: ModelShape, work: Workload, machine: Machine) -> Iterator[str]:
    """Say what changes a configuration that does not fit, with the bytes that each would need."""
    rows = work.micro_batch * work.accumulation
    least = work.but(
        micro_batch=1,
        accumulation=rows,
        checkpointing=True,
        checkpoint_every=1,
        offload_optimizer=False,
        offload_param=False,
    )
    yield from _about_zero2(shape, work, machine, least)
    tries: list[tuple[str, Workload]] = []
    if work.method == "lora":
        tries.append(
            ("QLoRA (4-bit base)", least.but(method="qlora", zero_stage=2, compiled=False))
        )
    if work.method != "qlora" and (work.world_size > 1 or not work.is_low_rank):
        tries.append(("ZeRO-3", least.but(zero_stage=3)))
    if work.method != "qlora" and work.world_size > 1:
        tries.append(
            (
                "ZeRO-3 with small buckets (reduce_bucket_size, stage3_prefetch_bucket_size 5e7, "
                "stage3_max_live_parameters 3e8)",
                least.but(
                    zero_stage=3,
                    reduce_bucket=50_000_000,
                    prefetch_bucket=50_000_000,
                    max_live=300_000_000,
                ),
            )
        )
    if work.method != "qlora" and not work.eight_bit:
        if not work.is_low_rank:
            states = least.but(zero_stage=3, offload_optimizer=True)
            tries.append(("ZeRO-3 with the optimizer on the host", states))
        both = least.but(zero_stage=3, offload_optimizer=True, offload_param=True)
        tries.append(("ZeRO-3 with weights and optimizer on the host", both))
    if not work.is_low_rank:
        lora = least.but(method="lora", zero_stage=2, lora_targets=shape.usual_targets, lora_r=8)
        tries.append((f"LoRA (r 8) instead of method {work.method}", lora))
    for words, option in tries:
        yield _attempt(shape, words, option, machine)
    yield from _shorter_rows(shape, work, machine)


def _shorter_rows(shape: ModelShape, work: Workload, machine: Machine) -> Iterator[str]:
    """Say what half as long rows change for the configuration as it is, where that is notable."""
    before = judge(shape, work, machine)
    half = judge(shape, work.but(row_tokens=work.row_tokens // 2), machine)
    if half.account.peak_gib >= (1 - NOTABLE_SHARE) * before.account.peak_gib:
        return
    needed = beside(half.account.needed_gib, machine.card_gib)
    yield (
        f"data.max_length={half.workload.row_tokens} instead of {work.row_tokens}, all else as "
        f"written: {needed} instead of {beside(before.account.needed_gib, machine.card_gib)} GiB a "
        f"card, {half.verdict(machine)}"
    )


def _about_zero2(
    shape: ModelShape, work: Workload, machine: Machine, least: Workload
) -> Iterator[str]:
    """Say why ZeRO-2 cannot help, or with what it does, from its least configuration."""
    plain = least.but(zero_stage=2)
    found = account(shape, plain)
    if found.needed_gib <= machine.card_gib:
        yield _attempt(shape, "ZeRO-2", plain, machine)
        return
    states = 12 * trained_parameters(shape, work) / work.world_size / GIB
    reason = (
        f"the frozen weights alone are {found.term('weights').gib:.1f} GiB on every card"
        if work.is_low_rank
        else f"weights are {found.term('weights').gib:.1f} GiB on every card and the optimizer's "
        f"share is {states:.1f} GiB"
    )
    needs = f"{reason}, micro-batch 1 with checkpointing needs {found.needed_gib:.1f} GiB"
    if work.eight_bit:
        yield f"ZeRO-2 does not fit at any micro-batch: {needs}"
        return
    offloaded = judge(shape, plain.but(offload_optimizer=True), machine)
    freed = max(0.0, found.peak_gib - offloaded.account.peak_gib)
    if offloaded.account.needed_gib > machine.card_gib:
        words = f"only {freed:.2f} GiB" if freed < 1 else f"{freed:.1f} GiB, which is not enough"
        yield (
            f"ZeRO-2 does not fit at any micro-batch: {needs}, and optimizer offload frees {words}"
        )
        return
    yield (
        f"ZeRO-2 without offloading does not fit at any micro-batch: {needs}; optimizer offload "
        f"frees {freed:.1f} GiB of it"
    )
    yield _attempt(shape, "ZeRO-2 with the optimizer on the host", offloaded.workload, machine)


def _attempt(shape: ModelShape, words: str, option: Workload, machine: Machine) -> str:
    """Say whether a configuration fits, and which memory is the limit where it does not."""
    found = judge(shape, option, machine)
    host = found.account.host_gib * machine.cards_per_host
    limits = []
    if found.account.needed_gib > machine.card_gib:
        limits.append(f"a card has {machine.card_gib:g} GiB")
    if host > machine.host_gib:
        limits.append(f"the machine has {machine.host_gib:g} GiB of host memory")
    verdict = f"does not fit either ({' and '.join(limits)})" if limits else "fits"
    shown = option.offload != "none" or host > machine.host_gib
    host_words = f" and {host:.0f} GiB of host memory" if shown else ""
    return (
        f"{words}, micro-batch {option.micro_batch}, accumulation {option.accumulation}, "
        f"checkpointing: {verdict}, about "
        f"{beside(found.account.needed_gib, machine.card_gib)} GiB a card{host_words}"
    )
