"""What configurations with ``"model_type": "chatglm"`` share: recognition and the form on disk.

Owns `ChatGLMConfig`, the one class registered with transformers for that model_type. It is never
instantiated itself: construction and `from_dict` return the subclass of the family that
families.py recognises (`ChatGLM6BConfig` or `ChatGLM2Config`). The keys of config.json stay the
vendor's own (``torch_dtype`` included); transformers' names are attribute aliases.
"""

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from transformers import PreTrainedConfig

from glmforge.errors import ModelError
from glmforge.models.config_values import (
    ROTARY_KEYS,
    foreign_rotary_keys,
    out_of_range,
    wrong_values,
)
from glmforge.models.families import FAMILY_KEY, FamilyDecision, decide_family

_PRIVATE = ("_decision", "_origin", "_given_aliases", "_code_names")
# Keys that name files of code. The Auto classes and pipelines run what a configuration shows them
# there; ours keeps the keys for config.json and shows nothing.
_CODE_KEYS = ("auto_map", "custom_pipelines")

_QUANTISE = "optionally loaded in 4 bit by bitsandbytes, and quantise afterwards"


class ChatGLMConfig(PreTrainedConfig):
    """Configuration of a ChatGLM model of any generation, keys as on the hub.

    Raises:
        ModelError: the keys are of no known generation, or ask for what no published model has.
    """

    model_type = "chatglm"
    # What AutoTokenizer opens where tokenizer_config.json names no class (tokenizers.py).
    tokenizer_class: ClassVar[str] = "ChatGLMTokenizer"
    families: ClassVar[tuple[str, ...]] = ()
    fixed_values: ClassVar[Mapping[str, Any]] = {}

    def __new__(cls, *args: Any, **keys: Any) -> Self:
        """Make an instance of the subclass that the keys are of."""
        if cls is ChatGLMConfig and keys:
            return object.__new__(cls._subclass_for(keys))
        return object.__new__(cls)

    def __post_init__(self, **kwargs: Any) -> None:
        if type(self) is ChatGLMConfig:
            raise ModelError(
                "ChatGLMConfig stands for several generations and has no defaults of its own: open "
                "a config.json with AutoConfig.from_pretrained(directory), pass its keys, or use "
                "ChatGLM6BConfig or ChatGLM2Config"
            )
        origin = str(kwargs.get("_name_or_path") or "")
        directory = str(kwargs.get("name_or_path") or "")
        self._check_kinds(kwargs, directory)
        aliases = {key: kwargs[key] for key in self.attribute_map if key in kwargs}
        code_names = {key: kwargs.pop(key) for key in _CODE_KEYS if key in kwargs}
        # transformers would turn some of them into others.
        rotary = {key: kwargs.pop(key) for key in ROTARY_KEYS if key in kwargs}
        super().__post_init__(**kwargs)
        self._code_names = code_names
        self._origin = origin
        self._given_aliases = tuple(aliases)
        keys = {**self.__dict__, "model_type": "chatglm", "_name_or_path": origin}
        keys["transformers_version"] = kwargs.get("transformers_version", self.transformers_version)
        self._decision = decide_family(keys, directory)
        self._check_values(_file_in(directory), rotary)

    @classmethod
    def _subclass_for(cls, keys: Mapping[str, Any]) -> type["ChatGLMConfig"]:
        refuse_vendor_export(keys)
        family = decide_family(keys, str(keys.get("name_or_path") or "")).family
        for subclass in cls.__subclasses__():
            if family.name in subclass.families:
                return subclass
        raise ModelError(
            f"{FAMILY_KEY} is {family.name!r}, which is not stored with model_type 'chatglm'"
        )

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build the configuration of the family that the keys are of."""
        if cls is not ChatGLMConfig:
            return super().from_dict(config_dict, **kwargs)
        named = {"name_or_path": kwargs.get("name_or_path"), **config_dict}
        return cls._subclass_for(named).from_dict(config_dict, **kwargs)

    def _check_kinds(self, others: Mapping[str, Any], directory: str) -> None:
        """Refuse values that no arithmetic can use, under the vendor's names and the aliases."""
        where = _file_in(directory)
        kinds: dict[str, Any] = {}
        for own in reversed(type(self).mro()):
            if issubclass(own, ChatGLMConfig):
                kinds |= inspect.get_annotations(own)
        problems = wrong_values(self.__dict__, kinds, where)
        aliases = {key: kinds[own] for key, own in self.attribute_map.items()}
        problems += wrong_values(others, aliases, where)
        dtype = others.get("torch_dtype") or self.dtype
        if dtype is not None and not _is_dtype(dtype):
            problems.append(
                f"{where}: torch_dtype is {dtype!r}, which torch does not know; write float16, "
                "bfloat16 or float32"
            )
        problems += [
            f"{where}: {key} is no key of a configuration; remove it"
            for key in others
            if isinstance(found := getattr(type(self), key, None), property) and not found.fset
        ]
        if problems:
            raise ModelError(problems)

    def _check_values(self, where: str, rotary: Mapping[str, Any]) -> None:
        problems = [
            f"{where}: {key} is {getattr(self, key)!r}; every published model of this family has "
            f"{value!r}, and nothing else is supported"
            for key, value in self.fixed_values.items()
            if getattr(self, key, value) != value
        ]
        problems += out_of_range(self.__dict__, where)
        problems += foreign_rotary_keys(rotary, getattr(self, "rope_base", 10000.0), where)
        groups = getattr(self, "multi_query_group_num", 1)
        if self.num_attention_heads % groups:
            problems.append(
                f"{where}: num_attention_heads {self.num_attention_heads} is no multiple of "
                f"multi_query_group_num {groups}"
            )
        if problems:
            raise ModelError(problems)

    @property
    def family(self) -> str:
        """The name of the family's row in families.py."""
        return self._decision.family.name

    @property
    def family_decision(self) -> FamilyDecision:
        """The family and the sentence that says how it was recognised."""
        return self._decision

    def to_dict(self) -> dict[str, Any]:
        """Return all keys as the vendor writes them."""
        return self._vendor_form(super().to_dict())

    def to_diff_dict(self) -> dict[str, Any]:
        """Return the keys that go into config.json."""
        keys = super().to_diff_dict()
        # The vendor's files and code call it torch_dtype; transformers 5 reads both names.
        if keys.get("dtype") is not None:
            keys["torch_dtype"] = keys["dtype"]
        keys.pop("dtype", None)
        # transformers writes the class that was saved; the vendor's code, and what reads it
        # elsewhere, goes by this one name in all generations.
        keys["architectures"] = ["ChatGLMModel"]
        return self._vendor_form(keys)

    def _vendor_form(self, keys: dict[str, Any]) -> dict[str, Any]:
        for name in _PRIVATE:
            keys.pop(name, None)
        for alias in self._given_aliases:
            keys[alias] = getattr(self, alias)
        keys.update(self._code_names)
        if self._origin:
            keys["_name_or_path"] = self._origin
        keys.pop(FAMILY_KEY, None)
        if decide_family({**keys, FAMILY_KEY: None}).family.name != self.family:
            keys[FAMILY_KEY] = self.family
        return keys


