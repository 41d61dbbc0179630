"""Files of any bytes: records with their lines, or a clean report."""

import codecs
import contextlib
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from glmforge.data import Conversation, Problem, read_conversations
from glmforge.data.sources import ReadOptions, data_files, iterate
from glmforge.errors import DataError

GOOD = {"messages": [{"role": "user", "content": "问"}, {"role": "assistant", "content": "答"}]}
LINE = json.dumps(GOOD, ensure_ascii=False)


def write(path, data):
    path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8"))
    return path


def sources(path, **options):
    return [item.source for item in iterate(path, ReadOptions(**options))]


def problems(path, **options):
    return [item for item in iterate(path, ReadOptions(**options)) if isinstance(item, Problem)]


def test_blank_lines_crlf_and_a_missing_last_newline_do_not_matter(shared):
    """Case D02."""
    read = read_conversations(shared / "cases/D02/train.jsonl")
    assert [f"train.jsonl:{line}" for line in (1, 2, 4, 7)] == [c.source for c in read]
    texts = [message.content for conversation in read for message in conversation.messages]
    assert not any(text.endswith("\r") for text in texts)
    assert texts[-1] == "山高\r\n水长"


def test_a_gbk_line_is_named_with_line_byte_and_the_way_out(shared):
    """Case D04."""
    path = shared / "cases/D04/train.jsonl"
    with pytest.raises(DataError) as caught:
        read_conversations(path)
    assert "train.jsonl:3" in str(caught.value)
    assert "byte offset 320" in str(caught.value)
    assert "GBK" in str(caught.value)
    assert "iconv -f GB18030 -t UTF-8" in str(caught.value)
    repaired = read_conversations(path, repairs=["gbk"])
    assert len(repaired) == 3
    assert not any("\ufffd" in m.content for c in repaired for m in c.messages)


def test_side_columns_of_changing_type_have_no_effect(shared):
    """Case D14."""
    path = shared / "cases/D14/train.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    read = read_conversations(path)
    assert [[m["content"] for m in line["messages"]] for line in lines] == [
        [m.content for m in c.messages] for c in read
    ]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.txt", "noending"])
def test_lines_and_arrays_are_told_apart_by_content(tmp_path, name):
    array = f"[\n{LINE},\n  {LINE}\n]\n"
    assert sources(write(tmp_path / name, array)) == [f"{name}:2", f"{name}:3"]
    assert sources(write(tmp_path / name, f"[{LINE},{LINE}]")) == [f"{name}:1", f"{name}:1#2"]
    assert sources(write(tmp_path / name, f"{LINE}\n{LINE}")) == [f"{name}:1", f"{name}:2"]
    pretty = json.dumps(GOOD, indent=2, ensure_ascii=False)
    assert sources(write(tmp_path / name, f"{pretty}\n{pretty}\n")) == [f"{name}:1", f"{name}:13"]


def test_a_byte_order_mark_is_no_part_of_the_first_record(tmp_path):
    for text in (LINE, f"[{LINE}]"):
        path = write(tmp_path / "a.jsonl", codecs.BOM_UTF8 + text.encode())
        assert [c.messages[0].content for c in read_conversations(path)] == ["问"]


def test_utf16_is_refused_with_the_conversion(tmp_path):
    path = write(tmp_path / "a.jsonl", LINE.encode("utf-16"))
    with pytest.raises(DataError, match=r"UTF-16, not UTF-8.*iconv -f UTF-16"):
        read_conversations(path)


def test_compressed_files_are_told_by_their_bytes(tmp_path):
    write(tmp_path / "a.json", gzip.compress(LINE.encode()))
    assert len(read_conversations(tmp_path / "a.json")) == 1
    zstd = pa.compress(LINE.encode(), codec="zstd", asbytes=True)
    write(tmp_path / "b.jsonl", zstd)
    assert len(read_conversations(tmp_path / "b.jsonl")) == 1


def test_a_cut_compressed_file_is_a_named_problem(tmp_path):
    path = write(tmp_path / "a.gz", gzip.compress(LINE.encode() * 1000)[:40])
    (problem,) = problems(path)
    assert problem.rule == "damaged-file"


def test_every_broken_line_is_reported_and_the_others_are_read(tmp_path):
    path = write(tmp_path / "a.jsonl", f'{LINE}\n{{"messages": [\n{LINE}\n[1, 2]\nnull\n')
    assert sources(path) == [f"a.jsonl:{n}" for n in range(1, 6)]
    assert [(p.source, p.rule) for p in problems(path)] == [
        ("a.jsonl:2", "not-json"),
        ("a.jsonl:4", "not-an-object"),
        ("a.jsonl:5", "not-an-object"),
    ]


