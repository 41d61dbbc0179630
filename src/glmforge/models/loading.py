"""Opens model directories: configuration and weights, with our code only.

Owns `load_config`, `load_model` and `new_model`. A directory's own .py files are never run, and
vendor int4/int8 exports are refused. Names, shapes and files are checked before anything is
loaded (weights.py); the loading itself is transformers', shard by shard.
"""

import copy
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.initialization import no_init_weights

from glmforge.errors import ModelError
from glmforge.models.configuration import refuse_vendor_export
from glmforge.models.dtypes import DTYPE_NAMES
from glmforge.models.families import family_of
from glmforge.models.foreign import attention_for, class_for
from glmforge.models.hub import resolve_directory
from glmforge.models.progress import no_progress_bars
from glmforge.models.registration import register_models
from glmforge.models.stops import complete_stops
from glmforge.models.weights import check_weights, fill, stored_tensors

# What a configuration class raises on a value of another kind than it expects.
_WRONG_VALUES = (ValueError, LookupError, TypeError, AttributeError, StrictDataclassError)

Attention = Literal["auto", "eager", "sdpa"]


def load_config(directory: str | Path) -> PreTrainedConfig:
    """Read config.json of a model directory (or of a hub model, which is then downloaded).

    Raises:
        ModelError: there is no config.json, its keys are of no known model, or it is of a
            vendor's int4/int8 export.
    """
    path = resolve_directory(directory)
    file = path / "config.json"
    if not file.is_file():
        raise ModelError(f"{path}: no config.json there; give the directory of a model")
    try:
        keys = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{file}: not valid JSON ({error}); download it again") from error
    if not isinstance(keys, dict):
        raise ModelError(f"{file}: expected a JSON object; download it again")
    if not isinstance(keys.get("model_type"), str):
        raise ModelError(
            f"{file}: model_type is {keys.get('model_type')!r}, so it is not known which model "
            'this is; ChatGLM of all generations has "model_type": "chatglm". Download the file '
            "again"
        )
    register_models()
    if keys["model_type"] not in CONFIG_MAPPING:
        raise ModelError(
            f"{file}: the installed transformers has no model_type {keys['model_type']!r}; code of "
            "a model directory is never run"
        )
    refuse_vendor_export({**keys, "name_or_path": str(path)})
    try:
        return AutoConfig.from_pretrained(str(path), trust_remote_code=False)
    except _WRONG_VALUES as error:
        first_line = (str(error).splitlines() or [""])[0]
        raise ModelError(
            f"{file}: transformers cannot read it ({type(error).__name__}: {first_line}); correct "
            "the value, or download the file again"
        ) from error


