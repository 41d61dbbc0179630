"""The DeepSpeed engine of a run: optimizer, start, and the three numbers read from it.

One of the two modules that import DeepSpeed (the other is ``distributed/zero.py``). The loop calls
the engine itself: `engine(...)`, `engine.backward(...)`, `engine.step()`.
"""

import copy
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from glmforge.errors import ConfigError
from glmforge.models.dtypes import DTYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """AdamW (Loshchilov and Hutter, arXiv 1711.05101) with decoupled weight decay."""

    learning_rate: float
    betas: tuple[float, float]
    epsilon: float
    weight_decay: float
    lora_b_ratio: float = 1.0
    """Learning rate of the lora_B matrices as a multiple of `learning_rate` (LoRA+)."""
    eight_bit: bool = False
    """Keep both moments in 8 bits (bitsandbytes)."""


def pick_precision(wanted: str, device: torch.device) -> str:
    """Resolve "auto": bf16 where the GPU computes it, fp16 on older GPUs, fp32 on the CPU.

    Raises:
        ConfigError: the device cannot compute in the wanted precision.
    """
    if device.type == "cpu":
        if wanted == "fp16":
            raise ConfigError(
                "training.precision is fp16, but this run is on the CPU, where DeepSpeed refuses "
                "fp16: write training.precision=fp32 (or auto), or run on a GPU"
            )
        return "fp32" if wanted == "auto" else wanted
    major, minor = torch.cuda.get_device_capability(device)
    has_bf16 = major >= 8
    if wanted == "auto":
        return "bf16" if has_bf16 else "fp16"
    if wanted == "bf16" and not has_bf16:
        raise ConfigError(
            f"training.precision is bf16, but {torch.cuda.get_device_name(device)} has compute "
            f"capability {major}.{minor} and bf16 needs 8.0: write training.precision=fp16"
        )
    return wanted


def torch_dtype(precision: str) -> torch.dtype:
    """Return the dtype of the weights that a precision computes with."""
    return DTYPES[precision]


def parameter_groups(model: nn.Module, settings: OptimizerSettings) -> list[dict[str, Any]]:
    """Return AdamW's groups of the trainable parameters.

    Norms and biases (1-D) are not decayed. With LoRA+ (Hayou et al., arXiv 2402.12354) lora_B and
    1-D parameters learn at a multiple of the rate, as in PEFT's `create_loraplus_optimizer`; the
    multiple stays in the group as ``rate_ratio``, which `set_learning_rate` applies.
    """
    found: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_vector = len(getattr(parameter, "ds_shape", parameter.shape)) < 2
            ratio = settings.lora_b_ratio if is_vector or "lora_B" in name else 1.0
            found.setdefault((is_vector, ratio), []).append(parameter)
    return [
        {
            "params": parameters,
            "weight_decay": 0.0 if is_vector else settings.weight_decay,
            "lr": settings.learning_rate * ratio,
            "rate_ratio": ratio,
        }
        for (is_vector, ratio), parameters in sorted(found.items(), key=lambda item: item[0])
    ]


def build_optimizer(
    model: nn.Module, settings: OptimizerSettings, *, offload: bool
) -> torch.optim.Optimizer:
    """Return AdamW over the trainable parameters.

    The optimizer is built here and not by DeepSpeed, which would compile its own on the spot; only
    offloaded states need DeepSpeed's CPU Adam.
    """
    groups = parameter_groups(model, settings)
    options: dict[str, Any] = {"betas": settings.betas, "eps": settings.epsilon}
    if offload:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        try:
            return DeepSpeedCPUAdam(groups, adamw_mode=True, **options)
        except RuntimeError as error:
            if "cpu_adam" not in str(error):
                raise
            raise ConfigError(
                "deepspeed.zero_optimization.offload_optimizer: DeepSpeed's CPU Adam could not be "
                f"built here ({str(error.__cause__).splitlines()[0]}; the compiler's lines are "
                "above): glmforge doctor CONFIG says what is missing, or remove offload_optimizer"
            ) from error
    if settings.eight_bit:
        from bitsandbytes.optim import AdamW8bit

        return AdamW8bit(groups, **options)
    on_gpu = groups[0]["params"][0].device.type == "cuda"
    return torch.optim.AdamW(groups, fused=on_gpu, **options)


def cpu_adam_problem() -> str | None:
    """Return why DeepSpeed's CPU Adam cannot be had here, or None where it is built or can be."""
    from deepspeed.git_version_info import installed_ops

    if installed_ops.get("cpu_adam") or shutil.which("ninja") is not None:
        return None
    return (
        "deepspeed.zero_optimization.offload_optimizer needs DeepSpeed's CPU Adam, which is built "
        "at first use by a C++ compiler and ninja, and no ninja is on the PATH: activate the "
        "environment that has it (pip install ninja), or remove offload_optimizer"
    )


