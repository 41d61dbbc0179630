"""Small vocabularies in the file formats of the four generations, made here in a moment."""

import base64
import io
import json
from pathlib import Path

import sentencepiece

SENTENCES = [
    "您好，请问有什么可以帮您？我想查询一下我的订单。",
    "杭州的天气怎么样？今天是晴天，最高温度二十度。",
    "Hello, how can I help you today? The order number is 12345.",
    "def add(a, b):\n    return a + b",
] * 4
ICE_CONTROLS = ["[MASK]", "[gMASK]", "[sMASK]", "<unused_0>", "<sop>", "<eop>", "<ENC>", "<dBLOCK>"]
WORDS = [" the", "你", "好", "你好", "ab", "abc", "aa", "\n\n", "  "]
TOOLS_TEMPLATE = (
    "[gMASK]<sop>{% for m in messages %}{% if m['tools'] is defined %}<|system|>\nTools:"
    "{% for tool in m['tools'] %} {{ tool['type'] }} {{ tool['function'] | tojson }}{% endfor %}"
    "{% endif %}{% endfor %}"
)


def train(path: Path, **options) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=model, minloglevel=2, **options
    )
    path.write_bytes(model.getvalue())


def write_settings(directory: Path, class_name: str, **keys) -> None:
    auto_map = {"AutoTokenizer": [f"tokenization_chatglm.{class_name}", None]}
    settings = {"tokenizer_class": class_name, "auto_map": auto_map, **keys}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def write_bpe(directory: Path, name: str = "demo-chatglm3") -> Path:
    """ChatGLM2's and ChatGLM3's form."""
    train(
        directory / "tokenizer.model",
        vocab_size=400,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_by_whitespace=True,
    )
    write_settings(directory, "ChatGLMTokenizer", name_or_path=name)
    return directory


def write_unigram(directory: Path) -> Path:
    """ChatGLM-6B's form of today."""
    blanks = [f"<|blank_{length}|>" for length in range(2, 81)]
    train(
        directory / "ice_text.model",
        vocab_size=430,
        model_type="unigram",
        byte_fallback=True,
        pad_id=3,
        control_symbols=ICE_CONTROLS,
        user_defined_symbols=["<n>", "<|tab|>", *blanks],
        normalization_rule_name="nmt_nfkc",
        hard_vocab_limit=False,
    )
    write_settings(
        directory, "ChatGLMTokenizer", num_image_tokens=0, end_token="</s>", gmask_token="[gMASK]"
    )
    return directory


def write_ranks(directory: Path) -> Path:
    """GLM-4's form."""
    tokens = [bytes([byte]) for byte in range(256)]
    for word in WORDS:
        data = word.encode()
        tokens += [data[:end] for end in range(2, len(data) + 1) if data[:end] not in tokens]
    lines = [base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)]
    (directory / "tokenizer.model").write_bytes(b"".join(lines))
    write_settings(directory, "ChatGLM4Tokenizer", chat_template=TOOLS_TEMPLATE)
    return directory
