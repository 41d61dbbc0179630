"""Published faults of data (cases D02 to D14, L02, L04), every line of what is expected of them."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from glmforge.cli.data import app
from glmforge.data import Conversation, Example, Problem, build_examples, collate, encode_rows
from glmforge.data import read_conversations as read
from glmforge.data.preparing import PrepareSettings, prepare
from glmforge.data.sources import ReadOptions, iterate, load_examples
from glmforge.errors import DataError
from glmforge.models import load_config, new_model
from small_models import TINY_MODEL

FAMILIES = ["chatglm-6b", "chatglm2-6b", "chatglm3-6b", "glm-4-9b-chat"]
WITH_ROLES = FAMILIES[2:]


@pytest.fixture
def case(shared):
    return lambda name: shared / "cases" / name / "train.jsonl"


def check(path, *options):
    """Exit status, and the report as the command prints it for machines and for people."""
    call = ["check", str(path), *map(str, options)]
    told = CliRunner().invoke(app, call, catch_exceptions=False)
    values = CliRunner().invoke(app, [*call, "--json"], catch_exceptions=False)
    assert values.exit_code == told.exit_code
    assert all(line.isprintable() for line in told.output.splitlines())
    return told.exit_code, json.loads(values.output), told.output


def prepared(path, root, tokenizer, on_error="stop"):
    settings = PrepareSettings(max_length=512)
    return prepare(path, lambda: tokenizer, root, settings, on_error=on_error)


def trained_ids(labels):
    return [label for label in labels if label != -100]


def test_d02_line_ends_and_blank_lines(case, real_tokenizer):
    found = read(case("D02"))
    assert [c.source for c in found] == [f"train.jsonl:{line}" for line in (1, 2, 4, 7)]
    texts = [message.content for conversation in found for message in conversation.messages]
    assert not any(text.endswith("\r") for text in texts)
    assert texts[-1] == "山高\r\n水长"
    assert len(texts[-1]) == 6
    code, values, _ = check(case("D02"))
    assert (code, values["records"], values["rules"]) == (0, 4, {})
    for name in FAMILIES:
        assert load_examples(case("D02"), real_tokenizer(name), max_length=512).counts.rows == 4


def test_d04_a_gbk_line(case, real_tokenizer, tmp_path):
    code, values, told = check(case("D04"))
    assert (code, values["records"]) == (1, 3)
    for wanted in ("train.jsonl:3", "byte offset 320", "not UTF-8", "GBK", "`iconv -f GB18030"):
        assert wanted in told
    tokenizer = real_tokenizer("chatglm3-6b")
    with pytest.raises(DataError, match=r"train\.jsonl:3: the line is not UTF-8"):
        prepared(case("D04"), tmp_path, tokenizer)
    kept = prepared(case("D04"), tmp_path, tokenizer, on_error="skip")
    assert len(kept) == 2
    assert not any("\ufffd" in tokenizer.decode(row.input_ids.tolist()) for row in kept)


def test_d06_content_that_is_no_text(case, real_tokenizer):
    levels = {}
    for item in json.loads(json.dumps(check(case("D06"))[1]["problems"])):
        levels[int(item["source"].rsplit(":")[-1])] = (item["rule"], item["level"])
    assert levels == {
        2: ("empty-content", "error"),
        3: ("empty-content", "error"),
        4: ("not-text", "error"),
        5: ("missing-content", "error"),
        6: ("not-text", "error"),
        7: ("not-text", "error"),
        8: ("not-text", "error"),
        9: ("not-text", "error"),
        10: ("empty-content", "warning"),
        11: ("not-a-list", "error"),
        12: ("not-an-object", "error"),
    }
    code, values, _ = check(case("D06"))
    assert (code, values["records"]) == (1, 12)
    flattened = iterate(case("D06"), ReadOptions(repairs=("flatten",)))
    texts = [c.messages[-1].content for c in flattened if isinstance(c, Conversation)]
    assert "分段内容" in texts
    for name in FAMILIES:
        tokenizer = real_tokenizer(name)
        kept = load_examples(
            case("D06"), tokenizer, max_length=512, on_error="skip", repairs=["flatten"]
        )
        assert [e.source for e in kept.examples] == [f"train.jsonl:{n}" for n in (1, 8, 10)]
        for example in kept.examples:
            shown = tokenizer.decode(example.input_ids.tolist())
            assert not any(word in shown for word in ("None", "True", "42", "{'answer'", "null"))


@pytest.mark.parametrize("name", FAMILIES)
def test_d08_over_long_records(case, real_tokenizer, shared, name):
    limit = json.loads((shared / "cases/D08/params.json").read_text())["max_length"]
    code, _, told = check(
        case("D08"), "--max-length", limit, "--model", shared / "tokenizers" / name
    )
    assert code == 1
    counted = (
        "4 records read",
        "1 dropped as too long: no label left, 1 dropped as too long: an answer would be cut, "
        "1 shortened, 1 untouched",
    )
    assert all(text in told for text in counted)
    lines = [line for line in told.splitlines() if "[too-long]" in line]
    assert [line.split(":")[2] for line in lines] == ["1", "2", "4"]
    assert "no label would be left" in lines[0]
    assert "an answer would be cut" in lines[1]
    tokenizer = real_tokenizer(name)
    found = read(case("D08"))
    examples = build_examples(found, tokenizer, max_length=limit)
    assert [e.source for e in examples.examples] == ["train.jsonl:3", "train.jsonl:4"]
    turn = [{"role": m.role, "content": m.content} for m in found[3].messages[:2]]
    assert examples.examples[1].input_ids.tolist() == encode_rows(turn, tokenizer)[-1][0]
    cut = build_examples(found, tokenizer, max_length=limit, truncation="truncate_right")
    answer = next(e for e in cut.examples if e.source == "train.jsonl:2")
    assert len(answer.input_ids) == limit
    stops = set(tokenizer.control_ids.values()) | {tokenizer.eos_token_id}
    assert stops.isdisjoint(trained_ids(answer.labels.tolist()))
    with pytest.raises(DataError, match="no trainable row is left: 1 records read, 0 rows kept"):
        build_examples(found[:1], tokenizer, max_length=limit)


def test_d08_a_forced_row_without_a_label_has_a_finite_loss(case):
    ids = np.arange(8, dtype=np.int32) + 300
    row = Example(input_ids=ids, labels=np.full(8, -100, np.int32), source="train.jsonl:1")
    batch = collate([[row]], packed=False)
    model = new_model(load_config(TINY_MODEL))
    for divisor in (batch.trained_tokens, 1, 5):
        loss = model(**batch.model_inputs(), num_items_in_batch=divisor).loss
        assert torch.isfinite(loss)


@pytest.mark.parametrize("name", FAMILIES)
def test_d10_control_spellings_stay_text(case, real_tokenizer, name):
    tokenizer = real_tokenizer(name)
    controls = tokenizer.control_ids
    stops = {controls.get(t) for t in ("<eop>", "<|endoftext|>")} | {tokenizer.eos_token_id}
    roles = [controls.get(f"<|{role}|>") for role in ("system", "user", "assistant", "observation")]
    for conversation in read(case("D10")):
        user, assistant = conversation.messages
        asked = [{"role": m.role, "content": m.content} for m in conversation.messages]
        ((ids, labels),) = encode_rows(asked, tokenizer)
        mask, start = controls["[gMASK]"], controls.get("<sop>", controls.get("sop"))
        assert (ids.count(mask), ids.count(start)) == (1, 1)
        if name != "chatglm-6b":
            assert ids[:2] == [mask, start]
        else:
            assert ids.index(start) == ids.index(mask) + 1
            assert labels[ids.index(start) + 1] != -100
        trained = trained_ids(labels)
        assert not any(label in stops or label in roles for label in trained[:-1])
        if name in WITH_ROLES:
            from_template = [i for i in ids if i in roles]
            assert from_template[:2] == roles[1:3]
            assert len(from_template) == 2 + (trained[-1] in roles)
            question = ids[ids.index(roles[1]) + 1 : ids.index(roles[2])]
            assert tokenizer.decode(question).strip() == user.content.strip()
            if conversation.source.endswith(":2"):
                assert ids.count(roles[0]) == 0
        else:
            typed = tokenizer.decode(tokenizer.encode_text(user.content))  # widths are folded
            assert typed.strip() in tokenizer.decode(ids)
        assert tokenizer.decode(trained[:-1]).strip() == assistant.content.strip()


def test_d10_the_summary_names_every_line(case):
    code, values, told = check(case("D10"))
    assert (code, values["rules"]) == (0, {"control-spelling": 4})
    for line in range(1, 5):
        assert f"train.jsonl:{line}: message" in told
    assert "<|endoftext|> <|system|> <|user|>" in told


@pytest.mark.parametrize("name", FAMILIES)
def test_d12_rare_and_broken_characters(case, real_tokenizer, shared, name, tmp_path):
    model = shared / "tokenizers" / name
    code, values, told = check(case("D12"), "--model", model)
    assert code == 1
    assert values["levels"] == {"lone-surrogate": "error", "control-character": "warning"}
    assert "train.jsonl:3: message 1 (user) holds half of a surrogate pair (U+D83D)" in told
    assert "train.jsonl:4: message 1 (user) holds control characters: U+0000, U+001B" in told
    tokenizer = real_tokenizer(name)
    texts = [m.content for c in read(case("D12"), on_error="skip") for m in c.messages]
    changed = [t for t in texts if tokenizer.decode(tokenizer.encode_text(t)).strip() != t.strip()]
    assert values["tokens"]["changed_texts"] == len(changed)
    assert bool(values["tokens"]["changed_example"]) == bool(changed)
    for limit in (20, 27, 34):  # test_preview.py cuts at every place
        call = ["preview", str(case("D12")), "--model", str(model), "--truncation",
                "truncate_right", "--max-length", str(limit), "--count", "9"]  # fmt: skip
        page = ["--html", str(tmp_path / "page.html")]
        for options in ([], page) if limit == 34 else ([],):
            done = CliRunner().invoke(app, [*call, *options], catch_exceptions=False)
            assert done.exit_code == 0
            assert "\x1b" not in done.output
    (tmp_path / "page.html").read_text(encoding="utf-8")


def test_d14_side_columns_of_changing_type(case):
    lines = [json.loads(line) for line in case("D14").read_text(encoding="utf-8").splitlines()]
    found = read(case("D14"))
    told = [[(m.role, m.content) for m in c.messages] for c in found]
    assert told == [[(m["role"], m["content"]) for m in line["messages"]] for line in lines]
    code, values, _ = check(case("D14"))
    assert (code, values["records"], values["rules"]) == (0, 4, {})


L02_RIGHT = ([1, 2, 5, 6, 9, 9, 9], [-100, -100, -100, 6, 9, -100, -100], [1, 1, 1, 1, 1, 0, 0])
L02_LEFT = ([9, 9, 1, 2, 5, 6, 9], [-100, -100, -100, -100, -100, 6, 9], [0, 0, 1, 1, 1, 1, 1])


@pytest.mark.parametrize(("side", "expected"), [("right", L02_RIGHT), ("left", L02_LEFT)])
def test_l02_padding_with_the_stop_id(shared, side, expected):
    given = json.loads((shared / "cases/L02/batch.json").read_text(encoding="utf-8"))
    rows = [
        [Example(input_ids=np.int32(s["input_ids"]), labels=np.int32(s["labels"]), source="")]
        for s in given["samples"]
    ]
    batch = collate(rows, packed=False, pad_id=given["pad_id"], padding_side=side)
    first = (batch.input_ids[0], batch.labels[0], batch.attention_mask[0])
    assert tuple(part.tolist() for part in first) == expected
    assert batch.input_ids[1].tolist() == given["samples"][1]["input_ids"]
    assert batch.labels[1].tolist() == given["samples"][1]["labels"]
    assert batch.attention_mask[1].tolist() == [1] * 7
    assert int((batch.labels == given["eos_id"]).sum()) == 2
    assert batch.trained_tokens == 6
    assert ("attention_mask" in batch.model_inputs()) == (side == "left")


@pytest.mark.parametrize("name", FAMILIES)
def test_l04_only_the_last_turn(case, real_tokenizer, name):
    tokenizer = real_tokenizer(name)
    (conversation,) = read(case("L04"))
    asked = [{"role": m.role, "content": m.content} for m in conversation.messages]
    ((_, labels),) = encode_rows(asked, tokenizer, labels="last_turn")
    trained = [n for n, label in enumerate(labels) if label != -100]
    assert trained == list(range(trained[0], trained[-1] + 1))
    span = trained_ids(labels)
    assert tokenizer.decode(span[:-1]).strip() == "不客气"
    stop = {"chatglm-6b": "<eop>", "glm-4-9b-chat": "<|user|>"}.get(name)
    assert span[-1] == (tokenizer.control_ids[stop] if stop else tokenizer.eos_token_id)


def test_the_cases_have_no_problem_twice(case):
    for name in ("D04", "D06", "D10", "D12"):
        problems = [p for p in iterate(case(name), ReadOptions()) if isinstance(p, Problem)]
        assert len(set(map(str, problems))) == len(problems)
