"""Which encoding bytes are in that are not UTF-8, by what their text would look like.

Only for words: nothing is read by such a guess, a report names it and the way to convert the file.
``reading`` asks about the first bytes of a file and about lines that cannot be decoded.
"""

import re

_WIDE = (
    "UTF-32LE",
    "UTF-32BE",
    "UTF-16LE",
    "UTF-16BE",
)  # 16 bits never look like 32, but 32 like 16
_ASCII = re.compile("[\t\r\n -~]")
_WRITTEN = re.compile(
    "[\t\r\n -~\u00a0-\u024f\u2010-\u203f\u3000-\u30ff\u4e00-\u9fff\uff00-\uffef]"
)
_JUDGED_CHARACTERS = 4
_LAST_COMMON_BIG5 = 0xC6
"""The first byte of Big5's last common character; the rare ones are behind it."""


def unmarked_unicode(head: bytes) -> str:
    """The Unicode encoding of bytes without a byte order mark; empty where they look like UTF-8.

    Text of any language has spaces, digits or line ends, whose other bytes are zeros; read in the
    wrong order these are Chinese characters, so the reading with more of them is the right one.
    """
    if b"\0" not in head:
        return ""
    best, most = "", 0.01
    for name in _WIDE:
        width = 4 if "32" in name else 2
        try:
            text = head[: len(head) // width * width].decode(
                name, "strict" if width == 4 else "replace"
            )
        except UnicodeDecodeError:
            continue
        if not text or len(_WRITTEN.findall(text)) < 0.95 * len(text):
            continue
        share = len(_ASCII.findall(text)) / len(text)
        if share > most:
            best, most = name, share
    return best


def looks_like_big5(line: bytes, as_gbk: str) -> bool:
    """Whether bytes that can be read as GBK are rather Big5.

    Almost all of a text in GBK is of the older, smaller GB2312, and almost all of one in Big5 of
    its common half; a text in the one, read as the other, is full of rare characters.
    """
    try:
        as_big5 = line.decode("big5")
    except UnicodeDecodeError:
        return False
    chinese = [letter for letter in as_gbk if letter > "\x7f"]
    if len(chinese) < _JUDGED_CHARACTERS:
        return False
    common_gbk = sum(bool(letter.encode("gb2312", "ignore")) for letter in chinese)
    found = [letter.encode("big5")[0] for letter in as_big5 if letter > "\x7f"]
    common_big5 = sum(first <= _LAST_COMMON_BIG5 for first in found)
    return common_gbk < 0.8 * len(chinese) and common_big5 >= 0.9 * len(found)
