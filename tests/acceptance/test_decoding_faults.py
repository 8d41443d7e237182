"""Rows 29 to 34: unusual input, interruptions and memory limits of decode.py."""

import random
import signal
import subprocess
import sys
import time
from functools import partial
from io import BytesIO
from itertools import groupby

import pytest
from sentencepiece import SentencePieceTrainer

from seq2seq.data.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from tests.acceptance.command_line import DECODE, ENVIRONMENT, decode, trained
from tests.support.forked import Process
from tests.support.tiny import WORDS, mixed_lines, write_run

# decode.py on devices that run out of memory with more than {capacity} sentences in a batch.
OUT_OF_MEMORY = """
import runpy, sys
import jax
from seq2seq.decoding.engine.engine import Engine
search = Engine._search
def search_or_fail(self, program):
    if program.lanes > {capacity}:
        def fail(*_):
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        return fail
    return search(self, program)
Engine._search = search_or_fail
sys.argv[0] = {decode!r}
runpy.run_path({decode!r}, run_name="__main__")
"""


def text_of(lines):
    """The bytes of a file with these lines."""
    return "".join(f"{line}\n" for line in lines).encode()


def translated(lines, *flags, **options):
    """The output lines of decode.py for input lines; fails unless it exits with code 0."""
    done = decode(trained(), *flags, stdin=text_of(lines), **options)
    assert done.code == 0, done.err
    assert done.out.endswith("\n") or not done.out
    return done.out.split("\n")[:-1]


def moses_fields(lines):
    """The fields of each line of --format=moses: number, text, features, score."""
    return [line.split(" ||| ") for line in lines]


@pytest.mark.row(
    29,
    "10,000 lines, some of them blank, one character, 20,000 characters, emoji, right-to-left, "
    "|||, tabs, U+2028",
    "one output line per input line, in order; a blank line gives a blank line; n-best numbers are "
    "line numbers",
)
def test_every_input_line_gives_one_output_line(record_property):
    lines = mixed_lines(10_000)
    out = translated(lines, "--beam_size=1", "--max_extra_length=2")
    blank = [not line.strip() for line in lines]
    assert len(out) == len(lines)
    assert all(not line for line, is_blank in zip(out, blank, strict=True) if is_blank)
    few = mixed_lines(400, seed=1)
    rows = moses_fields(translated(few, "--format=moses", "--nbest=2", here=True))
    assert all(len(row) == 4 for row in rows)
    numbers = [int(number) for number, _ in groupby(rows, lambda row: row[0])]
    assert numbers == list(range(len(few)))
    record_property(
        "seen", f"10,000 of 10,000 lines, {sum(blank)} blank; n-best lists of 400 lines numbered"
    )


@pytest.mark.row(
    30,
    "batch sizes 1, 7, 64; shuffled lines; the file in 3 parts; 1 and 4 devices; beam 1; n-best; "
    "a beam wider than the vocabulary",
    "byte-identical at one compiled shape; across batch sizes scores agree to 1e-4 and near-ties "
    "are counted; beam 1 is greedy search",
)
def test_translations_do_not_depend_on_batches_or_devices(record_property):
    lines = mixed_lines(300, seed=2)
    expected = translated(lines)
    assert len(set(expected)) > 100  # the model does not give one translation for all lines
    assert translated(lines, devices=4) == expected
    translated_here = partial(translated, here=True)  # on 4 devices
    order = random.Random(3).sample(range(len(lines)), len(lines))
    assert translated_here([lines[i] for i in order]) == [expected[i] for i in order]
    parts = [translated_here(lines[start : start + 100]) for start in (0, 100, 200)]
    assert sum(parts, []) == expected
    best = moses_fields(translated_here(lines, "--format=moses"))
    assert [text.replace("&#124;" * 3, "|||") for _, text, *_ in best] == expected
    scores, ties = [float(score) for *_, score in best], 0
    for size in (1, 7, 64):
        batch_rows = moses_fields(translated_here(lines, "--format=moses", f"--batch_size={size}"))
        assert [float(row[3]) for row in batch_rows] == pytest.approx(scores, abs=1e-4)
        more = sum(row[1] != best_row[1] for row, best_row in zip(batch_rows, best, strict=True))
        assert more <= 3, f"{more} of {len(lines)} lines differ at batch size {size}"
        ties += more
    rows = moses_fields(translated_here(lines, "--format=moses", "--nbest=2"))
    nbest = [list(group) for _, group in groupby(rows, lambda row: row[0])]
    assert [group[0][1] for group in nbest] == [row[1] for row in best]
    for group, line in zip(nbest, lines, strict=True):
        assert len(group) == (2 if line.strip() else 1)
        assert float(group[0][3]) >= float(group[-1][3])
    greedy = translated_here(lines, "--beam_size=1")
    assert greedy == translated_here(lines, "--samples=1", "--top_k=1")  # the most probable token
    wide = moses_fields(translated_here(lines, "--format=moses", "--beam_size=40"))
    assert all(float(row[3]) >= score - 1e-4 for row, score in zip(wide, scores, strict=True))
    record_property(
        "seen",
        "identical for 1 and 4 devices, shuffled, in parts; "
        f"{ties} of 900 lines differ across batch sizes",
    )


