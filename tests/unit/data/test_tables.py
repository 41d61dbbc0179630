"""Tables: every row is a record or a problem, and no stray quote joins rows."""

import csv
import io
import random

import pytest

from glmforge.data import Problem, read_conversations
from glmforge.data.sources import ReadOptions, iterate
from glmforge.data.tables import read_csv, read_parquet
from glmforge.errors import DataError

HEADER = "instruction,input,output\n"


def read(path, text):
    """(conversations, problems) of a table."""
    path.write_text(text, encoding="utf-8")
    items = list(iterate(path, ReadOptions()))
    problems = [item for item in items if isinstance(item, Problem)]
    return [item for item in items if not isinstance(item, Problem)], problems


def rows(first, last):
    return "".join(f"问{n},,答{n}\n" for n in range(first, last))


def test_a_quote_that_is_never_closed_swallows_nothing_in_silence(tmp_path):
    text = HEADER + rows(0, 20) + '问题,,"未闭合的回答\n' + rows(20, 40)
    good, (problem,) = read(tmp_path / "a.csv", text)
    assert len(good) == 20
    assert (problem.source, problem.rule) == ("a.csv:22", "not-csv")
    assert "never closed; nothing after it was read" in problem.text


@pytest.mark.parametrize(
    "last", ['问题,,"引号开头"的回答\n', '问题,,回答"\n', '"问题",,回答\n', '问题,,"回答"\n']
)
def test_two_stray_quotes_never_make_one_answer_of_the_rows_between(tmp_path, last):
    text = HEADER + rows(0, 3) + '问题,,"未闭合\n' + rows(3, 9) + last + rows(9, 12)
    good, problems = read(tmp_path / "a.csv", text)
    assert problems[0].source == "a.csv:5"
    assert "lines 5 to 12 were taken for one row" in problems[0].text
    assert len(good) == 6
    assert all("\n" not in m.content for c in good for m in c.messages)


def test_text_after_a_closing_quote_is_a_problem_not_a_lost_quote(tmp_path):
    good, (problem,) = read(tmp_path / "a.tsv", 'query\tresponse\n问\t"喂"这个词\n问\t他说"好"\n')
    assert problem.source == "a.tsv:2"
    assert "write a quote inside a quoted cell twice" in problem.advice
    assert good[0].messages[1].content == '他说"好"'


@pytest.mark.parametrize("columns", [2, 3])
def test_answers_of_several_lines_come_out_as_they_were_written(tmp_path, columns):
    answers = [
        "一，\n二\n三",
        "First, this.\nThen, that.\nLast, those.",
        'a "b", c\n\nd',
        "code(a,b)\nend",
    ]
    file = io.StringIO()
    names = ["query", "id", "response"] if columns == 3 else ["query", "response"]
    csv.writer(file).writerows([names, *([*"问x"[: columns - 1], text] for text in answers)])
    good, problems = read(tmp_path / "a.csv", file.getvalue())
    assert problems == []
    assert [c.messages[1].content for c in good] == [text.replace("\r", "") for text in answers]


def test_a_short_row_is_named_with_its_cells(tmp_path):
    _, (problem,) = read(tmp_path / "a.csv", HEADER + "问,\n" + "问,,答\n")
    assert problem.source == "a.csv:2"
    assert "the row has 2 cells for 3 columns" in problem.text


def test_blank_lines_before_the_header_and_semicolons_are_no_obstacle(tmp_path):
    for text in ("\n \nquery,response\n问,答\n", "\n\nquery;response\n问;答\n"):
        path = tmp_path / "a.csv"
        path.write_text(text, encoding="utf-8")
        (found,) = read_conversations(path)
        assert (found.source, found.messages[0].content) == ("a.csv:4", "问")


@pytest.mark.parametrize("before", ["", "\n \n"])
def test_a_header_that_names_a_column_twice_is_an_error_of_its_line(tmp_path, before):
    text = before + "instruction,output,output,,\n问,答一,答二,,\n"
    good, (problem,) = read(tmp_path / "a.csv", text)
    assert good == []
    assert (problem.source, problem.rule) == (
        f"a.csv:{1 + before.count(chr(10))}",
        "doubled-column",
    )
    assert "more than one column 'output'" in problem.text


