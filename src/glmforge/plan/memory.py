"""The memory account of a run: bytes of one rank at its peak, term by term, with formulas.

Owns `account`. It looks at each moment where memory peaks (loss, backward pass of the last layer,
end of the backward pass, update), adds up what exists then, and reports the highest. The parts
come from ``activations.py`` and ``states.py``; docs/memory.md compares with measured peaks.
"""

from dataclasses import dataclass

from glmforge.plan.activations import backward_workspace, head_bytes, kept_bytes
from glmforge.plan.dora import norm_workspace
from glmforge.plan.shape import ModelShape
from glmforge.plan.states import StateBytes, state_bytes
from glmforge.plan.weights import trained_parameters
from glmforge.plan.workload import GIB, Sized, Workload

CONTEXT_BYTES = int(0.6 * GIB)
"""CUDA context, kernels and NCCL of a process on the card; outside of what torch allocates."""

LIBRARY_BYTES = 32 * 2**20
"""cuBLAS' workspace on Hopper, taken through torch's allocator."""

SLACK_SHARE = 0.05
SLACK_BYTES = int(0.2 * GIB)
"""Memory reserved but not allocated. Without expandable segments 0 to 24 GiB were seen;
``distributed.env.let_segments_grow`` switches them on."""

HOST_PROCESS_BYTES = 4 * GIB
"""Host memory of a rank besides offloading: Python, torch and CUDA libraries, the data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One term of the account: bytes on the card at the peak, and its formula."""

    name: str
    bytes: int
    formula: str

    @property
    def gib(self) -> float:
        """Size in GiB."""
        return self.bytes / GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The memory of one rank.

    ``terms`` add up to ``peak_bytes``, torch's ``max_memory_allocated``; ``slack`` and ``context``
    come on top of it, and together they must fit the card. ``moments`` names every moment that was
    looked at, in bytes; ``moment`` is the highest. ``host`` is of one rank.
    """

    workload: Workload
    terms: tuple[Term, ...]
    slack: Term
    context: Term
    moment: str
    moments: dict[str, int]
    host: tuple[Term, ...]

    @property
    def peak_bytes(self) -> int:
        """The planned ``torch.cuda.max_memory_allocated``."""
        return sum(term.bytes for term in self.terms)

    @property
    def peak_gib(self) -> float:
        """The same in GiB."""
        return self.peak_bytes / GIB

    @property
    def needed_gib(self) -> float:
        """What the card must have: the peak, what the allocator wastes, the CUDA context."""
        return (self.peak_bytes + self.slack.bytes + self.context.bytes) / GIB

    @property
    def host_gib(self) -> float:
        """Host memory of one rank."""
        return sum(term.bytes for term in self.host) / GIB

    def term(self, name: str) -> Term:
        """Return the term called `name` (0 bytes where it is not at the peak)."""
        found = [term for term in self.terms if term.name == name]
        return found[0] if found else Term(name=name, bytes=0, formula="not at the peak")


def account(shape: ModelShape, work: Workload) -> Account:
    """Work out the memory of one rank at its peak."""
    states = state_bytes(shape, work)
    always = [
        _term("weights", states.weights),
        _term("fp32_masters", states.masters),
        _term("optimizer_states", states.optimizer),
        _term("zero_buffers", states.zero_buffers),
        Term(name="libraries", bytes=LIBRARY_BYTES, formula="cuBLAS workspace"),
    ]
    extras = _moments(shape, work, states)
    sizes = {name: sum(term.bytes for term in terms) for name, terms in extras.items()}
    moment = max(sizes, key=lambda name: sizes[name])
    terms = tuple(term for term in [*always, *extras[moment]] if term.bytes)
    held = sum(term.bytes for term in always)
    moving = sizes[moment]
    return Account(
        workload=work,
        terms=terms,
        slack=Term(
            name="allocator_slack",
            bytes=SLACK_BYTES + int(SLACK_SHARE * moving),
            formula=f"{SLACK_BYTES / GIB:.1f} GiB + {SLACK_SHARE:.0%} of what comes and goes",
        ),
        context=Term(name="cuda_context", bytes=CONTEXT_BYTES, formula="a process on the card"),
        moment=moment,
        moments={name: size + held for name, size in sizes.items()},
        host=_host(states),
    )


def _term(name: str, sized: Sized) -> Term:
    return Term(name=name, bytes=sized.bytes, formula=sized.formula)


def _moments(shape: ModelShape, work: Workload, states: StateBytes) -> dict[str, list[Term]]:
    """List what exists at each moment beside what is always there."""
    kept, kept_text = kept_bytes(shape, work)
    head = head_bytes(shape, work)
    space, space_text = backward_workspace(shape, work)
    activations = Term(name="activations", bytes=kept, formula=kept_text)
    live = _term("zero_live_parameters", states.live)
    second = _term("zero_secondary_weights", states.secondary)
    buffers = _term("reduction_bucket", states.backward_buffers)
    workspace = Term(name="layer_workspace", bytes=space, formula=space_text)
    resting = Term(
        name="gradients", bytes=states.resting_gradients, formula=states.gradients.formula
    )
    gradients = _term("gradients", states.gradients)
    own = _term("own_gradients", states.own_gradients)
    moments = {
        "loss": [
            activations,
            Term(name="logits", bytes=head.total, formula=head.formula),
            live,
            second,
            resting,
        ],
        "backward of the last layer": [activations, workspace, buffers, live, second, resting],
        "end of backward": [workspace, buffers, live, second, gradients],
        "update": [_term("gradients", states.own_gradients), _term("update", states.update)],
    }
    if work.use_dora:
        norms = _term("dora_norms", norm_workspace(shape, work))
        moments["norm of an adapted weight"] = [activations, norms, buffers, live, second, resting]
    if work.zero_stage == 1:
        # All gradients are there when they are reduced, and this rank's share is made beside them;
        # the bucket's part of them is freed as it is filled.
        moments["reduction"] = [gradients, own]
    if states.to_host.bytes:
        # The head's gradient is the first, and often the largest.
        to_host = _term("gradient_to_host", states.to_host)
        moments["first gradient to the host"] = [activations, buffers, to_host, gradients]
    return moments


def _host(states: StateBytes) -> tuple[Term, ...]:
    own = Term(name="process", bytes=HOST_PROCESS_BYTES, formula="Python, torch, CUDA, data")
    moved = (_term(name, sized) for name, sized in states.host.items())
    return (own, *moved)


def why_cards_do_not_help(shape: ModelShape, work: Workload) -> str:
    """Say why LoRA's memory does not fall with more cards under ZeRO-2 (and what does it)."""
    trained = trained_parameters(shape, work)
    weights = work.element * shape.parameters / GIB
    if work.method == "qlora":
        weights = state_bytes(shape, work.but(zero_stage=2)).weights.bytes / GIB
    divided = (12 + work.element) * trained / GIB
    return (
        f"More cards do not lower the memory of LoRA under ZeRO-2: ZeRO-2 divides gradients and "
        f"optimizer states, which are those of {trained / 1e6:.1f} M adapter parameters only "
        f"({divided:.2f} GiB in all); the frozen weights ({weights:.1f} GiB) and the activations "
        f"of its own rows are whole on every card. ZeRO-3 divides the weights; QLoRA makes them "
        f"smaller; gradient checkpointing, a smaller micro-batch and shorter rows lower activations"
    )
