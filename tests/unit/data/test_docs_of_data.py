"""docs/data.md: its examples are what training sees, and its commands run."""

import re
import shlex

import pytest
from typer.testing import CliRunner

from glmforge.cli.main import app
from glmforge.data import Example, encode_rows
from glmforge.data.preview import Pieces
from small_models import TINY_MODEL

TALK = [
    {"role": "user", "content": "你好"},
    {"role": "assistant", "content": "你好，请讲。"},
    {"role": "user", "content": "再见"},
    {"role": "assistant", "content": "再见。"},
]
CALL = [
    {"role": "user", "content": "杭州天气"},
    {"role": "assistant", "metadata": "get_weather", "content": '{"city": "杭州"}'},
    {"role": "observation", "content": '{"temp": 20}'},
    {"role": "assistant", "content": "二十度。"},
]


@pytest.fixture(scope="module")
def page(request):
    return (request.config.rootpath / "docs/data.md").read_text(encoding="utf-8")


def plain(text):
    """Without what Markdown and a tokenizer's blanks and widths add."""
    return text.replace("\\", "").replace(" ", "").replace("，", ",").replace("：", ":")


def shown(tokenizer, ids, labels):
    """A row as the page writes it: trained runs in asterisks, newlines as ⏎."""
    import numpy as np

    example = Example(input_ids=np.int32(ids), labels=np.int32(labels), source="")
    text, bold = "", False
    for token in Pieces(tokenizer).of(example):
        if token.trained != bold:
            text, bold = f"{text}**", token.trained
        text += token.text.replace("\n", "⏎")
    return plain(text + "**" * bold)


def examples_under(page, title):
    part = page.split(f"**{title}**", 1)[1]
    part = re.split(r"\n\n(?:\*\*|These two|Templates that)", part, maxsplit=1)[0]
    return [plain(line[2:]) for line in part.splitlines() if line.startswith("> ")]


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("ChatGLM3", "chatglm3-6b"),
        ("GLM-4", "glm-4-9b-chat"),
        ("ChatGLM2", "chatglm2-6b"),
        ("ChatGLM-6B", "chatglm-6b"),
    ],
)
def test_the_worked_example_of_a_family_is_what_training_sees(page, real_tokenizer, title, name):
    tokenizer = real_tokenizer(name)
    rows = [shown(tokenizer, *row) for row in encode_rows(TALK, tokenizer)]
    assert examples_under(page, title)[: len(rows)] == rows
    if name == "glm-4-9b-chat":
        ((ids, labels),) = encode_rows(CALL, tokenizer)
        *_, tools = examples_under(page, title)
        assert shown(tokenizer, ids, labels).endswith(tools.removeprefix("…"))


def test_the_worked_examples_of_other_models_are_what_training_sees(page):
    from test_chat_template import CHATML, OPENS_THINKING, tokenizer_with

    chatml = tokenizer_with(CHATML)
    ((ids, labels),) = encode_rows(TALK, chatml)
    assert plain(bytes_shown(chatml, ids, labels)) in plain(page)
    z1 = tokenizer_with(OPENS_THINKING, eos="<|user|>")
    ((ids, labels),) = encode_rows([TALK[0], {**TALK[1], "reasoning_content": "想一想"}], z1)
    assert plain(bytes_shown(z1, ids, labels)) in plain(page)


def bytes_shown(tokenizer, ids, labels):
    """As ``shown``, for a tokenizer of single bytes."""
    runs = []
    for token, label in zip(ids, labels):
        if not runs or runs[-1][0] != (label != -100):
            runs.append((label != -100, []))
        runs[-1][1].append(token)
    texts = ((trained, tokenizer.decode(run)) for trained, run in runs)
    return "".join(f"**{t}**" if trained else t for trained, t in texts).replace("\n", "⏎")


def test_every_command_and_program_of_the_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = str(TINY_MODEL)
    (tmp_path / "run.yaml").write_text(
        f"model: {{model_name_or_path: {model}}}\n"
        "data: {train: train.jsonl, max_length: 512}\ntraining: {output_dir: out}\n",
        encoding="utf-8",
    )
    names = {}
    commands = 0
    for kind, block in re.findall(r"```(\w+)\n(.*?)```", page, flags=re.DOTALL):
        block = block.replace("path/to/chatglm3-6b", model)
        if kind == "python":
            exec(block, names)
            continue
        for line in block.splitlines():
            program, *arguments = shlex.split(line)
            assert program == "glmforge"
            done = CliRunner().invoke(app, arguments, catch_exceptions=False)
            assert done.exit_code == 0, done.output
            commands += 1
    assert commands >= 4
    assert (tmp_path / "rows.html").is_file()
    assert len(names["rows"]) == 1
