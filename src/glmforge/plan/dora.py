"""What DoRA adds to LoRA's memory: magnitudes, the norms of adapted weights, and two products.

Derived from PEFT 0.21's tuners/lora/dora.py (`DoraLinearLayer`). Each forward pass multiplies A and
B out with an identity matrix, adds the product to the weight, and takes its norm by rows; what it
trains besides, a magnitude a row, ``weights.trained_parameters`` counts. Pure arithmetic.
"""

from glmforge.plan.shape import ModelShape
from glmforge.plan.workload import Sized, Workload


def kept_outputs(shape: ModelShape, work: Workload) -> Sized:
    """Return what each adapted layer keeps besides LoRA's own, in bytes a token.

    The magnitude's gradient needs the base's product and the adapter's, both as wide as the output.
    """
    chosen = [linear for linear in shape.linears if linear.name in work.lora_targets]
    width = sum(linear.out_features for linear in chosen)
    return Sized(bytes=2 * work.element * width, formula="2 e x output width each")


def norm_workspace(shape: ModelShape, work: Workload) -> Sized:
    """Return what exists while the norm of the largest adapted weight is taken.

    The identity; B A, its scaled copy and the sum with the weight; QLoRA: the weight in 16 bits.
    """
    copies = 4 if work.method == "qlora" else 3
    sizes = [
        one.in_features * (one.in_features + copies * one.out_features)
        for one in shape.linears
        if one.name in work.lora_targets
    ]
    return Sized(
        bytes=work.element * max(sizes, default=0),
        formula=f"e x inputs (inputs + {copies} x outputs) of the largest adapted weight",
    )
