"""Files in other encodings than UTF-8: named with their way out, read line by line on request."""

import gzip
import json
import subprocess

import pyarrow as pa
import pytest

from glmforge.data import Problem, read_conversations
from glmforge.data.preparing import PrepareSettings, prepare
from glmforge.data.sources import ReadOptions, iterate
from glmforge.errors import DataError

PAIRS = [(f"问题{n}怎么做呢", f"这是第{n}个回答，请看。") for n in range(6)]
FOREIGN = (2, 4)  # which records are GBK


def mixed(texts):
    return [text.encode("gb18030" if n in FOREIGN else "utf-8") for n, text in enumerate(texts)]


def objects(**options):
    return [
        json.dumps({"query": ask, "response": told}, ensure_ascii=False, **options)
        for ask, told in PAIRS
    ]


def array(texts):
    return b"[\n" + b",\n".join(mixed(texts)) + b"\n]"


def yaml_corpus():
    entries = [f"- - {ask}\n  - {told}\n" for ask, told in PAIRS]
    return b"conversations:\n" + b"".join(mixed(entries))


FILES = {
    "a.jsonl": b"\n".join(mixed(objects())),
    "a.json": array(objects()),
    "marked.json": b"\xef\xbb\xbf" + array(objects()),
    "pretty.json": array(objects(indent=2)).replace(b"\n", b"\r\n"),
    "a.json.gz": gzip.compress(array(objects())),
    "a.csv": b"query,response\n" + b"".join(mixed(f"{ask},{told}\n" for ask, told in PAIRS)),
    "a.yml": yaml_corpus(),
}


def texts_of(path, **options):
    return [
        tuple(message.content for message in conversation.messages)
        for conversation in read_conversations(path, **options)
    ]


@pytest.mark.parametrize("name", FILES)
def test_single_gbk_lines_are_read_on_request_in_every_format(name, tmp_path):
    """And the others stay what they are."""
    path = tmp_path / name
    path.write_bytes(FILES[name])
    assert texts_of(path, repairs=["gbk"]) == PAIRS
    faults = [item for item in iterate(path, ReadOptions()) if isinstance(item, Problem)]
    assert {fault.rule for fault in faults} == {"not-utf-8"}
    assert all("set repair: [gbk]" in fault.advice for fault in faults)


@pytest.mark.parametrize("piece", [7, 100])
def test_lines_are_decoded_whole_whatever_the_pieces(piece, tmp_path, monkeypatch):
    monkeypatch.setattr("glmforge.data.documents._PIECE", piece)
    path = tmp_path / "a.json"
    path.write_bytes(array(objects()))
    assert texts_of(path, repairs=["gbk"]) == PAIRS


def test_a_line_of_utf8_and_gbk_text_is_refused_not_misread(tmp_path):
    """Read as GBK its UTF-8 part would be nonsense, and silently so."""
    path = tmp_path / "one-line.json"
    path.write_bytes(b"[" + b",".join(mixed(objects())) + b"]")
    for repairs in ((), ("gbk",)):
        (fault,) = iterate(path, ReadOptions(repairs=repairs))
        assert "it holds UTF-8 and other text together" in str(fault)
        assert "nothing after it was read" in fault.text


def test_a_gbk_header_names_columns_on_request(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("问,答\n甲,乙\n".encode("gbk"))
    columns = {"query": "问", "response": "答"}
    assert texts_of(path, repairs=["gbk"], columns=columns) == [("甲", "乙")]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.txt", "a.yml"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_another_unicode_encoding_is_named_in_every_format(name, encoding, tmp_path):
    path = tmp_path / name
    path.write_bytes("query,response\n问,答\n".encode(encoding))
    with pytest.raises(DataError, match=f"{name}:1: the file is {encoding.upper()}, .*`iconv"):
        list(iterate(path, ReadOptions()))


@pytest.mark.parametrize("kind", ["plain", "gzip", "zstd"])
def test_the_conversion_that_is_offered_works(kind, tmp_path):
    path = tmp_path / f"a.jsonl{'' if kind == 'plain' else '.x'}"
    data = "\n".join(objects()).encode("gbk")
    path.write_bytes(data if kind == "plain" else pa.compress(data, kind, asbytes=True))
    fault = next(iter(iterate(path, ReadOptions())))
    command = str(fault.advice).split("`")[1]
    assert f"{kind} -dc" in command or kind == "plain"
    if kind == "zstd":
        return  # not installed everywhere
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    (written,) = set(tmp_path.iterdir()) - {path}
    assert texts_of(written) == PAIRS


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.txt"])
def test_wide_unicode_without_a_mark_is_named(stub, tmp_path, encoding, name):
    """Its zero bytes made it GBK, or a CSV whose columns are single letters."""
    texts = {
        "a.jsonl": "\n".join(objects()) + "\n",
        "a.json": "[\n" + ",\n".join(objects()) + "\n]",
        "a.csv": "query,response\n" + "".join(f"{ask},{told}\n" for ask, told in PAIRS),
        "a.txt": "第一段，从一到万。\n\n第二段\n",
    }
    path = tmp_path / name
    path.write_bytes(texts[name].encode(encoding))
    called = encoding.upper().replace("-LE", "LE").replace("-BE", "BE")
    for read in (
        lambda: list(iterate(path, ReadOptions())),
        lambda: prepare(
            path, lambda: stub["chatglm3"], tmp_path / "s", PrepareSettings(max_length=64)
        ),
    ):
        with pytest.raises(DataError, match=f"the file is {called}, not UTF-8") as caught:
            read()
    command = str(caught.value).split("`")[1]
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    assert (tmp_path / f"a.utf8{path.suffix}").read_text(encoding="utf-8") == texts[name]


def test_big5_is_not_taken_for_gbk(tmp_path):
    """Not on request either: it would be read as nonsense."""
    told = "謝謝您的關心，這裡的天氣還不錯"
    path = tmp_path / "a.csv"
    path.write_bytes(f"query,response\n請問臺灣的天氣如何呢,{told}\n".encode("big5"))
    for repairs in ((), ("gbk",)):
        (fault,) = iterate(path, ReadOptions(repairs=repairs))
        assert fault.advice.startswith("it reads as Big5: convert the file: `iconv -f BIG5 ")


@pytest.mark.parametrize(
    "text", ["繁體字也可以用國標碼來寫的，請看這個句子", "镕垚喆，生僻字", "好", "喂，你好吗？"]
)
def test_gbk_is_not_taken_for_big5(tmp_path, text):
    path = tmp_path / "a.csv"
    path.write_bytes(f"query,response\n问,{text}\n".encode("gbk"))
    assert texts_of(path, repairs=["gbk"]) == [("问", text)]


def test_a_zero_in_utf8_text_makes_it_no_wide_unicode(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("some text with \0 in it, and more\n", encoding="utf-8")
    assert texts_of(path) == [("some text with \0 in it, and more",)]
