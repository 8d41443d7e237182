"""Export: one file translates like decode.py, byte for byte, without this project."""

import io
import json
import os
import random
import subprocess
import sys
import zipfile
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from seq2seq.config.data_config import DataConfig, nfc
from seq2seq.config.special_tokens import END
from seq2seq.config.tree import Config
from seq2seq.data.tokenizers.characters import Characters
from seq2seq.data.tokenizers.marian_tokenizer import MarianTokenizer
from seq2seq.data.tokenizers.vocabulary import load_tokenizers
from seq2seq.data.tokenizers.vocabulary_training import train_tokenizers
from seq2seq.decoding.results import Source
from seq2seq.decoding.translator import Translator
from seq2seq.model import platforms
from seq2seq.pretrained.models import open_model
from seq2seq.runtime.devices import FUSIONS
from seq2seq.runtime.errors import UserError
from seq2seq.scripts import export as export_command
from seq2seq.scripts import load_exported
from seq2seq.scripts.export import chosen_buckets, cleaning, exported, tokenizer_files
from tests.support.in_process import call_in_process, with_defaults
from tests.support.models.tiny_marian import SENTENCES, TAGS, write_marian
from tests.support.models.tiny_tokenizers import write_multilingual_run
from tests.support.tiny import WORDS, write_run
from tests.test_commands import run

ROOT = Path(__file__).parents[2]
# Runs the file like `python FILE`; importing this project or most of its dependencies fails.
ISOLATED = """
import runpy, sys
sys.path[:] = [path for path in sys.path if path != sys.argv[1]]
project = "seq2seq"
for name in f"{project} flax optax orbax absl tensorflow_datasets".split():
    sys.modules[name] = None
sys.argv[:] = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
LINES = [
    " ".join(random.Random(i).choices(WORDS, k=random.Random(i).randint(1, 9))) for i in range(140)
]
LINES[3:9] = ["", "   ", "  eins zwei \r", "drei\u2028vier", "☃ unknown", "zwölf " * 30]
TAG = ">>a<<"
LINES[13:15] = ["ei\u00adns zwei\u00a0drei", "fu\u0308nf \ufb01 \u200ceins"]
LINES[9:13] = [f"{TAG} eins", f"{TAG}zwei ☃", f"drei {TAG}", f"{TAG} {TAG} vier"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of random weights over a small SentencePiece vocabulary, and a file of lines."""
    path = tmp_path_factory.mktemp("export")
    config = DataConfig(tokenizer="bpe", vocab_size=40)
    tokenizer, _ = train_tokenizers(config, LINES[15:], [], [TAG])
    write_run(path / "run", tokenizer=tokenizer, output_bias=True)
    (path / "in.txt").write_bytes("\n".join(LINES).encode())
    return path


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    """A MarianMT directory of random weights, and a file of lines."""
    path = tmp_path_factory.mktemp("marian")
    write_marian(path / "run")
    (path / "in.txt").write_bytes("\n".join(marian_lines()).encode())
    return path


def marian_lines():
    return [*SENTENCES[:6], f"{TAGS[0]} {SENTENCES[0]}", f"{TAGS[1]}{SENTENCES[1]}", *LINES[3:9],
            f">>xyz<< {SENTENCES[2]}", f"A {TAGS[0]}"]  # fmt: skip


def export(trained, *arguments):
    return run(ROOT / "scripts" / "export.py", f"--workdir={trained / 'run'}", *arguments)


