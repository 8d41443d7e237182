"""The interactive session: prompts, n-best lists, and the alignment of the last translation."""

import os
import pty
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from seq2seq.decoding.command.formats import FORMATS, Formats
from seq2seq.decoding.command.inputs import Input
from seq2seq.decoding.command.interactive import Session, Terminal, alignment_text
from seq2seq.decoding.command.job import chosen_formats
from seq2seq.decoding.command.output_lines import OutputLines
from seq2seq.decoding.command.progress import DecodingProgress
from seq2seq.decoding.results import Hypothesis, Item, Translation, blank_translation
from tests.support.models.echo import echoing_translator
from tests.support.models.quick_search import quick_searches
from tests.support.models.random_translator import LINES, scored, translator_of
from tests.support.tiny import write_run

ROOT = Path(__file__).parents[3]
HYPOTHESES = [Hypothesis("x y", -0.5), Hypothesis("z", -11.25)]


def test_several_translations_are_a_list_with_ranks_and_scores():
    item = Item("a", "a")
    shown = Terminal().render(0, item, Translation(HYPOTHESES, 2, 2), True).split("\n")
    assert [line.split(maxsplit=2) for line in shown] == [
        ["1", "-0.5000", "x y"],
        ["2", "-11.2500", "z"],
    ]
    assert Terminal().render(0, item, Translation(HYPOTHESES[:1], 2, 2), False) == "x y"
    assert Terminal().render(0, Item(" ", " "), blank_translation(), True) == ""


def test_text_on_a_terminal_may_be_lists_and_other_outputs_keep_their_format(monkeypatch):
    def output(terminal=True, **changes):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: terminal))
        usual = dict(format="text", input="-", output="-", compile_for="")
        return chosen_formats(SimpleNamespace(**(usual | changes))).output

    assert isinstance(output(), Terminal) and isinstance(output(format="tsv:text"), Terminal)
    assert output(format="jsonl") is FORMATS["jsonl"]
    others = dict(input="in.txt"), dict(output="out.txt"), dict(compile_for="v5e:1")
    for changes in (dict(terminal=False), *others):
        assert output(**changes) is FORMATS["text"]


def run_session(translator, lines, align, capsys):
    """stdout and stderr of a session with these input lines."""
    session, source = Session(align), Input("-", "", FORMATS["text"], False)
    formats = Formats(FORMATS["text"], Terminal())
    output_lines = OutputLines(
        translator, "translate", formats, "-", DecodingProgress(0, False, False)
    )
    items = source.items(texts=session.sentences(iter(lines)))
    out, err = "", []
    for text in session.answers(items, output_lines):
        captured = capsys.readouterr()
        err.append(captured.err)
        out += f"{captured.out}{text}\n"
    return out, [*err, capsys.readouterr().err]


def test_each_sentence_is_answered_before_the_next_prompt_and_commands_are_not_translated(
    capsys,
):
    translator, aligned = echoing_translator()[0], []

    def align(number, item):
        aligned.append((number, item.text))
        return f"links of {item.text}"

    lines = [":align", "eins", ":align", "", "zwei drei", ":align", ":align", " :align", "elf"]
    out, err = run_session(translator, lines, align, capsys)
    assert out == "eins\n\nzwei drei\n⁇\nelf\n"  # " :align" is a sentence
    assert ":align shows the alignment" in err[0] and "Ctrl-D" in err[0]
    assert err[0].endswith("> no translation to align yet\n> ")
    assert err[1:] == [
        "> links of eins\n> ",
        "> ",
        "> links of zwei drei\n> links of zwei drei\n> ",
        "> ",
        "> \n",
    ]
    assert aligned == [(0, "eins"), (2, "zwei drei"), (2, "zwei drei")]


def test_without_alignment_the_command_is_a_sentence(capsys):
    out, err = run_session(echoing_translator()[0], [":align"], None, capsys)
    assert out == "⁇\n" and ":align" not in "".join(err)


@quick_searches()
def test_the_alignment_shown_is_that_of_the_best_translation():
    translator = translator_of(layers=2)
    for number, line in enumerate(LINES):
        if not line:
            assert alignment_text(translator, number, Item(line, line)) == (
                "the last translation is empty"
            )
            continue
        (best,) = translator.stream([line])
        (forced,) = scored(translator, [(line, best.text)])
        expected = [f"{best.text.split()[j]} ← {line.split()[i]}" for i, j in forced.links]
        assert expected and alignment_text(translator, number, Item(line, line)) == "\n".join(
            expected
        )


@pytest.mark.slow
def test_a_session_at_a_terminal(tmp_path):
    """decode.py with a pseudo terminal as stdin."""
    write_run(tmp_path / "run")
    control, terminal = pty.openpty()
    command = [sys.executable, ROOT / "decode.py", f"--workdir={tmp_path / 'run'}", "--nbest=2"]
    with subprocess.Popen(
        [*command, "--suppress=<pad> <s> <unk>"],
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ,
    ) as process:
        os.close(terminal)
        os.write(control, b"eins zwei\n:align\n" + b"\x04")
        out, err = (stream.decode() for stream in process.communicate(timeout=120))
    os.close(control)
    assert process.returncode == 0, err
    assert [line.split()[0] for line in out.splitlines()] == ["1", "2"]
    words = out.splitlines()[0].split()[2:]
    assert [line.removeprefix("> ").split()[0] for line in err.splitlines() if "←" in line] == words
