"""The models that answer: one base loaded once, adapters beside it, switched without loading.

Owns which weights a path means, the names that people and requests call them by, and the lock-free
rule that only one answer is generated at a time (the callers hold it: the terminal has one user,
the server one worker). What is generated, and how, is in ``replies``.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import set_peft_model_state_dict

from glmforge.adapters import open_adapter, read_adapter, zero_notes
from glmforge.bin_files import refuse_not_finite
from glmforge.errors import ModelError, UsageError
from glmforge.export.base_print import check_base
from glmforge.export.sources import find_source
from glmforge.models import load_config, load_model, load_tokenizer
from glmforge.models.families import family_of, family_of_tokenizer

BASE = "base"
_FIRST = "default"  # what PEFT calls an adapter that was given no name
_WITH_HEADER = ("chatglm3", "glm4", "glm4-0414")


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Directories: of the model, and of each adapter by the name that it answers to."""

    model: Path
    adapters: Mapping[str, Path]


class OpenModels:
    """A base with its adapters, ready to answer under their names."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        inner_names: Mapping[str, str],
        notes: Sequence[str] = (),
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.notes = tuple(notes)  # what people should be told of these models
        self._inner_names = dict(inner_names)

    @property
    def names(self) -> tuple[str, ...]:
        """``base`` and the adapters' names."""
        return (BASE, *self._inner_names)

    @property
    def positions(self) -> int:
        """The longest prompt and answer together, tokens; 0 where the model does not say."""
        return int(getattr(self.model.config, "max_position_embeddings", 0) or 0)

    @property
    def writes_header(self) -> bool:
        """Whether an answer begins with the line that names a tool (empty for plain answers)."""
        template = family_of_tokenizer(self.tokenizer).template
        return template in _WITH_HEADER or family_of(self.model.config).template in _WITH_HEADER

    @contextmanager
    def using(self, name: str) -> Iterator[Any]:
        """Give the model as `name` has it, until the block ends."""
        assert name in self.names, name
        if not self._inner_names:
            yield self.model
        elif name == BASE:
            with self.model.disable_adapter():
                yield self.model
        else:
            self.model.set_adapter(self._inner_names[name])
            yield self.model


def find_paths(model: Path, adapters: Sequence[tuple[str | None, Path]]) -> Paths:
    """Return what to load for a model directory, or for a run or checkpoint with its adapter.

    Args:
        model: a model directory; where no adapter is given, also a run, a checkpoint or an adapter.
        adapters: (name or None, directory) of each; a missing name is the directory's own.

    Raises:
        ExportError: there is no model at the path, or the adapter's base is not found.
        UsageError: two adapters have one name, or weights are in shards.
    """
    if not adapters and model.is_dir() and not (model / "config.json").is_file():
        found = find_source(model, None)
        if found.shards is not None:
            raise UsageError(
                f"{model}: whole weights in shards: glmforge export {model} OUT first, then give "
                "OUT"
            )
        if found.adapter is None:
            return Paths(model=found.model, adapters={})
        return Paths(model=found.model, adapters={_own_name(model): found.adapter})
    named: dict[str, Path] = {}
    for given, path in adapters:
        name = given or _own_name(path)
        if name in named or name == BASE:
            raise UsageError(
                f"--adapter {path}: the name {name!r} is taken; give another as --adapter "
                f"NAME={path}"
            )
        inner = path / "adapter"
        has_own = (path / "adapter_config.json").is_file()
        named[name] = inner if not has_own and inner.is_dir() else path
    return Paths(model=model, adapters=named)


def refuse_beyond(paths: Paths, option: str, tokens: int | None, *, beside: int = 0) -> None:
    """Refuse an option that asks for more tokens than a model has positions, before it is loaded.

    Args:
        paths: the model.
        option: as it is written on the command line.
        tokens: its value; None where it was not given.
        beside: tokens that must fit besides.

    Raises:
        UsageError: names the option and what would fit.
    """
    positions = getattr(load_config(paths.model), "max_position_embeddings", None)
    if tokens is not None and positions and tokens > positions - beside:
        raise UsageError(
            f"{option} {tokens}: {paths.model} has {positions} positions for prompt and answer "
            f"together; give {positions - beside} or less"
        )


def _own_name(path: Path) -> str:
    """The last part of a path that says something: ``runs/first/adapter`` is "first"."""
    parts = [part for part in path.resolve().parts if part not in ("adapter", "model")]
    name = parts[-1]
    return "tuned" if name == BASE else name


def open_models(paths: Paths) -> OpenModels:
    """Load the base and put every adapter beside it, on the GPU in bf16 where there is one.

    Raises:
        ModelError, AdapterError: a directory that cannot be opened, weights that hold NaN, an
            adapter that does not fit or was trained on another base.
    """
    adapters = list(paths.adapters.items())
    checked = [check_base(directory, paths.model).note for _, directory in adapters]
    on_gpu = torch.cuda.is_available()
    model = load_model(
        paths.model,
        dtype=torch.bfloat16 if on_gpu else torch.float32,
        device=torch.device("cuda" if on_gpu else "cpu"),
    )
    refuse_not_finite(model.named_parameters(), paths.model, ModelError)
    tokenizer = load_tokenizer(paths.model)
    if not adapters:
        return OpenModels(model.eval(), tokenizer, {})
    for _, directory in adapters[1:]:
        # Alone on the base an adapter is counted tensor by tensor; it is taken off again.
        model = open_adapter(model, directory).unload()
    wrapped: Any = open_adapter(model, adapters[0][1])
    inner_names = {adapters[0][0]: _FIRST}
    notes = [note for note in checked if note is not None]
    notes += zero_notes(read_adapter(adapters[0][1]), adapters[0][0])
    for number, (name, directory) in enumerate(adapters[1:], 1):
        files = read_adapter(directory)
        notes += zero_notes(files, name)
        files.config.inference_mode = True
        inner_names[name] = f"adapter{number}"  # PEFT's own names cannot hold a dot
        wrapped.add_adapter(inner_names[name], files.config, autocast_adapter_dtype=False)
        set_peft_model_state_dict(wrapped, dict(files.tensors), adapter_name=inner_names[name])
    return OpenModels(wrapped.eval(), tokenizer, inner_names, notes)
