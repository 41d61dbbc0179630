"""The commands `glmforge data check` and `glmforge data preview`."""

import json

import pytest
from typer.testing import CliRunner

from glmforge.cli.data import app
from glmforge.errors import ConfigError, DataError, UsageError

LINE = '{"messages": [{"role": "user", "content": "%s"}, {"role": "assistant", "content": "%s"}]}'


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.jsonl"
    pairs = ("问一", "甲"), ("另一个问", "乙"), ("第三", "丙")
    path.write_text("\n".join(LINE % pair for pair in pairs), encoding="utf-8")
    return path


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


def test_check_says_that_a_good_set_is_good(good):
    result = run("check", good)
    assert result.exit_code == 0
    assert "verdict: nothing speaks against training on this set" in result.output


def test_check_ends_with_1_when_training_would_be_a_mistake(shared):
    result = run("check", shared / "cases/D06/train.jsonl")
    assert result.exit_code == 1
    assert "verdict: do not train on this set yet" in result.output


def test_check_names_the_files_of_a_directory(good, tmp_path):
    (tmp_path / "b.json").write_text(good.read_text(encoding="utf-8"), encoding="utf-8")
    assert run("check", tmp_path).output.startswith("2 files: b.json, good.jsonl\n6 records")
    assert run("check", good).output.startswith("3 records")
    (tmp_path / "notes.data").write_text(LINE % ("问", "答"), encoding="utf-8")
    assert "\nnot read, by their names: notes.data\n6 records" in run("check", tmp_path).output


def test_rows_longer_than_the_models_positions_are_refused(shared, good, tmp_path):
    model = shared / "tokenizers/chatglm3-6b"
    with pytest.raises(UsageError, match="9000 tokens are longer than the 8192 positions"):
        run("check", good, "--model", model, "--max-length", 9000)
    with pytest.raises(UsageError, match="max_length 8192 or less"):
        run("preview", good, "--model", model, "--max-length", 9000)


def test_check_prints_json_for_machines(good):
    values = json.loads(run("check", good, "--json").output)
    assert (values["records"], values["blocks"]) == (3, False)


