"""The page holds everything, needs nothing from outside, and lets no text out of its place."""

import json
import re
from html.parser import HTMLParser

import pytest
from reports import NASTY, make_report

from glmforge.ui.compare_page import compare_page, page_values


class Reader(HTMLParser):
    """Collects elements, attributes and the text of each script."""

    def __init__(self):
        super().__init__()
        self.elements, self.scripts, self.attributes, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += attrs
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.elements[-1:] == ["script"]:
            self.scripts[-1] += data
        else:
            self.text.append(data)


@pytest.fixture(scope="module")
def page():
    return compare_page(make_report())


@pytest.fixture(scope="module")
def read(page):
    reader = Reader()
    reader.feed(page)
    return reader


def test_no_text_becomes_an_element(page, read):
    assert read.elements.count("script") == 2
    assert "img" not in read.elements
    assert [name for name, _ in read.attributes if name.startswith("on")] == []
    assert "{{ 7*7 }}" in "".join(read.text), "texts are no templates"


def test_nothing_comes_from_outside(page, read):
    loading = [value for name, value in read.attributes if name in ("src", "srcset", "action")]
    links = [value for name, value in read.attributes if name == "href"]
    assert loading == []
    assert links
    assert all(link.startswith("#p=") for link in links)
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    assert "url(" not in style
    assert "@import" not in style
    contents = [value for name, value in read.attributes if name == "content"]
    assert any(value.startswith("default-src 'none'; ") for value in contents)


def test_the_embedded_data_is_the_reports(read):
    data = json.loads(read.scripts[0])
    assert data == json.loads(json.dumps(page_values(make_report())))
    assert data["models"][1]["name"] == NASTY
    parts = data["answers"][1]["greedy"][0]["parts"]
    assert "".join(text for kind, text in parts if kind >= 0) == "ok, the cat sat"
    assert "".join(text for kind, text in parts if kind <= 0) == "no"


def test_flags_say_what_can_be_filtered():
    flags = [prompt["flags"] for prompt in page_values(make_report())["prompts"]]
    assert flags == [
        ["differs", "format-gained", "nearer", "judged-better"],
        ["differs", "judged-worse"],
        ["same"],
        ["differs", "format-gained"],
        ["differs", "check-gained"],
    ]


def test_everything_is_said_in_both_languages(page):
    english = len(re.findall(r'<span class="en" lang="en">', page))
    chinese = len(re.findall(r'<span class="zh" lang="zh">', page))
    assert english == chinese > 20
    titles = re.findall(r'<span class="zh" lang="zh">([^<]*)</span>', page)
    same = {"BLEU-4", "ROUGE-1", "ROUGE-2", "ROUGE-L", "chrF", "rep-2", "rep-3", "rep-4"}
    assert [t for t in titles if t not in same and not re.search(r"[\u4e00-\u9fff]", t)] == []


def test_cells_show_interval_change_and_direction(page):
    row = re.search(r"has the asked form.*?</tr>", page, re.DOTALL)[0]
    assert re.findall(r"<td>(\S+?)[ <]", row) == ["0%", "50%"]
    assert '<span class="change ">+50</span>' in row, "2 of 4 may be chance"
