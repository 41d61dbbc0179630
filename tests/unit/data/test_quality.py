"""What a look at all records finds, and what it makes of it."""

import json

import pytest

from glmforge.data import Conversation, Message
from glmforge.data.quality import examine
from glmforge.data.quality_text import report_lines, report_values
from glmforge.data.similarity import opening_of, pattern_of, topics
from glmforge.data.sources import ReadOptions, iterate
from glmforge.data.verdict import blocks, findings

# Exact duplicate rows as SOURCE.txt of each set counts them.
REAL_COPIES = {
    "llamafactory_demo/alpaca_zh_demo.json": 8,
    "llamafactory_demo/alpaca_en_demo.json": 14,
    "llamafactory_demo/glaive_toolcall_zh_demo.json": 43,
    "llamafactory_demo/glaive_toolcall_en_demo.json": 35,
    "llamafactory_demo/v1_sft_demo.jsonl": 1,
    "chatglm_efficient_tuning/oaast_sft_zh.json": 5,
    "crosswoz/crosswoz_val_chat.jsonl": 0,
}
PAIRS = (
    ("长江有多长？", "大约六千三百公里。"),
    ("三加四等于几？", "等于七。"),
    ("怎么做番茄炒蛋？", "先炒蛋，再放番茄。"),
    ("请推荐一本讲明史的书。", "可以读万历十五年。"),
    ("猫为什么呼噜？", "多半是因为放松。"),
    ("写一句关于秋天的诗。", "一叶落而知天下秋。"),
    ("北京到上海坐高铁要多久？", "四个半到六个小时。"),
    ("什么是递归函数？", "自己调用自己的函数。"),
    ("光速是多少？", "每秒约三十万公里。"),
    ("谁写了红楼梦？", "曹雪芹。"),
)


def record(question, answer, line=1):
    messages = (
        Message(role="user", content=question),
        Message(role="assistant", content=answer),
    )
    return Conversation(messages=messages, source=f"x:{line}")


def good():
    return [record(*pair, line) for line, pair in enumerate(PAIRS, 1)]


def texts(report):
    return " | ".join(str(finding) for finding in findings(report))


@pytest.mark.parametrize("name", REAL_COPIES)
def test_exact_copies_of_the_real_sets_are_counted_as_their_description_does(shared, name):
    report = examine(iterate(shared / "data" / name, ReadOptions()))
    assert report.exact_copies == REAL_COPIES[name]


def test_a_good_set_gets_a_good_verdict(stub):
    report = examine(good(), tokenizer=stub["chatglm3"])
    assert not blocks(report)
    assert report_lines(report)[-1] == "verdict: nothing speaks against training on this set"
    assert report.tokens.counts.rows == 10
    assert sum(count for _, count in report.tokens.bins) == 10


def test_faulty_records_block_and_name_the_first_one():
    report = examine([*good(), record("q", "", 11)])
    assert blocks(report)
    assert "empty-content: 1 (9.1% of the records), first x:11" in texts(report)


def test_a_warning_never_hides_an_error_of_the_same_rule():
    report = examine([record("q", "", 1), record("", "a", 2)])
    assert report.levels["empty-content"] == "error"


def test_placeholders_block_when_they_are_many(shared):
    report = examine(iterate(shared / "data/llamafactory_demo/identity.json", ReadOptions()))
    assert report.rules["placeholder"] == 85
    assert blocks(report)
    assert "{{name}}" in texts(report)


def test_near_copies_are_found_and_different_records_are_not():
    long = "从北京到上海坐高铁大约需要四个半小时到六个小时，具体时间要看车次和停站的多少。" * 2
    other = "完全不同的一句话，讲的是猫为什么会发出呼噜的声音。"
    said = [(long, "好"), (other, "好"), (long + "谢谢", "好")]
    report = examine(record(*pair, line) for line, pair in enumerate(said, 1))
    assert (report.near_copies, report.copy_examples) == (1, ("x:3 nearly repeats x:1",))


def test_validation_records_that_are_trained_on_block():
    held = [*good()[:2], record("另一个问题是什么呢？", "另一个回答。", 99)]
    report = examine(good(), validation=held)
    assert (report.overlap, report.validation_records) == (2, 3)
    assert blocks(report)
    assert "2 of 3 validation records" in texts(report)


def test_one_answer_for_everything_blocks():
    report = examine(record(question, "好的。") for question, _ in PAIRS)
    assert blocks(report)
    assert "one answer pattern makes 100% of all answers: '好的。'" in texts(report)


def test_questions_of_one_pattern_are_found(shared):
    report = examine(iterate(shared / "data/chatglm6b_improve/data_sample.jsonl", ReadOptions()))
    assert report.patterns[0].count == 100
    assert "100% of the questions open alike ('请根据以下标签为')" in texts(report)


