"""Parsing of the project's Markdown documents: code, commands, paths, links, flags.

Code is fenced with ``` or indented by four spaces; a fenced block with a language other than Python
is a list of commands. In a block with lines that start with "$ " only these are commands.
"""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "benchmarks").glob("*.md")),
]
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in DOCUMENTS}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)(?: {4}.*\n)+")
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PROGRAMS = ("python", "python3", "pytest", "pip")
OPERATORS = {"|", "&&", "||", ";", "&"}


class Command(NamedTuple):
    """One command of a document."""

    words: list[str]  # the program and its arguments
    environment: dict[str, str]  # NAME=value in front of it
    stdin: str | None  # the file of "<", else None
    echoed: str | None  # the text that "echo TEXT |" writes to it, else None
    stdout: str | None  # the file of ">", else None

    def __str__(self) -> str:
        return " ".join(self.words)


def fenced(text: str, *languages: str) -> list[str]:
    """The fenced blocks in these languages."""
    return [code for language, code in FENCE.findall(text) if language in languages]


def inline_code(text: str) -> list[str]:
    """The text between single backticks, outside fenced and indented blocks."""
    return INLINE.findall(INDENTED.sub("", FENCE.sub("", text)))


def commands(text: str) -> list[Command]:
    """All commands of a document that run Python, pytest or pip, in its order of blocks."""
    blocks = [*fenced(text, "", "bash", "sh"), *INDENTED.findall(FENCE.sub("", text))]
    lines = []
    for block in blocks:
        joined = block.replace("\\\n", " ").split("\n")
        prompted = [line.removeprefix("$ ") for line in joined if line.startswith("$ ")]
        lines += prompted or joined
    lines += [code for code in inline_code(text) if code.split()[0] in PROGRAMS]
    return [command for line in lines for command in parsed_line(line)]


def parsed_line(line: str) -> list[Command]:
    """The commands of one line of shell, also inside a quoted argument (ssh --command="…")."""
    if not any(program in line for program in PROGRAMS):
        return []
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    parsed, segment, echoed = [], [], None
    for word in [*lexer, ";"]:
        if word not in OPERATORS:
            segment.append(word)
            continue
        parsed += parsed_segment(segment, echoed)
        echoes = segment[:1] == ["echo"] and word == "|"
        echoed, segment = " ".join(segment[1:]) + "\n" if echoes else None, []
    return parsed


def parsed_segment(words: list[str], echoed: str | None) -> list[Command]:
    """The command between two operators of the shell; none if it runs none of PROGRAMS."""
    nested = [command for word in words if " " in word for command in parsed_line(word)]
    start = next((i for i, word in enumerate(words) if word in PROGRAMS), None)
    if start is None:
        return nested
    files, kept = {"<": None, ">": None}, []
    rest = iter(words[start:])
    for word in rest:
        if word in files:
            files[word] = next(rest)
        else:
            kept.append(word)
    environment = dict(word.split("=", 1) for word in words[:start] if re.match(r"[A-Z_]+=", word))
    return [*nested, Command(kept, environment, files["<"], echoed, files[">"])]


def links(text: str) -> list[str]:
    """The targets of links within the project."""
    outside = FENCE.sub("", text)
    return [target for target in LINK.findall(outside) if not re.match(r"[a-z]+:", target)]


def anchors(text: str) -> set[str]:
    """The anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def sections(text: str) -> dict[str, str]:
    """The text below each heading, up to the next one."""
    parts = re.split(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def table_rows(text: str) -> list[list[str]]:
    """The cells of the rows of all tables, without backticks; headings are not included."""
    rows = [
        [cell.strip().replace("`", "") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in text.split("\n")
        if line.startswith("|")
    ]
    dashes = [i for i, row in enumerate(rows) if all(set(cell) <= {"-"} for cell in row)]
    headings = {number for i in dashes for number in (i - 1, i)}
    return [row for i, row in enumerate(rows) if i not in headings]