@pytest.mark.row(
    31,
    "an over-long line",
    "truncated, reported on stderr with its line and length, counted; exit 0",
)
def test_an_over_long_line_is_truncated_and_reported(tmp_path, record_property):
    (tmp_path / "in.txt").write_text("zwei\n" + "eins " * 200 + "\n" + "z" * 3_000_000 + "\ndrei\n")
    done = decode(trained(), f"--input={tmp_path / 'in.txt'}", here=True)
    message = f"{tmp_path / 'in.txt'}:2: 201 tokens > 32, truncated"
    assert done.code == 0 and done.out.count("\n") == 4
    assert message in done.err and done.err[-1].startswith("4 lines, 0 blank, 1 truncated, ")
    assert f"{tmp_path / 'in.txt'}:3: longer than 1,048,576 bytes, truncated" in done.err
    record_property("seen", f"“{message.replace(str(tmp_path) + '/', '')}”")


@pytest.mark.row(
    32,
    "SIGKILL and SIGTERM during a job; then other flags",
    "finished chunks are reused, the output is byte-identical; no partial output file; chunks of a "
    "job with other flags are not reused",
)
def test_a_stopped_job_is_completed_by_the_same_command(tmp_path, record_property):
    (tmp_path / "in.txt").write_bytes(text_of(mixed_lines(5_000, seed=4)))
    flags = f"--input={tmp_path / 'in.txt'}", "--max_extra_length=2"
    whole = tmp_path / "whole.txt"
    assert decode(trained(), *flags, "--beam_size=1", f"--output={whole}").code == 0
    for number in (signal.SIGKILL, signal.SIGTERM):
        output, parts = tmp_path / number.name, tmp_path / f"{number.name}.parts"
        command = [
            DECODE,
            f"--workdir={trained()}",
            *flags,
            "--beam_size=1",
            f"--output={output}",
        ]
        process = Process(command, ENVIRONMENT)
        while process.poll() is None and not [*parts.glob("0*[!p]")]:
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait() == (-number if number == signal.SIGKILL else 128 + number)
        assert not output.exists() and parts.is_dir()
        if number == signal.SIGTERM:
            shorter = decode(
                trained(), flags[0], "--beam_size=1", "--max_extra_length=1", f"--output={output}"
            )
            assert shorter.code == 0 and "from an earlier run" not in shorter.err[-1]
            assert output.read_bytes() != whole.read_bytes()
            continue
        done = decode(trained(), *flags, "--beam_size=1", f"--output={output}")
        assert done.code == 0 and "from an earlier run" in done.err[-1]
        assert output.read_bytes() == whole.read_bytes() and not parts.exists()
    record_property(
        "seen", "5,000 lines byte-identical after SIGKILL; other flags: no chunk reused"
    )


ROW_33 = pytest.mark.row(
    33,
    "input that is not UTF-8; a batch that does not fit into memory; a model that generates \\n",
    "the line is kept and reported; the batch size is halved, at most three times; a line feed "
    "becomes a space",
)


@ROW_33
def test_bytes_that_are_not_utf8_are_replaced_and_reported(record_property):
    done = decode(trained(), stdin=b"eins\nzwei \xff\n\ndrei\n", here=True)
    assert done.code == 0 and done.out.count("\n") == 4
    message = "-:2: not UTF-8, bytes replaced"
    assert message in done.err
    record_property("seen", f"“{message}”")


