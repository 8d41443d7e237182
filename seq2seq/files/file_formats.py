"""Files that are no lines of UTF-8, recognised by their first bytes: what they are, what to do."""

import codecs
import re
import unicodedata

from seq2seq.files.compression import COMPRESSIONS, SUFFIXES

BLOCK = 1 << 12  # bytes that decide
UNUSUAL = {"Cc", "Cn", "Co", "Cs"}  # categories of Unicode: control, unassigned, private, surrogate
UNPACK = "decompress it, for example with"
# What the first bytes mean, and what makes text of such a file.
SIGNATURES = {
    re.compile(rb"\x04\x22\x4d\x18"): ("compressed with lz4", f"{UNPACK} lz4 -d"),
    **{
        compression.signature: ("compressed twice", "decompress it once")
        for compression in COMPRESSIONS
    },
    re.compile(rb"PK\x03\x04"): ("a zip archive", f"{UNPACK} unzip"),
    re.compile(rb"7z\xbc\xaf\x27\x1c"): ("a 7-Zip archive", f"{UNPACK} 7z x"),
    re.compile(rb"(?s).{257}ustar"): ("a tar archive", "unpack it, for example with tar -xf"),
}  # fmt: skip
MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",  # begins with the mark of UTF-16
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def other_format(start: bytes) -> str:
    """What a file with these first bytes is and what to do, empty for lines of text in UTF-8."""
    for pattern, (format_, advice) in SIGNATURES.items():
        if pattern.match(start):
            return (
                f"is {format_}: expected text in UTF-8, or compressed once ({SUFFIXES}); {advice}"
            )
    marked = (name for mark, name in MARKS.items() if start.startswith(mark))
    if encoding := next(marked, "") or _unmarked_utf16(start[:BLOCK]):
        return (
            f"is text in {encoding}: expected UTF-8; convert it, for example with iconv -f "
            f"{encoding} -t UTF-8"
        )
    if start.count(b"\r") > 1 and b"\n" not in start:
        return r"has lines that end in \r: expected \n; convert it, for example with tr '\r' '\n'"
    return ""


def _unmarked_utf16(start: bytes) -> str:
    r"""The encoding of UTF-16 without a byte order mark, empty for other files.

    NUL is the first or the second byte of some characters, such as \n. Of most alphabets this byte
    of all others is a control character, too. Those of other scripts are not UTF-8.
    """
    if len(start) < 4 or len(start) % 2:
        return ""
    first, second = start[::2], start[1::2]
    for encoding, high, low in (("UTF-16BE", first, second), ("UTF-16LE", second, first)):
        controls = sum(byte < 0x20 for byte in high)
        line_feeds = [a for a, b in zip(high, low, strict=True) if b == 0x0A]
        if (
            2 * line_feeds.count(0) >= len(line_feeds)
            and (2 * controls >= len(high) or not _is_text(start, "UTF-8"))
            and 0 in high
            and _is_text(start, encoding)
        ):
            return encoding
    return ""


def _is_text(start: bytes, encoding: str) -> bool:
    """Whether these bytes, perhaps cut off in a character, are text. Of UTF-16, which hardly any
    bytes contradict, it has no control characters but line ends and tabs, and known characters."""
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(start)
    except UnicodeDecodeError:
        return False
    return encoding == "UTF-8" or not any(
        unicodedata.category(character) in UNUSUAL and character not in "\t\n\r"
        for character in text
    )