def test_a_broken_first_line_does_not_hide_the_rest(tmp_path):
    path = write(tmp_path / "a.jsonl", f'{{"messages": [}}\n{LINE}\n{LINE}\n')
    assert sources(path) == ["a.jsonl:1", "a.jsonl:2", "a.jsonl:3"]


@pytest.mark.parametrize("broken", ['{"messages": [}', '{"messages": [', "{", "[oh", '{"a": "b",'])
@pytest.mark.parametrize("number", [2, 3, 40])
def test_many_broken_lines_at_the_top_do_not_hide_the_rest(tmp_path, broken, number):
    path = write(tmp_path / "a.jsonl", f"{broken}\n" * number + f"{LINE}\n" * 3)
    assert len(sources(path)) == number + 3
    assert [p.source for p in problems(path)] == [f"a.jsonl:{n + 1}" for n in range(number)]


def test_a_message_a_line_is_still_one_document(tmp_path):
    messages = ",\n".join(json.dumps(message) for message in GOOD["messages"])
    record = f'{{"messages": [\n{messages}\n]}}'
    for text in (record, f"{record}\n{record}", f"[{record},\n{record}]", f"[\n{LINE}\n]"):
        assert problems(write(tmp_path / "a.json", text)) == []


def test_a_cut_array_is_reported_where_it_breaks(tmp_path):
    path = write(tmp_path / "a.json", f"[{LINE},\n{LINE[:30]}")
    items = list(iterate(path, ReadOptions()))
    assert isinstance(items[0], Conversation)
    assert items[1].rule == "not-json"
    path = write(tmp_path / "b.json", f"[{LINE},\n")
    assert "not closed" in problems(path)[0].text


def test_depth_and_digits_beyond_the_parser_are_problems(tmp_path):
    path = write(tmp_path / "a.jsonl", f'{LINE}\n{"[" * 100_000}\n{{"n": {"9" * 5000}}}\n')
    assert [p.rule for p in problems(path)] == ["not-json", "not-json"]


def test_csv_rows_have_the_file_line_they_start_on(tmp_path):
    path = write(tmp_path / "a.csv", '\ufeffquery,response\n"一\n二",答\n\n问,答\n')
    read = read_conversations(path)
    assert [c.source for c in read] == ["a.csv:2", "a.csv:5"]
    assert read[0].messages[0].content == "一\n二"


def test_a_csv_row_with_too_many_cells_or_foreign_bytes_is_named(tmp_path):
    data = (
        "query,response\n问,答\n问,答,多\n".encode() + "坏,字\n".encode("gbk") + "问,答\n".encode()
    )
    path = write(tmp_path / "a.csv", data)
    assert [(p.source, p.rule) for p in problems(path)] == [
        ("a.csv:3", "not-csv"),
        ("a.csv:4", "not-utf-8"),
    ]
    assert sorted(sources(path)) == ["a.csv:2", "a.csv:3", "a.csv:4", "a.csv:5"]


