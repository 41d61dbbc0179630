"""The fast tokenizer of stock transformers that gives a ChatGLM2/3 or GLM-4-9B tokenizer's ids.

Owns the translation of a vocabulary into Rust ``tokenizers`` (`stock_tokenizer`): SentencePiece
BPE or tiktoken ranks become a merge list, what stands around it a normaliser, a pre-tokenizer and
a post-processor. The chat templates beside it are in stock_templates.py. Used by exports in
transformers' layout; our own classes stay on the original engines.

Stock machinery finds control spellings in any text. To keep that small for ChatGLM2 and 3, only
the tokens that the templates need are found there, and ``sop`` is called ``<sop>``.
"""

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from glmforge.errors import ModelError
from glmforge.models.glm.tokenization_base import GLMTokenizer
from glmforge.models.glm.tokenization_sentencepiece import ChatGLM3Tokenizer, SentencePieceTokenizer
from glmforge.models.glm.tokenization_tiktoken import (
    PATTERN,
    ChatGLM4Tokenizer,
    byte_letters,
)
from glmforge.models.stock_templates import PART_BREAK, chat_template

_BLANK = "\u2581"
STOCK_NAMES = {"sop": "<sop>", "eop": "<eop>"}
"""Control tokens of ChatGLM2 and 3 that are called otherwise in the fast tokenizer."""
_ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")


def stock_tokenizer(tokenizer: Any) -> PreTrainedTokenizerFast:
    """Return a tokenizer without code of ours that gives the same ids, chat template included.

    Raises:
        ModelError: the tokenizer is of no family that transformers' own classes can serve, or its
            vocabulary uses what the Rust library has no word for.
    """
    if isinstance(tokenizer, ChatGLM4Tokenizer):
        engine, names = _from_ranks(tokenizer)
    elif isinstance(tokenizer, SentencePieceTokenizer):
        engine, names = _from_sentencepiece(tokenizer)
    else:
        raise ModelError(
            f"{type(tokenizer).__name__}: transformers has no tokenizer class that could give its "
            "ids; keep the chatglm layout"
        )
    engine.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    engine.add_tokens(_users_tokens(tokenizer))
    _check_ids(engine, tokenizer)
    start = ["[gMASK]", "<sop>"]
    prefix = [(name, engine.token_to_id(name)) for name in start]
    end = tokenizer.eos_token
    engine.post_processor = TemplateProcessing(
        single=[*start, "$A"],
        pair=[*start, "$A", "$B", end],
        special_tokens=[*prefix, (end, engine.token_to_id(end))],
    )
    stock = PreTrainedTokenizerFast(
        tokenizer_object=engine,
        eos_token=end,
        pad_token=tokenizer.pad_token,
        unk_token=tokenizer.unk_token,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        extra_special_tokens=[name for name in names if name not in (end, tokenizer.pad_token)],
    )
    stock.chat_template = chat_template(tokenizer)
    return stock


def _from_sentencepiece(tokenizer: SentencePieceTokenizer) -> tuple[Tokenizer, list[str]]:
    _check_sentencepiece(tokenizer)
    processor = tokenizer.sp_model
    pieces = [processor.id_to_piece(index) for index in range(processor.get_piece_size())]
    plain = {
        piece: index
        for index, piece in enumerate(pieces)
        if not (
            processor.is_byte(index) or processor.is_control(index) or processor.is_unknown(index)
        )
    }
    # Pieces are ranked by score; merges of one piece keep the order of their parts' ids.
    ranks = {piece: (-processor.get_score(index), index) for piece, index in plain.items()}
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    for name, index in tokenizer.control_ids.items():
        vocabulary[STOCK_NAMES.get(name, name)] = index
    engine = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges(plain, ranks),
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    # Every text begins with a blank piece, and so does what stands behind a part break.
    engine.normalizer = normalizers.Sequence(
        [
            normalizers.Prepend(_BLANK),
            normalizers.Replace(Regex(rf"{PART_BREAK}(?=[\s\S])"), PART_BREAK + _BLANK),
            normalizers.Replace(" ", _BLANK),
        ]
    )
    engine.pre_tokenizer = pre_tokenizers.Split(PART_BREAK, behavior="removed")
    engine.decoder = decoders.Sequence(
        [
            decoders.Replace(_BLANK, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    roles = _ROLES if isinstance(tokenizer, ChatGLM3Tokenizer) else ()
    return engine, ["<unk>", "</s>", "[gMASK]", "<sop>", *roles]


def _check_sentencepiece(tokenizer: SentencePieceTokenizer) -> None:
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(
        tokenizer.sp_model.serialized_model_proto()
    )
    kinds = {piece.type for piece in proto.pieces}
    kind = sentencepiece_model_pb2.ModelProto.SentencePiece
    unlike = {
        "is no BPE": proto.trainer_spec.model_type != proto.trainer_spec.BPE,
        "normalises text": bool(proto.normalizer_spec.precompiled_charsmap),
        "removes blanks": proto.normalizer_spec.remove_extra_whitespaces,
        "does not begin a text with a blank": not proto.normalizer_spec.add_dummy_prefix,
        "has no byte pieces": kind.BYTE not in kinds,
        "has pieces defined by the user": kind.USER_DEFINED in kinds,
    }
    problems = [
        f"{tokenizer.vocab_file}: this SentencePiece model {what}, unlike those of ChatGLM2 and 3, "
        "so its fast tokenizer would give other ids; keep the chatglm layout"
        for what, found in unlike.items()
        if found
    ]
    if problems:
        raise ModelError(problems)


def _from_ranks(tokenizer: ChatGLM4Tokenizer) -> tuple[Tokenizer, list[str]]:
    letters = byte_letters()
    plain = {
        "".join(letters[byte] for byte in token): rank for token, rank in tokenizer.ranks.items()
    }
    ranks = {token: (float(rank), rank) for token, rank in plain.items()}
    engine = Tokenizer(
        models.BPE(vocab=plain | tokenizer.control_ids, merges=_merges(plain, ranks),
                   ignore_merges=True)
    )  # fmt: skip
    engine.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    engine.decoder = decoders.ByteLevel()
    return engine, list(tokenizer.control_ids)


def _merges(plain: dict[str, int], ranks: dict[str, tuple[float, int]]) -> list[tuple[str, str]]:
    """Return every pair of pieces that makes a piece, best result first."""
    found = [
        (ranks[piece], plain[piece[:cut]], plain[piece[cut:]], piece[:cut], piece[cut:])
        for piece in plain
        for cut in range(1, len(piece))
        if piece[:cut] in plain and piece[cut:] in plain
    ]
    return [(left, right) for *_, left, right in sorted(found)]


def _users_tokens(tokenizer: GLMTokenizer) -> list[AddedToken]:
    known = set(tokenizer.control_ids) | {"<unk>", "</s>", "<s>"}
    added = sorted(tokenizer.added_tokens_decoder.items())
    return [token for _, token in added if token.content not in known]


def _check_ids(engine: Tokenizer, tokenizer: GLMTokenizer) -> None:
    problems = [
        f"token {token.content!r} has id {index} here and {found} in the fast tokenizer: its id is "
        "not the next free one; keep the chatglm layout"
        for index, token in tokenizer.added_tokens_decoder.items()
        if (found := engine.token_to_id(STOCK_NAMES.get(token.content, token.content))) != index
    ]
    if problems:
        raise ModelError(problems)
