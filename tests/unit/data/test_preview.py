"""What a person sees of a row is what training uses."""

import json
import re
import unicodedata
from html.parser import HTMLParser

import pytest

from glmforge.data import load_examples
from glmforge.data.preview import preview_rows, terminal
from glmforge.data.preview_page import preview_page
from glmforge.data.sources import ReadOptions, iterate

NAMES = ["chatglm-6b", "chatglm2-6b", "chatglm3-6b", "glm-4-9b-chat"]


def rows_of(path, tokenizer, **options):
    return list(preview_rows(iterate(path, ReadOptions()), tokenizer, max_length=2048, **options))


@pytest.mark.parametrize("name", NAMES)
def test_the_tokens_shown_are_those_trained_on(shared, real_tokenizer, name):
    tokenizer = real_tokenizer(name)
    path = shared / "cases/D02/train.jsonl"
    examples = load_examples(path, tokenizer, max_length=2048).examples
    rows = rows_of(path, tokenizer)
    assert len(rows) == len(examples)
    for row, example in zip(rows, examples):
        assert [i for t in row.tokens for i in t.ids] == example.input_ids.tolist()
        labels = [i if t.trained else -100 for t in row.tokens for i in t.ids]
        assert labels == example.labels.tolist()


@pytest.mark.parametrize("name", NAMES)
def test_characters_of_several_tokens_are_shown_whole(shared, real_tokenizer, name):
    rows = rows_of(shared / "cases/D12/train.jsonl", real_tokenizer(name))
    text = "".join(token.text for token in rows[1].tokens)
    assert "👦" in text
    assert "𠮷" in text
    assert "�" not in text


def test_a_skipped_record_is_shown_with_its_reason(shared, real_tokenizer):
    rows = rows_of(shared / "cases/D12/train.jsonl", real_tokenizer("chatglm3-6b"))
    assert [row.source for row in rows] == [f"train.jsonl:{line}" for line in range(1, 5)]
    assert (rows[2].tokens, rows[2].flags) == ((), ("lone-surrogate",))
    assert "U+D83D" in rows[2].notes[0]


def test_a_row_cut_inside_a_character_can_be_shown(shared, real_tokenizer):
    for limit in range(8, 60):
        rows = preview_rows(
            iterate(shared / "cases/D12/train.jsonl", ReadOptions()),
            real_tokenizer("chatglm3-6b"),
            max_length=limit,
            truncation="truncate_right",
        )
        for row in rows:
            assert terminal(row, ids=True).plain.encode("utf-8")


def test_the_terminal_never_gets_a_raw_control_character(shared, real_tokenizer):
    for row in rows_of(shared / "cases/D12/train.jsonl", real_tokenizer("chatglm3-6b")):
        kinds = {unicodedata.category(letter) for letter in terminal(row).plain if letter != "\n"}
        assert kinds.isdisjoint({"Cc", "Cs"})


def test_trained_tokens_are_coloured_in_the_terminal(shared, real_tokenizer):
    (row, *_) = rows_of(shared / "cases/D02/train.jsonl", real_tokenizer("chatglm3-6b"))
    shown = terminal(row)
    green = "".join(shown.plain[s.start : s.end] for s in shown.spans if "green" in str(s.style))
    assert green == " ⏎\n 长江是中国最长的河流。</s>"


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.outside = []

    def handle_starttag(self, tag, attrs):
        self.outside += [value for name, value in attrs if name in ("src", "href")]


def test_the_page_is_self_contained_and_holds_every_row(shared, real_tokenizer):
    rows = rows_of(shared / "cases/D10/train.jsonl", real_tokenizer("chatglm3-6b"))
    page = preview_page(rows, "</script><b>train</b>")
    links = Links()
    links.feed(page)
    assert links.outside == []
    assert "http" not in page
    data = re.search(r"const rows = (\[.*\]), title = (\".*\");", page)
    assert len(json.loads(data.group(1))) == 4
    assert json.loads(data.group(2)) == "</script><b>train</b>"
    assert page.count("</script>") == 1