def new_model(config: PreTrainedConfig, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Build a model with random weights; the same torch seed gives the same weights."""
    register_models()
    config = copy.deepcopy(config)
    config._attn_implementation = attention_for(config, "auto")
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        model = class_for(config)(config)
    finally:
        torch.set_default_dtype(before)
    config.dtype = dtype
    return model


def unfilled_model(config: PreTrainedConfig, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Build a model whose weights hold anything, for `weights.fill` to write.

    Made for ZeRO-3: under ``deepspeed.zero.Init`` each rank keeps its part of each parameter, and
    `fill` reads the checkpoint tensor by tensor, so that no rank ever holds the whole model.
    """
    with no_init_weights():
        model = new_model(config, dtype)
    # Where weights are not initialised, heads are not tied either.
    model.tie_weights()
    return model


def load_model(
    directory: str | Path,
    dtype: torch.dtype | str | None = None,
    device: str | torch.device | None = None,
    attention: Attention = "auto",
    quantization: Any = None,
) -> PreTrainedModel:
    """Load a model in evaluation mode.

    Args:
        directory: config.json and weights (safetensors or .bin, single or sharded), or a hub id.
        dtype: of the weights, torch's or its name ("bfloat16", "bf16"); by default float32 on the
            CPU, the config's own elsewhere.
        device: by default the CPU.
        attention: ``eager`` is the slow oracle; ``auto`` picks the fastest kernel.
        quantization: transformers' ``BitsAndBytesConfig``, to load in 4 or 8 bit (CUDA).

    Raises:
        ModelError: the directory is incomplete or damaged, its tensors are not this model's, it is
            a vendor's int4/int8 export, or an argument is none of what it may be.
    """
    path = resolve_directory(directory)
    config = load_config(path)
    place = find_device("cpu" if device is None else device)
    if dtype is None:
        dtype = torch.float32 if place.type == "cpu" else config.dtype or torch.bfloat16
    dtype = DTYPE_NAMES.get(dtype, dtype) if isinstance(dtype, str) else dtype
    _check_options(dtype, attention)
    check_directory(path, config)
    with no_progress_bars():
        model, info = class_for(config).from_pretrained(
            str(path),
            config=config,
            dtype=dtype,
            attn_implementation=attention_for(config, attention),
            device_map=None if place.type == "cpu" else {"": place},
            quantization_config=quantization,
            output_loading_info=True,
            # Listed below; without this transformers stops at the first with an error of its own.
            ignore_mismatched_sizes=True,
        )
    _refuse_differences(path, info)
    return model.eval()


def find_device(name: str | torch.device) -> torch.device:
    """Return torch's device of a name.

    Raises:
        ModelError: torch knows no such device, or this machine has none.
    """
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ModelError(
            f"device {name!r}: torch knows no such device ({str(error).splitlines()[0]}); use "
            "'cpu', 'cuda' or 'cuda:0'"
        ) from error
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ModelError(
            f"device {name!r}: torch {torch.__version__} sees {count} CUDA devices here; use "
            "'cpu', or look with `glmforge doctor`"
        )
    return device


def _check_options(dtype: Any, attention: str) -> None:
    problems = []
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        problems.append(f"dtype {dtype!r}: use torch.float32, torch.bfloat16 or torch.float16")
    if attention not in get_args(Attention):
        problems.append(f"attention {attention!r}: use one of {', '.join(get_args(Attention))}")
    if problems:
        raise ModelError(problems)


def load_model_in_parts(
    directory: str | Path,
    dtype: torch.dtype,
    *,
    construction: AbstractContextManager[Any],
    assign: Callable[[torch.nn.Parameter, torch.Tensor], None],
) -> PreTrainedModel:
    """Load a model of which this process keeps a part only (ZeRO-3), in evaluation mode.

    The checkpoint is read tensor by tensor; at no time is the model whole in this process.

    Args:
        directory: as for `load_model`.
        dtype: of the weights.
        construction: what the model is built in; it decides what is kept of each parameter.
        assign: writes a stored tensor into what is kept of its parameter. Called for the same
            parameters in the same order on every rank.

    Raises:
        ModelError: as for `load_model`, or the model is of no family of the table, whose tensor
            names alone are known.
    """
    path = resolve_directory(directory)
    config = load_config(path)
    if not family_of(config).model_type:
        raise ModelError(
            f"{path}: model_type {config.model_type!r} is not in the family table, so that its "
            "tensors cannot be matched one by one; load it whole"
        )
    check_directory(path, config)
    with construction:
        model = unfilled_model(config, dtype)
    fill(model, path, assign)
    if (path / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(str(path))
    elif config.model_type == "chatglm":
        complete_stops(model, path, {})
    return model.eval()


def check_directory(path: Path, config: PreTrainedConfig) -> None:
    """Compare the weight files of a directory with its config.json, without loading them.

    Raises:
        ModelError: files are missing or torn, or tensors are missing, unexpected or mis-shaped.
    """
    table = stored_tensors(path)
    # transformers may rename the tensors of models outside the family table while loading.
    if family_of(config).model_type:
        config = copy.deepcopy(config)
        config._attn_implementation = attention_for(config, "auto")
        with torch.device("meta"):
            model = class_for(config)(config)
        check_weights(model, table, path)


def _refuse_differences(path: Path, info: dict[str, Any]) -> None:
    misshaped = [
        f"{name} {list(stored)} instead of {list(wanted)}"
        for name, stored, wanted in info["mismatched_keys"]
    ]
    problems = [
        f"{path}: {len(names)} tensors {what}: {', '.join(sorted(names))}"
        for what, names in (
            ("are missing", info["missing_keys"]),
            ("are not of this model", info["unexpected_keys"]),
            ("have another shape than config.json says", misshaped),
        )
        if names
    ]
    if problems:
        raise ModelError(problems)