def test_parquet_gives_tools_without_the_nulls_of_the_columns(tmp_path):
    tool = {"name": "a", "parameters": {"type": "object"}}
    rows = [
        {**GOOD, "tools": [tool]},
        {**GOOD, "tools": [{"name": "b", "parameters": {"required": ["x"]}}]},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    read = read_conversations(tmp_path / "a.parquet")
    assert [c.source for c in read] == ["a.parquet:1", "a.parquet:2"]
    assert read[0].tools == (tool,)


def test_a_saved_dataset_is_read_from_its_arrow_files(tmp_path):
    directory = tmp_path / "set"
    directory.mkdir()
    table = pa.Table.from_pylist([GOOD] * 3)
    with pa.OSFile(str(directory / "data-00000.arrow"), "wb") as sink:
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    write(directory / "state.json", "{}")
    assert len(read_conversations(directory)) == 3


def test_a_directory_gives_its_data_files_and_a_missing_path_is_named(tmp_path):
    write(tmp_path / "b.jsonl", LINE)
    write(tmp_path / "a.json", f"[{LINE}]")
    write(tmp_path / "LICENSE", "text")
    assert [p.name for p in data_files(tmp_path)] == ["a.json", "b.jsonl"]
    with pytest.raises(DataError) as caught:
        data_files([tmp_path / "no.jsonl", tmp_path / "nor.jsonl"])
    assert len(caught.value.problems) == 2


def test_several_splits_are_never_read_as_one_set(tmp_path):
    import datasets

    rows = datasets.Dataset.from_list([json.loads(LINE)] * 3)
    datasets.DatasetDict(train=rows, test=rows).save_to_disk(tmp_path / "saved")
    with pytest.raises(DataError, match=r"several splits; give one of .*saved/test, .*saved/train"):
        iterate(tmp_path / "saved", ReadOptions()).__next__()
    assert len(read_conversations(tmp_path / "saved/train")) == 3
    (tmp_path / "repo/data").mkdir(parents=True)
    for split in ("train", "test"):
        rows.to_parquet(tmp_path / f"repo/data/{split}-00000-of-00001.parquet")
    with pytest.raises(DataError, match="holds the splits test, train; give the files of one"):
        read_conversations(tmp_path / "repo")


def test_files_that_describe_a_directory_are_no_data(shared, tmp_path):
    (tmp_path / "a.jsonl").write_text(LINE, encoding="utf-8")
    (tmp_path / "dataset_info.json").write_text("{}", encoding="utf-8")
    assert len(read_conversations(tmp_path)) == 1
    for place in sorted((shared / "data").iterdir()):
        assert list(problems(place)) == [], place.name


def test_a_damaged_column_ends_in_a_problem_not_in_foreign_memory(tmp_path):
    """Found by fuzzing: offsets that point outside, bytes that are no UTF-8."""
    path = tmp_path / "a.arrow"
    table = pa.Table.from_pylist([json.loads(LINE)] * 3)
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    whole = path.read_bytes()
    start = whole.index(b"\x00\x00\x00\x00\x02\x00\x00\x00\x04\x00\x00\x00")
    path.write_bytes(whole[:start] + b"\xff\xff\xff\x7f" * 2 + whole[start + 8 :])
    assert [problem.rule for problem in problems(path)] == ["damaged-file"]


def test_plain_text_is_paragraphs_for_continued_pretraining(tmp_path):
    path = write(tmp_path / "a.txt", "第一段\n还是第一段\n\n\n第二段\n")
    read = read_conversations(path)
    assert [(c.source, c.messages[0].content) for c in read] == [
        ("a.txt:1", "第一段\n还是第一段"),
        ("a.txt:5", "第二段"),
    ]


def test_an_empty_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"there is no record in the file \(3 bytes\)"):
        read_conversations(write(tmp_path / "a.jsonl", " \n\n"))


@pytest.mark.parametrize(
    ("name", "text"),
    [("b.jsonl", ""), ("b.csv", "prompt,response\n"), ("b.json", "[]"), ("b.csv", "\n\n")],
)
def test_an_empty_file_beside_others_is_named(tmp_path, name, text):
    """It may be the wrong one, or one that was cut."""
    write(tmp_path / "a.jsonl", '{"query": "q", "response": "r"}\n')
    write(tmp_path / name, text)
    with pytest.raises(DataError, match=rf"{name}: there is no record in the file"):
        read_conversations(tmp_path)
    (found,) = read_conversations(tmp_path, on_error="skip")
    assert found.messages[1].content == "r"


@given(data=st.binary(max_size=300))
@example(data=b"[")
@example(data=b"PAR1")
@example(data=b"ARROW1")
@example(data=b"\x1f\x8b\x08")
@example(data=b"\x28\xb5\x2f\xfd")
@example(data=b"query,response\n\x00,\xff")
@example(data=b"a\rb,c\n")  # found by fuzzing: the csv module refuses a bare carriage return
@example(data=b'{"messages": [{"role": []}]}')
@example(data=b'{"messages": [{"role": "user", "content": {}}], "tools": 3}')
def test_any_bytes_end_in_records_or_problems(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.bin"
    for suffix in (".jsonl", ".csv", ".yml", ".arrow"):
        target = path.with_suffix(suffix)
        target.write_bytes(data)
        with contextlib.suppress(DataError):
            for item in iterate(target, ReadOptions()):
                assert str(item.source)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "messages conversations role from content value tools tool_calls function name "
                "arguments instruction output history system query response text instances "
                "parameters observation metadata conversation human assistant".split()
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(value=JSON_VALUES)
def test_any_json_value_ends_in_records_or_problems(tmp_path_factory, value):
    from glmforge.data.rules import check

    path = tmp_path_factory.getbasetemp() / "json.jsonl"
    path.write_text(f"{LINE}\n{json.dumps(value)}\n", encoding="utf-8")
    for item in iterate(path, ReadOptions()):
        if isinstance(item, Conversation):
            check(item)
