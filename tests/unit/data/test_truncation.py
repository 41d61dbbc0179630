"""Every truncation policy: what fits, what goes, what is counted, and that nothing lies."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmforge.data import build_examples, encode_rows, read_conversations
from glmforge.data.conversation import Conversation, Message
from glmforge.data.truncation import POLICIES
from glmforge.errors import DataError

FAMILIES = ["chatglm", "chatglm2", "chatglm3", "glm4"]
ENDS = ("⟦</s>⟧", "⟦<eop>⟧", "⟦<|user|>⟧", "⟦<|observation|>⟧", "⟦<|endoftext|>⟧")
WORDS = st.text(alphabet="你好世界abc。", min_size=1, max_size=30)
TURNS = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=5)


def conversation(*turns, system="", source="x:1"):
    messages = [Message(role="system", content=system)] if system else []
    for question, answer in turns:
        messages.append(Message(role="user", content=question))
        messages.append(Message(role="assistant", content=answer))
    return Conversation(messages=tuple(messages), source=source)


def build(tokenizer, conversations, **options):
    return build_examples(conversations, tokenizer, **{"max_length": 40, **options})


def decoded(tokenizer, found):
    return [tokenizer.decode(example.input_ids.tolist()) for example in found.examples]


SHORT = conversation(("q1", "a1"))
LONG = conversation(("q1", "a1"), ("q2", "a2" * 30), ("q3", "a3"))


def test_last_turns_go_until_the_rest_fits(stub):
    found = build(stub["chatglm3"], [SHORT, LONG])
    assert decoded(stub["chatglm3"], found)[0] == decoded(stub["chatglm3"], found)[1]
    assert (found.counts.records, found.counts.rows, found.counts.shortened) == (2, 2, 1)
    assert found.counts.lost_turns == 2


def test_a_dialogue_whose_first_turn_is_too_long_is_dropped_and_counted(stub):
    long_first = conversation(("q" * 50, "a"), ("q2", "a2"))
    found = build(stub["chatglm3"], [SHORT, long_first])
    assert (found.counts.rows, found.counts.dropped) == (1, 1)
    with pytest.raises(DataError, match=r"no trainable row is left.*1 dropped as too long"):
        build(stub["chatglm3"], [long_first])


def test_the_last_turn_alone_is_not_replaced_by_an_earlier_one(stub):
    found = build(stub["chatglm3"], [SHORT, LONG], labels="last_turn")
    assert (found.counts.rows, found.counts.dropped) == (1, 1)


def test_drop_leaves_the_whole_dialogue_out(stub):
    found = build(stub["chatglm3"], [SHORT, LONG], truncation="drop")
    assert (found.counts.rows, found.counts.dropped) == (1, 1)


def test_oldest_turns_go_and_the_system_text_stays(stub):
    tokenizer = stub["chatglm3"]
    found = build(
        tokenizer,
        [conversation(("q1" * 20, "a1"), ("q2", "a2"), system="sys")],
        truncation="drop_oldest_turns",
    )
    (text,) = decoded(tokenizer, found)
    assert "sys" in text
    assert "q1" not in text
    assert "q2" in text
    assert found.counts.shortened == 1


@pytest.mark.parametrize("family", ["chatglm", "chatglm2"])
def test_every_row_of_the_round_families_loses_its_own_oldest_turns(stub, family):
    tokenizer = stub[family]
    turns = [(f"q{n}", f"a{n}" * 3) for n in range(4)]
    kept = build(tokenizer, [conversation(*turns)], truncation="drop_oldest_turns", max_length=50)
    assert kept.counts.rows == 4
    lost = build(tokenizer, [conversation(*turns)], max_length=50)
    assert lost.counts.rows < 4


def test_split_makes_pieces_of_whole_turns_with_the_system_text(stub):
    tokenizer = stub["chatglm3"]
    turns = [(f"q{n}", f"a{n}" * 3) for n in range(6)]
    found = build(tokenizer, [conversation(*turns, system="S")], truncation="split")
    texts = decoded(tokenizer, found)
    assert len(texts) > 1
    assert all("S" in text and text.endswith("⟦</s>⟧") for text in texts)
    assert re.findall(r"q\d", "".join(texts)) == [f"q{n}" for n in range(6)]
    assert found.counts.split == 1


def test_a_turn_that_no_piece_can_hold_is_lost_and_counted(stub):
    tokenizer = stub["chatglm3"]
    found = build(
        tokenizer, [conversation(("q1", "a1"), ("q2", "a" * 90), ("q3", "a3"))], truncation="split"
    )
    assert len(decoded(tokenizer, found)) == 2
    assert (found.counts.split, found.counts.lost_turns) == (1, 1)


def test_truncate_prompt_cuts_the_oldest_question_from_its_start(stub):
    tokenizer = stub["chatglm3"]
    found = build(
        tokenizer, [conversation(("0123456789" * 6, "answer"))], truncation="truncate_prompt"
    )
    (text,) = decoded(tokenizer, found)
    assert len(found.examples[0].input_ids) == 40
    question = text.split("⟦<|user|>⟧\n")[1].split("⟦")[0]
    assert ("0123456789" * 6).endswith(question)
    assert text.endswith("answer⟦</s>⟧")


def test_truncate_right_cuts_an_answer_and_leaves_its_terminator_out(stub):
    tokenizer = stub["chatglm3"]
    found = build(tokenizer, [conversation(("q", "answer" * 20))], truncation="truncate_right")
    (text,) = decoded(tokenizer, found)
    assert len(found.examples[0].input_ids) == 40
    assert not text.endswith(ENDS)
    assert found.counts.cut == 1


def test_truncate_right_never_leaves_a_role_without_an_answer(stub):
    tokenizer = stub["chatglm3"]
    for extra in range(1, 40):
        found = build(
            tokenizer,
            [conversation(("q1", "a1"), ("q" * extra, "answer"))],
            truncation="truncate_right",
        )
        (text,) = decoded(tokenizer, found)
        assert not text.rstrip("\n").endswith("⟦<|assistant|>⟧")
        last_labels = found.examples[0].labels[-1]
        assert last_labels != -100


def test_error_names_every_dialogue_that_is_too_long(stub):
    with pytest.raises(DataError) as caught:
        build(
            stub["chatglm3"],
            [conversation(("q", "a" * 60), source=f"x:{n}") for n in (3, 5)],
            truncation="error",
        )
    assert [p.split(":")[1] for p in caught.value.problems] == ["3", "5"]
    assert "more than max_length 40" in str(caught.value)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "error"])
@given(turns=TURNS, system=st.sampled_from(["", "S", "系统" * 12]))
def test_no_policy_makes_a_row_that_lies(stub, family, policy, turns, system):
    """Rows fit; their trained runs are whole answers with terminators, or cut ones without."""
    tokenizer = stub[family]
    whole = conversation(*turns, system=system)
    fine = conversation(("q", "a"), source="fine")
    found = build(tokenizer, [whole, fine], truncation=policy)
    counted = found.counts
    assert counted.records == 2
    assert counted.total_tokens == int(found.examples.lengths.sum())
    assert counted.trained_tokens == int(found.examples.trained_counts.sum())
    answers = [answer for _, answer in turns] + ["a"]
    for example in found.examples:
        assert 0 < len(example.input_ids) <= 40
        labels = example.labels.tolist()
        assert any(label != -100 for label in labels)
        run = []
        for at, label in enumerate([*labels, -100]):
            if label != -100:
                run.append(label)
            elif run:
                text = tokenizer.decode(run).lstrip("\n")
                ended = text.endswith(ENDS)
                body = text[: text.rindex("⟦")] if ended else text
                if ended:
                    assert body in answers
                else:
                    assert policy == "truncate_right"
                    assert at == len(labels)
                    assert any(answer.startswith(body) for answer in answers)
                    assert body
                run = []


@given(text=st.text(alphabet="文字ab", min_size=1, max_size=200))
def test_a_long_pretraining_text_is_cut_into_pieces_with_one_terminator(stub, text):
    tokenizer = stub["chatglm3"]
    record = Conversation(messages=(Message(role="text", content=text),), source="x:1")
    found = build(tokenizer, [record])
    pieces = decoded(tokenizer, found)
    prefix = "⟦[gMASK]⟧⟦sop⟧"
    assert all(piece.startswith(prefix) for piece in pieces)
    joined = "".join(piece.removeprefix(prefix) for piece in pieces)
    assert joined == f"{text}⟦</s>⟧"
    assert found.counts.trained_tokens == len(text) + 1


def test_case_d08_is_counted_before_training(shared, real_tokenizer):
    tokenizer = real_tokenizer("chatglm3-6b")
    path = shared / "cases/D08/train.jsonl"
    limit = json.loads((shared / "cases/D08/params.json").read_text())["max_length"]
    read = read_conversations(path)
    found = build_examples(read, tokenizer, max_length=limit)
    assert (found.counts.records, found.counts.dropped, found.counts.shortened) == (4, 2, 1)
    assert [e.source for e in found.examples] == ["train.jsonl:3", "train.jsonl:4"]
    first_turn = [{"role": m.role, "content": m.content} for m in read[3].messages[:2]]
    assert found.examples[1].input_ids.tolist() == encode_rows(first_turn, tokenizer)[0][0]
    cut = build_examples(read, tokenizer, max_length=limit, truncation="truncate_right")
    assert (cut.counts.dropped, cut.counts.cut, cut.counts.shortened) == (1, 1, 1)
    with pytest.raises(DataError, match="no trainable row is left"):
        build_examples(read[:1], tokenizer, max_length=limit)


def rows_of_turns(tokenizer, policy, *turns, max_length, **options):
    """Answers of the rows that are kept, and the counts (shortened, split, cut, lost turns)."""
    found = build(
        tokenizer,
        [conversation(("q", "a")), conversation(*turns)],
        truncation=policy,
        max_length=max_length,
        **options,
    )
    counted = found.counts
    return counted.rows - 1, counted.shortened, counted.split, counted.cut, counted.lost_turns


@pytest.mark.parametrize("family", ["chatglm", "chatglm2"])
@pytest.mark.parametrize("policy", ["truncate_right", "truncate_prompt", "drop_oldest_turns"])
def test_a_turn_whose_own_row_goes_is_counted_as_lost(stub, family, policy):
    """The second and third turn are over the limit with answers that nothing makes shorter."""
    question = "q" * 50 if policy == "truncate_right" else "q"
    answer = "a" if policy == "truncate_right" else "a" * 50
    turns = [("q", "a"), (question, answer), (question, answer)]
    counted = rows_of_turns(stub[family], policy, *turns, max_length=40)
    assert counted == (1, 1, 0, 0, 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_turns_after_a_cut_answer_are_counted_as_lost(stub, family):
    turns = [("q", "a"), ("q", "b" * 80), ("q", "c")]
    counted = rows_of_turns(stub[family], "truncate_right", *turns, max_length=70)
    rows = 2 if family in ("chatglm", "chatglm2") else 1
    assert counted == (rows, 0, 0, 1, 1)


@pytest.mark.parametrize("family", ["chatglm3", "glm4"])
def test_the_oldest_turns_that_go_are_counted_as_lost(stub, family):
    turns = [("q" * 30, "a"), ("q", "a" * 30), ("q", "c")]
    assert rows_of_turns(stub[family], "drop_oldest_turns", *turns, max_length=30)[4] == 2


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("policy", ["drop_oldest_turns", "split"])
def test_under_last_turn_the_history_that_goes_is_counted_as_lost(stub, family, policy):
    turns = [("q" * 30, "a"), ("q", "a" * 30), ("q", "c")]
    counted = rows_of_turns(stub[family], policy, *turns, max_length=40, labels="last_turn")
    assert (counted[0], counted[4]) == (1, 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_under_last_turn_no_earlier_answer_is_cut_in_place_of_the_last(stub, family):
    turns = [("q", "a" * 60), ("q", "c")]
    counted = rows_of_turns(
        stub[family], "truncate_right", *turns, max_length=40, labels="last_turn"
    )
    assert counted == (0, 0, 0, 0, 0)


def test_official_labels_stay_official_where_a_question_is_cut(stub):
    """ChatGLM-6B's own code takes <sop> as a label."""
    tokenizer = stub["chatglm"]
    dialogue = conversation(("q" * 60, "a"))
    found = build(tokenizer, [dialogue], truncation="truncate_prompt", labels="official")
    trained = [label for label in found.examples[0].labels.tolist() if label != -100]
    assert tokenizer.decode(trained) == "⟦<sop>⟧a⟦<eop>⟧"
