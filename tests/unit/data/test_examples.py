"""From files to examples: settings, faults, counts."""

import json

import pytest

from glmforge.data import build_examples, load_examples, read_conversations, write_skipped
from glmforge.data.quality import examine
from glmforge.data.sources import ReadOptions, iterate
from glmforge.data.verdict import findings
from glmforge.errors import DataError

GOOD = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
BAD = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": ""}]}


@pytest.fixture
def mixed(tmp_path):
    path = tmp_path / "train.jsonl"
    lines = [json.dumps(GOOD), json.dumps(BAD), "{broken", json.dumps(GOOD), '{"a": 1}']
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_all_faults_of_a_file_are_one_error(stub, mixed):
    for load in (
        lambda: read_conversations(mixed),
        lambda: load_examples(mixed, stub["chatglm3"], max_length=64),
    ):
        with pytest.raises(DataError) as caught:
            load()
        assert [p.split(":")[1] for p in sorted(caught.value.problems)] == ["2", "3", "5"]


def test_skipped_records_are_counted_and_written(stub, mixed, tmp_path):
    found = load_examples(mixed, stub["chatglm3"], max_length=64, on_error="skip")
    assert (found.counts.records, found.counts.skipped, found.counts.rows) == (5, 3, 2)
    assert "3 skipped for faults" in str(found.counts)
    write_skipped(found.problems, tmp_path / "skipped.jsonl")
    lines = (tmp_path / "skipped.jsonl").read_text(encoding="utf-8").splitlines()
    skipped = {json.loads(line)["source"]: json.loads(line)["rule"] for line in lines}
    assert skipped == {
        "train.jsonl:2": "empty-content",
        "train.jsonl:3": "not-json",
        "train.jsonl:5": "unknown-format",
    }


def test_a_record_without_a_trained_token_is_a_fault_with_its_line(stub, tmp_path):
    path = tmp_path / "train.jsonl"
    last = {"role": "assistant", "content": "b", "train": False}
    path.write_text(json.dumps({"messages": [*GOOD["messages"], GOOD["messages"][0], last]}))
    with pytest.raises(DataError, match=r"train\.jsonl:1: with labels last_turn none of .*trained"):
        load_examples(path, stub["chatglm3"], max_length=64, labels="last_turn")
    assert load_examples(path, stub["chatglm3"], max_length=64).counts.rows == 1


def test_a_dialogue_that_a_family_cannot_express_is_a_named_record(stub, tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({**GOOD, "tools": [{"name": "w"}]}), encoding="utf-8")
    with pytest.raises(DataError, match=r"train\.jsonl:1: .*no format for tools"):
        load_examples(path, stub["chatglm2"], max_length=64)


def test_an_unanswered_question_at_the_end_is_dropped_and_counted(stub, tmp_path):
    path = tmp_path / "train.jsonl"
    extra = {"messages": [*GOOD["messages"], {"role": "user", "content": "more"}]}
    path.write_text(f"{json.dumps(GOOD)}\n{json.dumps(extra)}", encoding="utf-8")
    found = load_examples(path, stub["chatglm3"], max_length=64)
    first, second = found.examples
    assert first.input_ids.tolist() == second.input_ids.tolist()
    assert found.counts.trailing_messages == 1


def test_thinking_that_a_family_cannot_write_is_counted(shared, stub):
    path = shared / "data/llamafactory_demo/reason_tool_use_demo_50.jsonl"
    found = load_examples(path, stub["glm4"], max_length=100_000)
    assert found.counts.rows == 50
    assert found.counts.left_out_reasoning > 50
    assert "thinking texts left out" in str(found.counts)


def test_impossible_settings_are_named_all_at_once(stub):
    with pytest.raises(DataError) as caught:
        build_examples(
            [], stub["chatglm3"], max_length=9000, max_positions=8192, labels="x", truncation="y"
        )
    assert len(caught.value.problems) == 3
    assert "9000, above the 8192 positions" in str(caught.value)


def test_an_unknown_repair_is_refused_with_the_known_ones(mixed):
    with pytest.raises(DataError, match="unknown 'mend'; known are merge"):
        read_conversations(mixed, repairs=["mend"])


def test_the_real_service_dialogues_encode_to_trained_answers_only(shared, real_tokenizer):
    tokenizer = real_tokenizer("chatglm3-6b")
    path = shared / "data/crosswoz/crosswoz_val_chat.jsonl"
    found = load_examples(path, tokenizer, max_length=2048)
    assert (found.counts.records, found.counts.rows) == (500, 500)
    example, conversation = found.examples[0], read_conversations(path)[0]
    trained = tokenizer.decode([i for i in example.labels.tolist() if i != -100])
    for message in conversation.messages:
        assert (message.content in trained) == (message.role == "assistant")


@pytest.mark.parametrize("family", ["chatglm", "chatglm2"])
def test_an_unanswered_question_is_dropped_under_official_labels_too(stub, tmp_path, family):
    """Where every answer is a row, official code never sees it."""
    path = tmp_path / "train.jsonl"
    asked = GOOD["messages"][:1]
    path.write_text(json.dumps({"messages": [*GOOD["messages"], *asked]}), encoding="utf-8")
    counts = load_examples(path, stub[family], max_length=64, labels="official").counts
    assert (counts.rows, counts.trailing_messages) == (1, 1)


def test_a_set_without_a_row_names_what_hit_most_records(stub, tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(map(json.dumps, [BAD, BAD, {"a": 1}])), encoding="utf-8")
    said = r"no trainable row.*Most break the rule empty-content, first train\.jsonl:1: message 2"
    with pytest.raises(DataError, match=said):
        load_examples(path, stub["chatglm3"], max_length=64, on_error="skip")
    report = examine(iterate(path, ReadOptions()), tokenizer=stub["chatglm3"])
    worst = [str(finding) for finding in findings(report)]
    assert (
        "no trainable row is left: the rule that most records break is empty-content"
        in (worst[0].partition("; ")[0])
    )
    path.write_text(json.dumps(GOOD), encoding="utf-8")
    with pytest.raises(DataError, match=r"no trainable row.*too long: raise data\.max_length"):
        load_examples(path, stub["chatglm3"], max_length=8)
