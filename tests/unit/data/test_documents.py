"""JSON arrays piece by piece: the same values, lines and faults as from the whole text."""

import codecs
import io
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from glmforge.data import Problem, documents, read_conversations
from glmforge.data.sources import ReadOptions, iterate

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
PAIR = '{"query": "问", "response": "答%s"}'


def broken(source, what):
    return Problem(source=source, rule="r", text=what, advice="a")


def read(data, piece, monkeypatch):
    monkeypatch.setattr(documents, "_PIECE", piece)
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    return list(documents.read_document(io.BytesIO(data), decoder, "a.json", broken))


@given(
    values=st.lists(VALUES, max_size=5),
    indent=st.sampled_from([None, 1]),
    piece=st.integers(1, 40),
    mark=st.booleans(),
)
@example(values=[12, -1.5e300, True], indent=None, piece=1, mark=True)
def test_an_array_gives_its_values_whatever_the_pieces(values, indent, piece, mark):
    text = json.dumps(values, indent=indent, ensure_ascii=False)
    data = text.encode("utf-8", "surrogatepass" if "\\ud" in text else "strict")
    with pytest.MonkeyPatch.context() as patch:
        found = read(b"\xef\xbb\xbf" * mark + data, piece, patch)
    assert [value for _, value in found] == values
    if indent:
        top = [n for n, line in enumerate(text.split("\n"), 1) if line[:1] == " " != line[1:2]]
        starts = [n for n in top if text.split("\n")[n - 1].strip(" ,") not in ("]", "}")]
        assert [line for line, _ in found] == starts


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    ("text", "records", "fault"),
    [
        ("[%s,\n%s", 2, "a.json:2: the array is not closed: the file is cut short"),
        ("[%s,\n {oops}, %s]", 1, "a.json:2: Expecting property name enclosed in double quotes at"),
        ("[%s]\n\n x", 1, "a.json:3: text after the array's closing bracket"),
        ('[%s, {"a": "never closed', 1, "a.json:1: Unterminated string starting at at column 42"),
        ("%s\n%s ,", 2, "a.json:2: Expecting value at column 34"),
    ],
)
def test_a_fault_has_its_place_and_what_comes_before_is_read(
    text, records, fault, piece, monkeypatch
):
    text = text.replace("%s", PAIR % "1")
    *found, problem = read(text.encode(), piece, monkeypatch)
    assert len(found) == records
    assert f"{problem.source}: {problem.text}".startswith(fault)


def test_a_broken_array_is_not_read_to_its_end(monkeypatch):
    class Counting(io.BytesIO):
        taken = 0

        def read(self, size=-1):
            self.taken += size
            return super().read(size)

    monkeypatch.setattr(documents, "_PIECE", 1000)
    stream = Counting(("[{oops}," + (PAIR % "x" + ",") * 10_000 + "1]").encode())
    (problem,) = documents.read_document(
        stream, codecs.getincrementaldecoder("utf-8")(), "a", broken
    )
    assert problem.text == "Expecting property name enclosed in double quotes at column 3"
    assert stream.taken < 5000


def test_foreign_bytes_in_an_array_are_named_after_the_records_before_them(tmp_path):
    path = tmp_path / "a.json"
    lines = [PAIR % "1", PAIR % "2", PAIR % "3"]
    whole = ("[\n" + ",\n".join(lines) + "\n]").encode("gb18030")
    path.write_bytes(whole)
    *_, problem = iterate(path, ReadOptions())
    assert (problem.rule, problem.source) == ("not-utf-8", "a.json:2")
    assert len(read_conversations(path, repairs=["gbk"])) == 3
    mixed = ("[" + ",\n".join(lines)).encode() + b",\n\xff\xfe]"
    path.write_bytes(mixed)
    *_, problem = iterate(path, ReadOptions(repairs=("gbk",)))
    assert (problem.rule, problem.source) == ("not-utf-8", "a.json:4")


def test_records_on_one_line_have_places_of_their_own(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(f"[{PAIR % 1}, 5, {PAIR % 3}]\n", encoding="utf-8")
    assert [item.source for item in iterate(path, ReadOptions())] == [
        "a.json:1", "a.json:1#2", "a.json:1#3",
    ]  # fmt: skip
    path.write_text(f"[{PAIR % 1},\n{PAIR % 2}, {PAIR % 3},\n{PAIR % 4}]", encoding="utf-8")
    assert [item.source for item in iterate(path, ReadOptions())] == [
        "a.json:1", "a.json:2", "a.json:2#2", "a.json:3",
    ]  # fmt: skip


def test_several_dialogues_of_one_record_have_places_of_their_own(tmp_path):
    seed = {"instruction": "i", "instances": [{"input": "1", "output": "a"}] * 2}
    (tmp_path / "a.jsonl").write_text(json.dumps(seed), encoding="utf-8")
    (tmp_path / "b.yml").write_text("conversations:\n- [q, a, b]\n", encoding="utf-8")
    found = [item.source for item in iterate(tmp_path, ReadOptions())]
    assert found == ["a.jsonl:1", "a.jsonl:1#2", "b.yml:2", "b.yml:2#2"]