def test_patterns_forget_numbers_quotations_and_foreign_words():
    assert pattern_of("订单“A1”在 3.5 天内到 Paris 吗") == "订单“…”在 0 天内到 A 吗"
    assert opening_of("What is the capital of France?") == "what is the capital"


def test_topics_group_by_length_and_keywords():
    names = topics(
        ["订酒店便宜吗", "订酒店远吗", "天气如何呀", "猫吃鱼吗", "红楼梦谁写", "光速多少"]
    )
    assert names[0] == names[1]
    assert "酒店" in names[0]
    assert names[0] != names[2]
    assert names[3] == "<20 no common word"


def test_records_over_the_limit_are_counted_with_what_happens_to_them(stub):
    long = [record("问" * 50, "答" * 60, 20 + n) for n in range(3)]
    report = examine([*good(), *long], tokenizer=stub["chatglm3"], max_length=64)
    assert (report.tokens.overlong, report.tokens.counts.dropped) == (3, 3)
    assert (report.tokens.counts.records, report.tokens.counts.rows) == (13, 10)
    assert blocks(report)
    said = "3 records (23.1%) are longer than max_length (3 dropped as too long: an answer would"
    said += " be cut, 10 untouched)"
    assert said in texts(report)


def test_what_the_limit_does_to_each_record_is_told_with_its_line(stub):
    turns = [Message(role=r, content="字" * 15) for r in ("user", "assistant")] * 3
    long = Conversation(messages=tuple(turns), source="x:20")
    hopeless = record("问" * 90, "答", 21)
    report = examine([*good(), long, hopeless], tokenizer=stub["chatglm3"], max_length=64)
    told = {p.source: str(p) for p in report.problems}
    assert set(told) == {"x:20", "x:21"}
    assert "more than max_length 64 tokens: " in told["x:20"]
    assert "dropped, because no label would be left" in told["x:21"]
    assert (report.records, report.tokens.counts.records) == (12, 12)


def test_records_that_the_family_cannot_express_block(stub):
    call = Conversation(
        messages=(
            Message(role="user", content="天气"),
            Message(role="assistant", content="", name="f", arguments="{}"),
        ),
        source="x:11",
    )
    report = examine([*good(), call], tokenizer=stub["chatglm2"])
    assert (report.rules, blocks(report)) == ({"no-tools-format": 1}, True)
    assert report.tokens.counts.skipped == 1


def test_faulty_records_are_counted_and_not_encoded(stub):
    report = examine([*good(), record("q", "", 11)], tokenizer=stub["chatglm3"])
    assert (report.tokens.counts.records, report.tokens.counts.skipped) == (11, 1)
    assert report.tokens.compared_texts == 20


def test_a_rule_counts_records_and_the_report_keeps_the_first_problems(monkeypatch):
    monkeypatch.setattr("glmforge.data.quality.KEPT_PROBLEMS", 3)
    report = examine(record("<|user|> 问", "<|user|> 答", n) for n in range(5))
    assert report.rules["control-spelling"] == 5
    assert (len(report.problems), report.more_problems) == (3, 7)
    assert any("and 9 more" in line for line in report_lines(report, problems=1))


def test_a_large_set_tells_its_topics_by_an_even_choice(monkeypatch):
    monkeypatch.setattr("glmforge.data.quality._TOPIC_TEXTS", 10)
    report = examine(record(f"问酒店 {n}", "好", n) for n in range(100))
    assert report.topic_texts < 20
    assert any(f"topics (of {report.topic_texts} questions)" in t for t in report_lines(report))


def test_texts_that_the_tokenizer_changes_are_counted_with_an_example(real_tokenizer):
    report = examine([*good(), record("全角ＡＢＣ１２３", "好", 11)],
                     tokenizer=real_tokenizer("chatglm-6b"))  # fmt: skip
    assert report.tokens.changed_texts >= 1
    assert "→" in report.tokens.changed_example


def test_an_empty_set_blocks():
    assert blocks(examine([]))


def test_the_report_is_printable_and_plain(shared):
    for case in ("D06", "D12"):
        report = examine(iterate(shared / f"cases/{case}/train.jsonl", ReadOptions()))
        assert all(line.isprintable() for line in report_lines(report))
        json.dumps(report_values(report)).encode("utf-8")


def test_a_file_with_a_fault_is_told_and_is_no_record(tmp_path):
    """Shares are of the records."""
    (tmp_path / "a.jsonl").write_text('{"prompt": "q", "response": "a"}\n')
    (tmp_path / "b.jsonl").write_text("")
    report = examine(iterate(tmp_path, ReadOptions()))
    assert (report.records, report.rules, report.file_rules) == (
        1, {"no-record": 1}, ("no-record",),
    )  # fmt: skip
    (finding,) = (f for f in findings(report) if f.severity == "blocks")
    assert finding.text.startswith(
        f"no-record: 1, first {tmp_path / 'b.jsonl'}: there is no record"
    )