def test_columns_without_a_name_may_be_several(tmp_path):
    good, problems = read(tmp_path / "a.csv", "query,response,,\n问,答,,\n")
    assert (len(good), problems) == (1, [])


@pytest.mark.parametrize(
    "cell", ["```python\nprint(add(1,2))\n```", "a,b\nc,d\ne", "x\n1,2\ny\n3,4"]
)
def test_a_cell_of_code_is_no_stray_quote(tmp_path, cell):
    """Its lines have a comma each, but it does not end as a row cut in the middle does."""
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["prompt", "response"], ["怎么相加", cell], ["你好", "好"]])
    found = list(read_csv(tmp_path / "t.csv", gbk=False))
    assert [item.value["response"] for item in found] == [cell, "好"]


@pytest.mark.parametrize("ending", ["\r", "\r\n", "\n"])
def test_lines_end_as_any_system_ends_them(tmp_path, ending):
    """Also with carriage returns alone, by which a whole table was once taken for its header."""
    text = ending.join(["prompt,response", "你好,好", "再见,见", ""])
    (tmp_path / "t.csv").write_bytes(text.encode())
    found = list(read_csv(tmp_path / "t.csv", gbk=False))
    assert [(item.source, item.value["response"]) for item in found] == [
        ("t.csv:2", "好"), ("t.csv:3", "见"),
    ]  # fmt: skip
    (tmp_path / "t.txt").write_bytes(ending.join(["一", "二", "", "三"]).encode())
    assert [c.messages[0].content for c in read_conversations(tmp_path / "t.txt")] == [
        "一\n二", "三",
    ]  # fmt: skip
    assert len(read_conversations(tmp_path / "t.csv")) == 2


def test_a_null_column_is_there_and_empty_and_structs_lose_their_padding(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"prompt": None, "response": "a", "tools": [{"name": "f", "x": None}]},
            {"prompt": "q", "response": "b", "tools": [{"name": "g", "x": 1}]}]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    first, second = (item.value for item in read_parquet(tmp_path / "t.parquet"))
    assert first == {"prompt": None, "response": "a", "tools": [{"name": "f"}]}
    assert second == rows[1]


def test_a_column_whose_name_is_no_text_is_a_damaged_file(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"promptname": ["q"], "response": ["a"]}), path)
    path.write_bytes(path.read_bytes().replace(b"promptname", b"prompt\xff\xfe\xfd\xfc"))
    with pytest.raises(DataError, match="the file is damaged"):
        read_conversations(path)


def test_every_row_that_a_program_wrote_is_read(tmp_path):
    """Whatever its cells hold, other kinds of line ends too."""
    draw = random.Random(5)
    signs = '今天,我们"去"公园, 散步\\\n怎么样\u2028\x0b呢'

    def cell():
        return "".join(draw.choices(signs, k=40)).strip() or "x"

    for columns in (["prompt", "response"], ["instruction", "input", "output"]):
        rows = [[cell() for _ in columns] for _ in range(1000)]
        rows += [["a,b\nc,d\ne", *columns[1:]], [*columns[:-1], "import x\nf(a,b)\ng(c,d)"]]
        with (tmp_path / "t.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([columns, *rows])
        found = list(read_csv(tmp_path / "t.csv", gbk=False))
        assert [list(item.value.values()) for item in found] == rows


def test_one_broken_row_takes_the_trust_in_all_quotes(tmp_path):
    """Cells like rows are doubted again."""
    text = 'query,response\n"a, b",c\n问,"x\n1,2\n3,4"\n'
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    assert [type(item).__name__ for item in read_csv(path, gbk=False)] == ["Record"] * 2
    path.write_text(text + "one\n", encoding="utf-8")
    kinds = [type(item).__name__ for item in read_csv(path, gbk=False)]
    assert kinds == ["Record", "Problem", "Problem"]


@pytest.mark.parametrize("last", ["再见,见\r", "再见,见\n", "再见,见"])
def test_a_spreadsheet_of_an_old_mac_has_line_feeds_inside_of_cells(tmp_path, last):
    (tmp_path / "t.csv").write_bytes(f'prompt,response\r"你\n好",好\r{last}'.encode())
    said = [tuple(m.content for m in c.messages) for c in read_conversations(tmp_path / "t.csv")]
    assert said == [("你\n好", "好"), ("再见", "见")]