def catch_up_cpu_adam(engine: Any) -> None:
    """Let DeepSpeed's CPU Adam count the updates that a loaded checkpoint has behind it.

    Its native part holds beta^t as the fp32 product of t factors, or pow(beta, t) where steps are
    left out (DeepSpeed 0.19.8, csrc/includes/cpu_adam.h): another rounding, and another run. As
    many updates of nothing give the product.
    """
    optimizer = getattr(engine.optimizer, "optimizer", None)
    native = getattr(optimizer, "ds_opt_adam", None)
    if optimizer is None or native is None:
        return
    done = max((int(state["step"]) for state in optimizer.state.values() if state), default=0)
    group, nothing = optimizer.param_groups[0], [torch.empty(0) for _ in range(4)]
    for step in range(1, done + 1):
        native.adam_update(
            optimizer.opt_id, step, 0.0, *group["betas"], group["eps"], 0.0, True, *nothing
        )


def build_engine(model: nn.Module, config: Mapping[str, Any], settings: OptimizerSettings) -> Any:
    """Wrap `model` in a DeepSpeed engine.

    Args:
        model: on its device, in its training dtype, gradients required where trained.
        config: the whole DeepSpeed config (``plan.deepspeed_config.write_config``).
        settings: the optimizer's.

    Raises:
        ConfigError: DeepSpeed refuses a setting.
    """
    import deepspeed

    check_engine_config(config)
    zero = config["zero_optimization"]
    offload = (zero.get("offload_optimizer") or {}).get("device", "none") != "none"
    optimizer = build_optimizer(model, settings, offload=offload)
    if zero.get("stage") == 3:
        gather_dora_layers_whole(model)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        config=dict(config),
        dist_init_required=False,
    )
    return engine


def gather_dora_layers_whole(model: nn.Module) -> None:
    """Let ZeRO-3 gather a DoRA layer's weights together.

    DoRA reads A's shape outside of A's own forward, where A may be divided: after a checkpoint was
    loaded it is, when a layer is computed again for its gradients.
    """
    from deepspeed.utils import set_z3_leaf_modules
    from peft.tuners.lora import Linear

    if any(isinstance(m, Linear) and any(m.use_dora.values()) for m in model.modules()):
        set_z3_leaf_modules(model, [Linear])


def check_engine_config(config: Mapping[str, Any]) -> None:
    """Let DeepSpeed read the config, and name what it refuses as a setting, not as a crash.

    Raises:
        ConfigError: with DeepSpeed's own words.
    """
    from deepspeed.runtime.config import DeepSpeedConfig, DeepSpeedConfigError

    try:
        DeepSpeedConfig(copy.deepcopy(dict(config)))
    except (DeepSpeedConfigError, ValueError, TypeError, AssertionError) as error:
        raise ConfigError(
            f"deepspeed: DeepSpeed refuses this run's config ({error}): correct the setting in the "
            "deepspeed map, or leave it out"
        ) from error


@contextmanager
def own_optimizer_settings(engine: Any) -> Iterator[None]:
    """Keep each parameter group's settings and step count its own while a checkpoint is loaded.

    DeepSpeed 0.19.8 loads ZeRO-3's universal form with the first group's settings in every group
    (norms and biases would be decayed) and with one step-count tensor shared by all groups (each
    update would count it several times); tests/dist holds both.
    """
    optimizer = getattr(engine.optimizer, "optimizer", engine.optimizer)
    kept = [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    yield
    for group, settings in zip(optimizer.param_groups, kept, strict=True):
        group.update(settings)
    for state in optimizer.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].clone()


def set_learning_rate(engine: Any, rate: float) -> None:
    """Give the next update this learning rate (LoRA+: lora_B a multiple of it)."""
    for group in engine.optimizer.param_groups:
        group["lr"] = rate * group.get("rate_ratio", 1.0)


def local_gradient_norm(engine: Any) -> float | None:
    """Return the gradient norm before an update at stage 0 in fp32, else None.

    DeepSpeed reports the norm after the update (`reported_norm`) except there, where the gradients
    are already averaged over ranks and lie in `.grad`.
    """
    plain = engine.zero_optimization_stage() == 0 and not (
        engine.bfloat16_enabled() or engine.fp16_enabled()
    )
    if not plain:
        return None
    gradients = [p.grad for p in engine.module.parameters() if p.grad is not None]
    # In fp64: a CPU's fp32 sum over millions of squares is off in the fifth digit.
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in gradients]
    return float(torch.linalg.vector_norm(torch.stack(norms)))


def reported_norm(engine: Any) -> float:
    """Return the gradient norm before clipping that the engine kept from its last update."""
    norm = engine.get_global_grad_norm()
    return float("nan") if norm is None else float(norm)


def loss_scale(engine: Any) -> float:
    """Return the loss scale of the next update: 1 unless in fp16."""
    return float(engine.optimizer.cur_scale) if engine.fp16_enabled() else 1.0
