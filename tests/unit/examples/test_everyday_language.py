"""Everyday language by program: distinct, the same for every run, and right."""

import importlib
import random
import re
import sys
from itertools import islice
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "examples/embedded-base"


@pytest.fixture(scope="module")
def everyday():
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module("everyday")
    sys.path.remove(str(FOLDER))
    for name in [name for name in sys.modules if name.split(".")[0] in ("everyday", "overlap")]:
        del sys.modules[name]


def test_the_same_seed_gives_the_same_distinct_dialogues(everyday):
    first = list(everyday.dialogues(3, 300))
    assert first == list(islice(everyday.dialogues(3, 900), 300))
    assert len({repr(messages) for messages in first}) == 300


def test_every_maker_writes_finished_sentences(everyday):
    rng = random.Random(0)
    for maker in everyday.MAKERS:
        for _ in range(60):
            for text in (text for turn in maker(rng) for text in turn):
                assert text.strip()
                assert not re.search(r"[|\]]", text.replace('"]', "")), (maker, text)
                assert "{" not in text or "JSON" in text or text.startswith('{"'), (maker, text)


def test_sums_have_right_answers(everyday):
    rng = random.Random(1)
    signs = {"加": "+", "减": "-", "乘": "*"}
    seen = 0
    for _ in range(600):
        question, answer = everyday.sums.bare(rng)[0]
        found = re.search(r"(\d+)([加减乘])(\d+)", question)
        if found:
            first, sign, second = found.groups()
            assert str(eval(f"{first}{signs[sign]}{second}")) in re.findall(r"-?\d+", answer)
            seen += 1
    assert seen > 100


def test_a_place_has_one_answer_however_it_is_asked(everyday):
    rng = random.Random(2)
    said = {}
    for _ in range(4000):
        question, answer = everyday.places.single(rng)[0]
        found = re.search(r"(\d+)元押金|押金(\d+)元", answer)
        place = re.search(r"([一-龥]{2})(图书馆|健身房|游泳馆|民宿|酒店)", question)
        if found and place:
            deposit = found.group(1) or found.group(2)
            assert said.setdefault(place.group(0)[-6:], deposit) == deposit


def test_numbers_and_clocks_are_written_as_people_say_them(everyday):
    grammar = sys.modules["everyday.grammar"]
    numbers = {0: "零", 10: "十", 12: "十二", 20: "二十", 105: "一百零五", 2010: "二千零一十"}
    assert numbers == {number: grammar.chinese_number(number) for number in numbers}
    assert grammar.spoken_clock(14 * 60 + 30) == "下午两点半"
    assert grammar.clock(8 * 60 + 5) == "8:05"


def test_a_text_with_a_part_of_a_question_is_kept_out(everyday, tmp_path):
    overlap = importlib.import_module("overlap")
    path = tmp_path / "q.jsonl"
    path.write_text('{"prompt": "这个杯子能装多少毫升的水"}\n', encoding="utf-8")
    guard = overlap.Guard.of([path])
    assert guard.touches("他问：这个杯子，能装多少毫升？")
    assert not guard.touches("这个杯子很好看，能装水。")