@ROW_33
def test_a_batch_that_does_not_fit_into_memory_is_halved(tmp_path, record_property):
    lines = mixed_lines(60, seed=5)
    script = tmp_path / "out_of_memory.py"
    script.write_text(OUT_OF_MEMORY.format(capacity=1, decode=DECODE))
    environment = {"PYTHONPATH": DECODE.rpartition("/")[0]}
    done = decode(
        trained(), "--batch_size=4", script=script, stdin=text_of(lines), environment=environment
    )
    assert done.code == 0, done.err
    halved = sum("trying half as many" in line for line in done.err)
    assert halved == 2 and done.out.split("\n")[:-1] == translated(lines, "--batch_size=1")
    script.write_text(OUT_OF_MEMORY.format(capacity=0, decode=DECODE))
    done = decode(trained(), script=script, stdin=text_of(lines), environment=environment)
    assert done.code == 2 and "lower decoding.batch_size or decoding.beam_size" in done.error
    record_property("seen", f"halved {halved} times, same output; exit 2 if not one sentence fits")


def byte_pieces():
    """A vocabulary with a piece for each byte, line feed and carriage return included."""
    model = BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(WORDS),
        model_writer=model,
        model_type="bpe",
        vocab_size=300,
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=2,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
    )
    return SentencePieceTokenizer("bpe", model.getvalue())


@ROW_33
def test_a_generated_line_feed_becomes_a_space(tmp_path, record_property):
    """All other pieces are suppressed, so that the model can generate nothing else."""
    tokenizer = byte_pieces()
    write_run(tmp_path / "run", tokenizer=tokenizer)
    pieces = {tokenizer.piece(i) for i in range(tokenizer.size)}
    line_breaks = {"<0x0A>", "<0x0D>"}
    assert line_breaks < pieces
    suppressed = " ".join(sorted(pieces - line_breaks - {tokenizer.piece(2)}))  # 2: the end token
    (tmp_path / "flags").write_text(f"--suppress={suppressed}\n")
    done = decode(
        tmp_path / "run",
        f"--flagfile={tmp_path / 'flags'}",
        "--min_length=6",
        stdin=b"eins\n\nzwei\n",
        here=True,
    )
    assert done.code == 0, done.err
    lines = done.out.split("\n")[:-1]
    assert len(lines) == 3 and "\r" not in done.out
    assert lines[0].count(" ") >= 5 and not lines[0].strip() and not lines[1]
    record_property("seen", "a translation of line feeds only is one line of spaces")


@pytest.mark.row(
    34,
    "stdout closed by its reader; empty stdin; an output file that exists; an output directory "
    "that does not exist",
    "no message, exit 0; empty output; exit 6 without --overwrite; exit 6 before the model is read",
)
def test_closed_pipes_empty_input_and_unusable_outputs(tmp_path, record_property):
    command = '"$0" "$1" --workdir="$2"'
    for rest in ("", " --help"):
        done = subprocess.run(
            [
                "bash",
                "-c",
                f'{command}{rest} | head -1; echo "${{PIPESTATUS[0]}}"',
                sys.executable,
                DECODE,
                str(trained()),
            ],
            input=text_of(mixed_lines(200, seed=6)),
            capture_output=True,
            check=True,
            env=ENVIRONMENT,
        )
        assert done.stdout.decode().split("\n")[-2] == "0"
        assert b"Traceback" not in done.stderr and b"Broken" not in done.stderr
    done = decode(trained())
    assert (done.code, done.out) == (0, "") and done.err[-1].startswith("0 lines")
    output = tmp_path / "out.txt"
    output.write_text("mine\n")
    done = decode(trained(), f"--output={output}", stdin=b"eins\n", devices=0)
    assert done.code == 6 and "set --overwrite" in done.error and output.read_text() == "mine\n"
    done = decode(trained(), f"--output={output}", "--overwrite", stdin=b"eins\n")
    assert done.code == 0 and output.read_text() != "mine\n"
    done = decode(tmp_path / "no_run", f"--output={tmp_path / 'no' / 'out.txt'}", devices=0)
    assert done.code == 6 and "cannot write" in done.error
    record_property("seen", "exit 0, 0, 6, 0, 6; no message about the pipe")