def test_check_finds_records_shared_with_validation(good, tmp_path):
    held = tmp_path / "held.jsonl"
    held.write_text(good.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    result = run("check", good, "--validation", held)
    assert result.exit_code == 1
    assert "3 of 3 validation records" in result.output


def test_a_validation_file_that_is_trained_on_is_an_error(good, tmp_path):
    """Under its own name or as a copy, also inside a directory that is trained on."""
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(good.read_bytes())
    for train, held in ((good, good), (good, copy), (tmp_path, copy)):
        with pytest.raises(DataError, match="a validation file that is trained on too"):
            run("check", train, "--validation", held)


def test_preview_shows_rows_and_ids(shared, good):
    model = shared / "tokenizers/chatglm3-6b"
    result = run("preview", good, "--model", model, "--row", 2, "--count", 1, "--ids")
    assert result.exit_code == 0
    assert result.output.startswith("good.jsonl:2")
    assert "<|assistant|>[64796]" in result.output


def test_preview_writes_a_page(shared, good, tmp_path):
    model = shared / "tokenizers/chatglm3-6b"
    result = run("preview", good, "--model", model, "--html", tmp_path / "page.html")
    assert result.exit_code == 0
    assert "<!doctype html>" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_page_that_cannot_be_written_is_named(shared, good, tmp_path):
    model = shared / "tokenizers/chatglm3-6b"
    for place in (tmp_path / "nope/x.html", tmp_path):
        with pytest.raises(UsageError, match=r"cannot be written .*name a file in a directory"):
            run("preview", good, "--model", model, "--html", place)


@pytest.mark.parametrize("page", [False, True])
def test_a_row_or_flag_that_is_not_there_is_an_error_that_names_those_that_are(
    shared, good, tmp_path, page
):
    file = tmp_path / "flagged.jsonl"
    marked = LINE % ("{{name}}", "[MASK]")
    file.write_text("\n".join([*good.read_text("utf-8").splitlines(), marked]), encoding="utf-8")
    out = ["--html", tmp_path / "rows.html"] if page else []
    common = ["--model", shared / "tokenizers/chatglm3-6b", *out]
    for arguments, message in (
        ([file, "--row", 99], "row 99: the rows end at 4; choose --row from 1 to 4"),
        (
            [file, "--flag", "placeholder", "--row", 2],
            "row 2: the rows with the flag 'placeholder' end at 1;",
        ),
        ([file, "--flag", "nosuch"], r"'nosuch'; the flags of these rows are control-spelling \(1"),
        ([good, "--flag", "nosuch"], "'nosuch'; no row has any: leave --flag out"),
    ):
        with pytest.raises(UsageError, match=message):
            run("preview", *arguments, *common)
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n", encoding="utf-8")
    if not page:
        assert "there is no record in the file" in run("preview", empty, *common).output
    assert not (tmp_path / "rows.html").exists()
    assert run("preview", file, "--flag", "placeholder", *common).exit_code == 0


def test_bad_calls_are_explained(good, tmp_path):
    with pytest.raises(UsageError, match="data files, or --config"):
        run("check")
    with pytest.raises(UsageError, match="needs a tokenizer"):
        run("preview", good)
    with pytest.raises(UsageError, match="OUR_FIELD=THEIR_FIELD"):
        run("check", good, "--column", "x")
    with pytest.raises(DataError, match="no such file"):
        run("check", tmp_path / "missing.jsonl")


@pytest.fixture
def config(shared, tmp_path):
    rows = [{"ask": f" 问{n} ", "reply": f"答{n}"} for n in range(4)]
    text = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (tmp_path / "train.jsonl").write_text(text, encoding="utf-8")
    path = tmp_path / "c.yaml"
    path.write_text(
        f"""\
model: {{model_name_or_path: {shared / "tokenizers/chatglm3-6b"}}}
data:
  train: [{{path: {tmp_path / "train.jsonl"}, weight: 2}}]
  columns: {{query: ask, response: reply}}
  repair: [trim]
  truncation: split
training: {{output_dir: {tmp_path / "run"}}}
""",
        encoding="utf-8",
    )
    return path


def test_check_and_preview_read_what_the_run_of_a_config_would(config):
    values = json.loads(run("check", "--config", config, "--json").output)
    assert values["records"] == 4
    result = run("preview", "--config", config, "--count", 1)
    assert "问0<|assistant|>" in result.output, "columns named, white space trimmed"


def test_prepare_makes_the_sets_of_a_run_and_prints_where(config, tmp_path):
    result = run("prepare", config, "data.max_length=64")
    place = tmp_path / ".prepared"
    assert result.stdout.split() == [str(path) for path in place.iterdir()]
    again = run("prepare", config, "data.max_length=64", "--quiet")
    assert again.stdout == ""
    assert len(list(place.iterdir())) == 1


def test_an_input_that_leaves_no_report_is_json_too(tmp_path):
    (tmp_path / "empty").mkdir()
    for path, words in ((tmp_path / "no.jsonl", "no such file"), (tmp_path / "empty", "no file")):
        result = run("check", path, "--json")
        assert result.exit_code == 1
        values = json.loads(result.output)
        assert words in values["error"][0]
        assert values["blocks"] is True


def test_a_file_that_cannot_be_read_does_not_stop_the_report_of_the_others(good, tmp_path):
    (tmp_path / "a.jsonl").write_text("问", encoding="utf-16")
    for paths, records in (([tmp_path], 3), ([tmp_path / "a.jsonl"], 0)):
        result = run("check", *paths, "--json")
        assert result.exit_code == 1
        values = json.loads(result.output)
        assert values["records"] == records
        (problem,) = values["problems"]
        assert problem["source"] == str(tmp_path / "a.jsonl")
        assert problem["rule"] == "unreadable-file"
        assert problem["text"] == "the file is UTF-16, not UTF-8"
        assert problem["advice"].startswith("convert it with `iconv")
        assert "a.jsonl: the file is UTF-16" in run("check", *paths).output


def test_prepare_says_which_fields_are_not_read_and_refuses_what_train_would(config, shared):
    data = config.parent / "train.jsonl"
    rows = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines()]
    lines = [json.dumps({**row, "image": "x"}, ensure_ascii=False) for row in rows]
    data.write_text("\n".join(lines), encoding="utf-8")
    assert f"fields not read: image × {len(rows)}" in run("prepare", config).stderr
    old = f"model.model_name_or_path={shared / 'golden/chatglm-6b'}"
    with pytest.raises(ConfigError, match=r"data\.packing is true, but ChatGLM-6B"):
        run("prepare", config, old, "data.packing=true", "data.max_length=64")