def translate_isolated(file, text):
    done = subprocess.run(
        [sys.executable, "-c", ISOLATED, str(ROOT), str(file)],
        input=text,
        cwd=file.parent,
        env={**os.environ, "XLA_FLAGS": os.environ["TESTS_XLA_FLAGS"]},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout, done.stderr.decode().splitlines()


def test_an_exported_program_gives_the_bits_of_an_engine(trained):
    """The bias is in the table, where mixed rounds it. The program searches a queue of the smallest
    bucket on one device; empty rows have length 0."""
    pytest.importorskip("flatbuffers")
    assert platforms.CPU.bias_in_table
    options = dict(min_length_ratio=0.4, max_length_ratio=0.7, forced_prefix="<s> <s>")
    engine = Translator.load(trained / "run", batch_size=4, dtype="mixed", **options).engine
    params = engine.params()[0]
    program, size = exported(engine, 16, params, ["cpu"])
    tokenizer = load_tokenizers(str(trained / "run" / "vocab"))[0]
    sources = [ids for ids in tokenizer.encode_many(LINES) if 0 < len(ids) < 15][: size // 2]
    sources += np.random.default_rng(0).integers(4, 40, (size // 2 - 2, 15)).tolist()
    source, lengths = np.zeros((size, 16), np.int32), np.zeros(size, np.int32)
    for row, ids in enumerate(sources):
        lengths[row] = len(ids) + 1
        source[row, : len(ids) + 1] = [*ids, END]
    run = jax.export.deserialize(bytearray(program)).call
    window = [Source(i, ids, forced=engine.forced) for i, ids in enumerate(sources)]
    for bias in (-9, 0, 9):  # of the end: translations of the most, usual and fewest tokens
        params["output_bias"] = np.array(params["output_bias"])
        params["output_bias"][END] = bias
        engine.use(params)
        leaves = jax.tree.leaves(params)
        tokens, output_lengths, scores = jax.device_get(run(leaves, source, lengths))
        expected = [result for results in engine.search([window]) for result in results]
        assert len(expected) == len(sources) == size - 2 > 40
        for (row, *_), (best, *_) in expected:
            assert tokens[row, 0, : output_lengths[row, 0] - 1].tolist() == best.ids
            assert scores[row, 0] == np.float32(best.score)
        assert not output_lengths[len(sources) :].any()


def test_the_programs_of_a_file_are_those_of_an_engine_on_its_first_platform(
    trained, tmp_path, monkeypatch
):
    programs = []

    def recorded(engine, bucket, params, platforms):
        programs.append(engine.program(bucket))
        return b"", engine.sizes.queue * programs[-1].lanes

    monkeypatch.setattr(export_command, "exported", recorded)
    for platform in ("cpu", "cuda", "tpu"):
        flags = f"--to={tmp_path / platform}", f"--platforms={platform}", "--batch_size=0"
        assert call_in_process(export_command, f"--workdir={trained / 'run'}", *flags).code == 0
        choices = platforms.choices_of(platform)
        assert programs[-1].options.cache_blocks == choices.cache_blocks
        assert max(program.lanes for program in programs) <= choices.sentences


@pytest.mark.slow
def test_an_exported_file_gives_the_bytes_of_decode_without_this_project(trained):
    pytest.importorskip("flatbuffers")
    options = [
        "--max_length_ratio=1.7",
        "--min_length=2",
        "--alpha=0.9",
        "--batch_size=4",
        "--no_repeat_ngram=2",
    ]
    code, _, err = export(trained, f"--to={trained / 'a.zip'}", "--platforms=cpu,tpu", *options)
    assert code == 0, err
    assert "16 source tokens × 4 sentences, " in err[0] and " batches in a call: " in err[0]
    code, live, described = run(
        ROOT / "decode.py",
        f"--workdir={trained / 'run'}",
        *options,
        f"--input={trained / 'in.txt'}",
    )
    assert "source tokens × sentences: 16 × 4," in "".join(described)
    assert code == 0 and live.count("\n") == len(LINES) and len(set(live.split("\n"))) > 15
    text = (trained / "in.txt").read_bytes()
    out, err = translate_isolated(trained / "a.zip", text)
    assert out.decode() == live
    assert err[0].endswith(" lines of at most 16 source tokens: compiling their program")
    tokenizer = load_tokenizers(str(trained / "run" / "vocab"))[0]
    encoded = enumerate(tokenizer.encode_many([line.strip() for line in LINES]), 1)
    long = [str(number) for number, ids in encoded if len(ids) > 31]
    warning = f"warning: {len(long)} lines are too long for the programs, truncated: "
    assert err[-1] == warning + ", ".join(long) and len(long) == 4
    assert translate_isolated(trained / "a.zip", b"") == (b"", [])
    with zipfile.ZipFile(trained / "a.zip") as archive:
        card = json.loads(archive.read("card.json"))
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
    assert [bucket["tokens"] for bucket in card["buckets"]] == [16, 32]
    assert card["platforms"] == ["cpu", "tpu"] and card["decoding"]["alpha"] == 0.9
    assert card["jax"] == jax.__version__ and date.fromisoformat(card["date"])
    assert not card["model"]["attention_kernels"]  # JAX cannot lower them for several platforms


@pytest.mark.slow
def test_an_exported_marian_directory_gives_the_bytes_of_decode(marian):
    pytest.importorskip("flatbuffers")
    code, _, err = export(marian, f"--to={marian / 'a.zip'}", "--batch_size=4")
    assert code == 0, err
    code, live, _ = run(
        ROOT / "decode.py",
        f"--workdir={marian / 'run'}",
        "--batch_size=4",
        f"--input={marian / 'in.txt'}",
    )
    assert code == 0 and live.count("\n") == len(marian_lines()) and len(set(live.split("\n"))) > 4
    out, _ = translate_isolated(marian / "a.zip", (marian / "in.txt").read_bytes())
    assert out.decode() == live


def cyrillic_tokenizer():
    """A vocabulary without Latin letters, for which </s> in a text is one unknown piece."""
    config = DataConfig(tokenizer="bpe", vocab_size=12)
    model = train_tokenizers(config, ["аб вг", "вг аб"], [])[0].serialized()
    pieces = ["</s>", "<unk>", "<s>", "<pad>", "▁", "▁аб", "▁вг", "а", "б", "в", "г"]
    return MarianTokenizer(model, {piece: i for i, piece in enumerate(pieces)})


def test_the_loader_has_the_token_ids_and_the_texts_of_the_tokenizers(marian):
    sides = [
        train_tokenizers(DataConfig(tokenizer=kind, vocab_size=40), LINES[15:], [], [TAG])[0]
        for kind in ("bpe", "unigram")
    ]
    sides += [cyrillic_tokenizer(), *open_model(marian / "run", "best")[1]]
    lines, choose = [line.strip() for line in LINES + marian_lines()], random.Random(0)
    lines += ["аб </s> вг", "</s> <pad> <s> <unk>"]
    for number, tokenizer in enumerate(sides):
        entry, files = tokenizer_files("side", tokenizer)
        entry |= cleaning(Config(), tokenizer) if number in (1, 3) else {}
        loaded = load_exported.Tokenizer(SimpleNamespace(read=files.get), entry)
        if number in (1, 3):
            clean = [Characters(tokenizer).clean(nfc(line))[0].strip() for line in lines]
            assert [loaded.clean(line) for line in lines] == clean
        assert loaded.encode(lines) == tokenizer.encode_many(lines)
        special = 4 if number < 2 else 0  # Exported.search leaves out the special ids of a run
        for _ in range(50):
            ids = choose.choices([3, *range(special, tokenizer.size)], k=choose.randint(0, 9))
            assert loaded.decode(ids) == tokenizer.decode(ids)


class Echo:
    """A model that returns its lines and truncates those of more than one word."""

    def __init__(self, path, log):
        pass

    def translate(self, lines):
        self.truncated = [i for i, line in enumerate(lines) if " " in line]
        return lines


def loader_run(monkeypatch, capsys, *arguments, text=b"", model=Echo, stdout=None):
    """(exit code, stdout unless it is another stream, lines on stderr) of load_exported.py."""
    monkeypatch.setattr(load_exported, "Exported", model)
    monkeypatch.setattr(sys, "argv", ["load_exported.py", *map(str, arguments)])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    monkeypatch.setattr(load_exported.jax.config, "update", lambda *_: None)
    monkeypatch.setattr(sys, "stdout", stdout or io.TextIOWrapper(io.BytesIO()))
    code = 0
    try:
        load_exported.main()
    except SystemExit as exit:
        code = exit.code
    sys.stdout.flush()
    out = "" if stdout else sys.stdout.buffer.getvalue().decode()
    return code, out, capsys.readouterr().err.splitlines()


def test_the_loader_counts_replaced_and_truncated_lines(monkeypatch, capsys, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("card.json", "{}")
    text = b"\xef\xbb\xbfa\nb\xff\n\n\xef\xbf\xbd\n\xc3\nc d"
    out = "a\nb\ufffd\n\n\ufffd\n\ufffd\nc d\n"
    replaced = "warning: 2 lines are not UTF-8, bytes replaced: 2, 5"
    truncated = "warning: 1 lines are too long for the programs, truncated: 6"
    loaded = loader_run(monkeypatch, capsys, tmp_path / "a.zip", text=text)
    assert loaded == (0, out, [replaced, truncated])
    *_, err = loader_run(monkeypatch, capsys, tmp_path / "a.zip", text=b"a b\n" * 7)
    assert err == ["warning: 7 lines are too long for the programs, truncated: 1, 2, 3, 4, 5, …"]


def test_the_loader_prints_its_usage(monkeypatch, capsys, tmp_path):
    (tmp_path / "in.txt").write_text("a")
    usage = load_exported.__doc__
    assert "python FILE < source.txt" in usage
    assert loader_run(monkeypatch, capsys, "--help") == (0, f"{usage}\n", [])
    for arguments, problem in (
        ((), "FILE is missing: expected one argument, got 0"),
        ((tmp_path / "in.txt",), f"{tmp_path}/in.txt is invalid: expected a file of scripts/exp"),
        (("a.zip", "--help", "x"), "FILE is missing: expected one argument, got 3"),
    ):
        code, out, err = loader_run(monkeypatch, capsys, *arguments)
        assert (code, out) == (1, "") and "\n".join(err[:-1]) == usage
        assert err[-1].startswith(f"error: {problem}")


def test_the_loader_ends_without_a_message_if_the_reader_of_stdout_has_ended(
    monkeypatch, capsys, tmp_path
):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("card.json", "{}")
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as stdout:  # flushed again when it is closed
        done = loader_run(monkeypatch, capsys, tmp_path / "a.zip", text=b"a\n", stdout=stdout)
    assert done == (0, "", [])


@pytest.mark.parametrize(
    "default, platforms, used",
    [
        ("cpu", ["cpu"], "default"),
        ("cuda", ["cpu", "cuda"], "default"),
        ("cuda", ["tpu", "cpu"], "cpu"),
        ("cuda", ["rocm", "tpu"], None),
        ("cpu", ["cuda"], None),
        ("only cuda", ["cpu"], None),
    ],
)
def test_the_loader_uses_the_cpu_if_the_file_is_not_for_the_default_platform(
    monkeypatch, default, platforms, used
):
    def devices(backend="default"):
        if default.startswith("only") and backend == "cpu":
            raise RuntimeError("Unknown backend: 'cpu' requested")
        return backend

    monkeypatch.setattr(load_exported.jax, "local_devices", devices)
    monkeypatch.setattr(load_exported.jax.export, "default_export_platform", lambda: default)
    log = []
    if used:
        assert load_exported.devices_for(platforms, log.append) == used
    else:
        with pytest.raises(ValueError, match=f"got {default}; export .* --platforms={default}"):
            load_exported.devices_for(platforms, log.append)
    assert log == ["the file has no programs for cuda: it is run on the CPU"] * (used == "cpu")


def test_the_loader_refuses_a_file_for_other_platforms(monkeypatch, capsys, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        card = {"format": 2, "platforms": ["rocm", "tpu"], "jax": jax.__version__}
        archive.writestr("card.json", json.dumps(card))
    monkeypatch.setenv("XLA_FLAGS", "")
    done = loader_run(monkeypatch, capsys, tmp_path / "a.zip", model=load_exported.Exported)
    assert os.environ["XLA_FLAGS"] == f" --{FUSIONS}=-reduce"
    message = "the file has no programs for this machine: expected rocm or tpu, got cpu; "
    assert done == (2, "", [f"error: {message}export it again with --platforms=cpu"])


def test_a_bucket_leaves_room_for_forced_pieces(trained):
    options = dict(forced_prefix="<s> <s>", max_extra_length=0)
    engine = Translator.load(trained / "run", **options).engine
    assert chosen_buckets(["16", "3"], engine) == [3, 16]
    with pytest.raises(UserError, match="--buckets=2: expected more than 2 tokens .*, got 2"):
        chosen_buckets(["16", "2"], engine)


@pytest.mark.parametrize("content", [b"", b"old", bytes(100)])
def test_the_loader_states_the_version_of_programs_that_jax_cannot_read(content):
    exported = object.__new__(load_exported.Exported)
    exported.card = {"jax": "0.1.2", "date": "2026-11-29"}
    message = f"a.zip was exported with jax 0.1.2 on 2026-11-29, and jax {jax.__version__} cannot"
    with pytest.raises(ValueError, match=f"{message} read it: .*install jax==0.1.2"):
        exported.program("a.zip", bytearray(content))


@pytest.mark.parametrize("card", [None, "{}", '{"format": 1}'])
def test_the_loader_refuses_another_archive(monkeypatch, capsys, tmp_path, card):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("card.json" if card else "x", card or "")
    done = loader_run(monkeypatch, capsys, tmp_path / "a.zip", model=load_exported.Exported)
    message = f"{tmp_path}/a.zip is invalid: expected a file of scripts/export.py of format 2"
    assert done == (2, "", [f"error: {message}"])


def test_the_loader_reports_a_program_once_and_refuses_scores_of_nan():
    def program(parameters, source, lengths):
        scores = np.where(source[..., :1] == 6, np.nan, 0)  # [devices, lines, 1]
        return source[:, :, None], lengths[..., None], scores

    log = []
    exported = object.__new__(load_exported.Exported)
    exported.log, exported.compiled, exported.devices = log.append, set(), [None]
    exported.parameters, exported.programs = None, [program]
    bucket = {"tokens": 4, "batch_size": 2, "queue": 1}
    exported.card = {"buckets": [bucket], "end": 2, "special_ids": [0, 1, 2]}
    numbers = lambda lines: [list(map(int, x)) for x in lines]  # noqa: E731
    exported.source = SimpleNamespace(encode=numbers, clean=str.strip)
    exported.target = SimpleNamespace(decode=lambda ids: "".join(map(str, ids)))
    for _ in range(2):
        assert exported.translate(["57", "", "5", "789"]) == ["57", "", "5", "789"]
    assert len(log) == 1 and log[0].startswith("3 lines of at most 4 source tokens: compiling")
    with pytest.raises(ValueError, match="a score is NaN; export .* --dtype=float32"):
        exported.translate(["6"])


def test_the_loader_compiles_as_decode_with_the_same_version_of_jax(monkeypatch):
    """XLA aborts the process for a flag that it does not know."""
    set_flag = f"--{FUSIONS}=LIBRARY_FUSION_TYPE_DOT"
    for version, flags, expected in (
        (jax.__version__, "--a=1", f"--a=1 --{FUSIONS}=-reduce"),
        (jax.__version__, set_flag, set_flag),
        ("0.9.9", "", ""),
    ):
        monkeypatch.setenv("XLA_FLAGS", flags)
        load_exported.fuse_no_reductions(version)
        assert os.environ["XLA_FLAGS"] == expected


def test_the_loader_does_not_import_this_project():
    loader = (ROOT / "scripts" / "load_exported.py").read_text(encoding="utf-8")
    imported = {
        line.split()[1].partition(".")[0]
        for line in loader.split("\n")
        if line.startswith(("import ", "from "))
    }
    assert imported - set(sys.stdlib_module_names) == {"jax", "numpy", "sentencepiece"}


BAD = {
    "--to={d}/in.txt": (6, "--overwrite"),
    "--platforms=cpu,gpu": (2, "cpu, cuda, rocm, tpu, got 'cpu,gpu'"),
    "--buckets=16,33": (2, "from 2 to 32, got '16,33'"),
    "--samples=2": (2, "sampling cannot be exported"),
    "--mbr=chrf --nbest=2": (2, "decoding.mbr cannot be exported"),
    "--top_k=2": (2, "--top_k has no effect on an exported file"),
    "--beam_size=0": (2, "decoding.beam_size must be at least 1"),
    "--workdir={d}/words": (
        2,
        "only SentencePiece vocabularies (unigram, bpe, marian) can be exported, got words",
    ),
    "--workdir={d}/rnn": (2, "model.kind=rnn cannot be exported: expected transformer"),
    "--workdir={d}/codes": (2, "data.target_begin='{target}' cannot be exported"),
    "--workdir={d}": (4, "not a run directory"),
}


@pytest.mark.parametrize("flag", BAD)
def test_an_unsupported_export_is_one_line_before_any_device_is_used(flag, trained):
    pytest.importorskip("flatbuffers")
    if "words" in flag and not (trained / "words").exists():
        write_run(trained / "words")
    if "rnn" in flag and not (trained / "rnn").exists():
        write_run(trained / "rnn", kind="rnn")
    if "codes" in flag and not (trained / "codes").exists():
        write_multilingual_run(trained / "codes", target_begin="{target}")
    expected_code, part = BAD[flag]
    changed_flags = flag.format(d=trained).split()
    flags = with_defaults(changed_flags, workdir=trained / "run", to=trained / "b.zip")
    code, out, err, _ = call_in_process(export_command, *flags, devices=False)
    assert (code, out, len(err)) == (expected_code, "", 1), err
    assert err[0].startswith("error: ") and part in err[0]
