"""What the vendor's own code expects of a directory beyond weights under its names.

Owns three things that our classes do not need and exports in the chatglm layout carry: the rotary
``inv_freq`` buffers of the state dict, the vendor's tokenizer_config.json, and a `tokenizer.model`
rebuilt from the tokenizer.json of a directory in transformers' layout.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glmforge.errors import ModelError
from glmforge.models.glm.tokenization_tiktoken import letter_bytes
from glmforge.models.rotary import rotary_frequencies

_KEPT_OF_ALL = ("padding_side", "model_max_length")
_KEPT: dict[str, tuple[str, ...]] = {
    "chatglm": ("bos_token", "eos_token", "mask_token", "pad_token", "unk_token",
                "num_image_tokens"),
    "glm4": ("eos_token", "pad_token", "added_tokens_decoder", "clean_up_tokenization_spaces"),
}  # fmt: skip


def rotary_buffers(config: Any, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the ``inv_freq`` buffers of a chatglm checkpoint, as its code computes them.

    The later code keeps one of base 10000 and applies rope_ratio at run time; ChatGLM-6B keeps
    one a layer, rounded to half precision.
    """
    cpu = torch.device("cpu")
    if config.family == "chatglm":
        width = config.hidden_size // config.num_attention_heads
        rotated = width // 2 if config.position_encoding_2d else width
        values = rotary_frequencies(rotated, 10000.0, cpu).half().to(dtype)
        return {
            f"transformer.layers.{layer}.attention.rotary_emb.inv_freq": values.clone()
            for layer in range(config.num_layers)
        }
    values = rotary_frequencies(config.kv_channels // 2, 10000.0, cpu).to(dtype)
    return {"transformer.rotary_pos_emb.inv_freq": values}


def write_vendor_settings(tokenizer: Any, directory: Path, name: str) -> None:
    """Rewrite the settings that a tokenizer of ours has saved, in the vendor's words.

    The class is named as on the hub; ``auto_map`` names the vendor's file of code, which the
    vendor's loading needs and ours never runs.

    Args:
        tokenizer: the tokenizer that was saved there.
        directory: where.
        name: hub id of the original model.
    """
    path = directory / "tokenizer_config.json"
    saved = json.loads(path.read_text(encoding="utf-8"))
    family = tokenizer.family
    class_name = "ChatGLM4Tokenizer" if family == "glm4" else "ChatGLMTokenizer"
    settings: dict[str, Any] = {
        "name_or_path": name,
        "remove_space": False,
        "do_lower_case": False,
        "tokenizer_class": class_name,
        "auto_map": {"AutoTokenizer": [f"tokenization_chatglm.{class_name}", None]},
    }
    kept = (*_KEPT_OF_ALL, *_KEPT.get(family, ()))
    settings |= {key: saved[key] for key in kept if key in saved}
    if family == "chatglm":
        settings |= {"end_token": "</s>", "gmask_token": "[gMASK]"}
    if family == "glm4":
        settings["additional_special_tokens"] = [
            token["content"] for token in saved["added_tokens_decoder"].values() if token["special"]
        ]
        if tokenizer.chat_template:
            settings["chat_template"] = tokenizer.chat_template
    users = set(tokenizer.get_added_vocab()) - set(tokenizer.control_ids)
    if users and family != "glm4":
        settings["added_tokens_decoder"] = {
            index: token
            for index, token in saved["added_tokens_decoder"].items()
            if token["content"] in users
        }
    path.write_text(json.dumps(settings, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    # Their content is in the settings now, where the vendor's version of transformers reads it.
    for name in ("added_tokens.json", "special_tokens_map.json", "chat_template.jinja"):
        (directory / name).unlink(missing_ok=True)


def rebuild_vocabulary(stock: Any, family: str, path: Path) -> None:
    """Write the original's `tokenizer.model` from the vocabulary of a fast tokenizer.

    Args:
        stock: the tokenizer of a directory in transformers' layout.
        family: name of the original's row in the family table.
        path: the file to write.

    Raises:
        ModelError: the tokenizer has no form there.
    """
    engine = json.loads(stock.backend_tokenizer.to_str())["model"]
    added = {index for index in stock.get_added_vocab().values() if index > 2}
    plain = {token: index for token, index in engine["vocab"].items() if index not in added}
    pieces = sorted(plain, key=plain.__getitem__)
    if family == "glm4":
        made = _ranks(pieces, plain)
    else:
        made = _sentencepiece(pieces[: stock.convert_tokens_to_ids("[MASK]")], engine)
    if made is None:
        raise ModelError(
            f"{stock.name_or_path or 'the tokenizer'}: {path.name} cannot be made from this "
            "tokenizer.json; copy tokenizer.model and tokenizer_config.json from the original model"
        )
    path.write_bytes(made)


def _ranks(tokens: Sequence[str], ids: Mapping[str, int]) -> bytes | None:
    """Return a tiktoken file, None where ids are no ranks of byte sequences."""
    bytes_of = letter_bytes()
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        return None
    if not all(letter in bytes_of for token in tokens for letter in token):
        return None
    return b"".join(
        base64.b64encode(bytes(bytes_of[letter] for letter in token)) + b" %d\n" % rank
        for rank, token in enumerate(tokens)
    )


def _sentencepiece(pieces: Sequence[str], engine: Mapping[str, Any]) -> bytes | None:
    """Return a SentencePiece BPE, None where the vocabulary was not made from one by us."""
    from sentencepiece import sentencepiece_model_pb2

    if not engine.get("byte_fallback") or list(pieces[:3]) != ["<unk>", "<s>", "</s>"]:
        return None
    proto = sentencepiece_model_pb2.ModelProto()
    kind = proto.SentencePiece
    kinds = {"<unk>": kind.UNKNOWN, "<s>": kind.CONTROL, "</s>": kind.CONTROL}
    kinds |= {f"<0x{byte:02X}>": kind.BYTE for byte in range(256)}
    # Merges are applied best result first: the order of the list is all that scores are for.
    ranks: dict[str, int] = {}
    for merge in engine["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        ranks.setdefault(left + right, len(ranks))
    for piece in pieces:
        score = 0.0 if piece in kinds else -float(ranks.get(piece, len(ranks)))
        proto.pieces.add(piece=piece, score=score, type=kinds.get(piece, kind.NORMAL))
    proto.trainer_spec.model_type = proto.trainer_spec.BPE
    proto.trainer_spec.byte_fallback = True
    proto.trainer_spec.vocab_size = len(pieces)
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = True
    proto.normalizer_spec.remove_extra_whitespaces = False
    return proto.SerializeToString()