def _file_in(directory: str) -> str:
    return f"{directory}/config.json" if directory else "config.json"


def _is_dtype(value: Any) -> bool:
    known = getattr(torch, value, None) if isinstance(value, str) else value
    return isinstance(known, torch.dtype)


def refuse_vendor_export(keys: Mapping[str, Any]) -> None:
    """Refuse the keys of a quantised export, before anything else is asked of them.

    Raises:
        ModelError: ``quantization_bit`` (the vendor's int4 and int8) or ``quantization_config``
            (gptq, awq, bitsandbytes and others) is set.
    """
    where = _file_in(str(keys.get("name_or_path") or ""))
    if bits := keys.get("quantization_bit"):
        raise ModelError(
            f"{where}: quantization_bit is {bits}: this is an int{bits} "
            "export, and its packed weights can be neither trained nor merged into; "
            f"train on the 16-bit base (the model of the same name without -int{bits}), {_QUANTISE}"
        )
    if settings := keys.get("quantization_config"):
        method = settings.get("quant_method") if isinstance(settings, Mapping) else settings
        raise ModelError(
            f"{where}: quantization_config is of {method or 'an unnamed method'}: this is a "
            "quantised export, and its packed weights can be neither trained nor merged into; "
            f"train on the 16-bit base it was made from, {_QUANTISE}"
        )
