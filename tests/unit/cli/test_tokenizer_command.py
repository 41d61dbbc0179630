"""`glmforge tokenizer train` as a user calls it."""

import json

import pytest

from glmforge.cli.tokenizer import train
from glmforge.errors import DataError

TEXT = "今天天气很好，我们去公园散步吧。明天可能会下雨，记得带伞出门。"


def test_documents_are_sampled_evenly_and_the_rate_is_said(tmp_path, capsys):
    path = tmp_path / "text.jsonl"
    rows = [{"text": TEXT[at % 9 :] + str(at)} for at in range(300)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    train([path], tmp_path / "out", vocab_size=320, max_characters=2000)
    said = capsys.readouterr().out
    assert said.startswith(f"320 pieces written to {tmp_path / 'out'}; ")
    assert said.endswith(" characters a token on this text\n")
    with pytest.raises(DataError, match="is there already"):
        train([path], tmp_path / "out", vocab_size=320)


def test_a_place_that_cannot_be_made_is_told_before_the_text_is_read(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"file/out: cannot be made \(Not a directory\)"):
        train([tmp_path / "none.jsonl"], tmp_path / "file" / "out")
