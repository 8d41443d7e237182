"""train.py and decode.py end to end; each invalid input ends in one line.

Commands run in this process, except where a process shows what this one cannot: standard streams,
signals, the exit, and that no device is used.
"""

import json
import re
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest

import seq2seq.decode
import seq2seq.train
from seq2seq.decoding.translator import Translator
from tests.support.forked import call_forked, environment_of, start_with_stderr
from tests.support.in_process import call_in_process, with_defaults
from tests.support.runs import state_bytes
from tests.support.tiny import write_corpus

ROOT = Path(__file__).parent.parent
KOREAN_ENGLISH = ROOT / "configs" / "korean_english.py"
# A training on four devices has the programs of the trainings in other tests.
TINY = (
    f"--config={ROOT / 'tests' / 'support' / 'tiny.py'} --config.training.num_steps=6 "
    "--config.training.log_every=100"
).split()


def run(*arguments, stdin=b"", cwd=ROOT, devices=True):
    """(exit code, stdout, stderr lines). `devices` is their number, or True for that of a user;
    without devices any use of one is an error."""
    environment = {"XLA_FLAGS": ""} if devices is True else {}
    return call_forked(arguments, stdin, cwd, devices, environment)[:3]


def train(*arguments, devices=True):
    """The same of train.py in this process."""
    return call_in_process(seq2seq.train, *arguments, devices=devices)[:3]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run directory, trained by the command line in this process, with its stdout and stderr."""
    path = tmp_path_factory.mktemp("command")
    corpus = write_corpus(path / "pairs.tsv", 113)
    valid = write_corpus(path / "valid.tsv", 13, seed=1)
    done = call_in_process(
        seq2seq.train,
        *TINY,
        f"--config.data.corpus={corpus}",
        f"--config.data.valid={valid}",
        f"--workdir={path / 'run'}",
    )
    assert done.code == 0, done.err
    return path, done.out, done.err


def decode(trained, *arguments, stdin=b"", devices=True):
    """The same of decode.py."""
    flags = with_defaults(arguments, workdir=trained[0] / "run")
    return call_in_process(seq2seq.decode, *flags, stdin=stdin, devices=devices)[:3]


def decode_as_process(trained, *arguments, stdin=b"", devices=True):
    command = ROOT / "decode.py", f"--workdir={trained[0] / 'run'}", *arguments
    return run(*command, stdin=stdin, devices=devices)


def test_training_says_what_it_does_and_ends_with_results(trained):
    path, out, err = trained
    log = "\n".join(err)
    for part in (
        "113 pairs kept, 0 dropped",
        "parameters:",
        "devices:",
        "% useful",
        "first step after",
        "step 6/6",
        "validation of 4:",
        "validation of average:",
    ):
        assert part in log, part
    assert out.count("reference ") == 5
    for part in ("held-out BLEU", "tok:13a", "held-out chrF2", "held-out exact match"):
        assert part in out
    best = json.loads((path / "run" / "best.json").read_text())["checkpoint"]
    assert f"(checkpoint: {best})" in out
    written = json.loads((path / "run" / "scores.json").read_text())
    for score in written["sets"][""]["scores"][:3]:  # the last one, exact match, has another form
        assert f"{score['name']} {score['value']:.2f} ({score['signature']})" in out
    assert written["checkpoint"] == best
    assert f"python decode.py --workdir={path / 'run'}" in log
    here = {p.name for p in (path / "run").iterdir()}
    assert here >= {
        "config.json",
        "run.json",
        "metrics.jsonl",
        "train.log",
        "vocab",
        "checkpoints",
        "best.json",
        "scores.json",
        "samples",
        "tensorboard",
        "average",
    }
    facts = json.loads((path / "run" / "run.json").read_text())
    assert facts["seed"] == 0 and facts["versions"]["jax"]
    steps = [
        json.loads(line)["step"]
        for line in (path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert steps == [4, 6, 6, 6]  # validation at 4; speed, validation, average at 6


@pytest.mark.parametrize("repeated", [True, False])
def test_the_same_command_or_its_workdir_alone_changes_nothing(trained, repeated):
    path = trained[0]
    files = [path / "run" / name for name in ("metrics.jsonl", "best.json", "config.json")]
    files += sorted((path / "run" / "checkpoints").rglob("*"))
    before = {file: file.read_bytes() for file in files if file.is_file()}
    flags = [
        *TINY,
        f"--config.data.corpus=tsv:{path / 'pairs.tsv'}",
        f"--config.data.valid=tsv:{path / 'valid.tsv'}",
    ]
    code, out, err = train(*(flags if repeated else []), f"--workdir={path / 'run'}")
    assert code == 0 and any("already complete at step 6" in line for line in err)
    assert out == trained[1]
    assert before == {file: file.read_bytes() for file in before}


@pytest.mark.slow
def test_a_run_resumed_by_its_workdir_is_bit_identical_to_an_uninterrupted_one(trained, tmp_path):
    """Its last checkpoint, average and results are removed, so that it is resumed at step 4."""
    whole, interrupted = trained[0] / "run", tmp_path / "run"
    shutil.copytree(whole, interrupted)
    shutil.rmtree(interrupted / "checkpoints" / "6")
    shutil.rmtree(interrupted / "average")
    code, out, err = run(ROOT / "train.py", f"--workdir={interrupted}", devices=4)
    assert code == 0 and "resumed at step 4" in err and not any("changed:" in x for x in err)
    assert out == trained[1]
    assert state_bytes(interrupted) == state_bytes(whole)
    for name in ("config.json", "best.json"):
        assert (interrupted / name).read_bytes() == (whole / name).read_bytes()


def test_the_config_fields_are_listed_without_a_device():
    code, out, err = run(
        ROOT / "train.py",
        f"--config={ROOT / 'configs' / 'small.py'}",
        "--config.training.num_steps=77",
        "--help_config",
        devices=False,
    )
    assert (code, err) == (0, [])
    lines = out.splitlines()
    assert "  --config.training.num_steps=77" in lines and "  --config.model.d_model=192" in lines


def test_the_config_of_a_misspelled_run_is_not_listed(tmp_path):
    """The listed values would be those of the built-in corpus."""
    workdir = f"--workdir={tmp_path / 'rnu'}"
    code, out, err = train(workdir, "--help_config", devices=False)
    assert (code, out, len(err)) == (2, "", 1) and "holds no run" in err[0]


@pytest.mark.slow
def test_sigterm_saves_the_step_and_the_same_command_goes_on(trained, tmp_path):
    path = trained[0]
    flags = (
        *TINY,
        f"--config.data.corpus=tsv:{path / 'pairs.tsv'}",
        f"--workdir={tmp_path / 'run'}",
        "--config.training.num_steps=100000",
        "--config.training.log_every=1",
    )
    process = start_with_stderr([ROOT / "train.py", *flags], environment_of(4))
    with process.stderr:
        for line in process.stderr:
            if line.startswith("step 3/"):
                process.send_signal(signal.SIGTERM)
                break
        *_, saved, last = process.stderr.read().splitlines()
    assert process.wait() == 143
    assert last == "stopped by SIGTERM; run the same command to resume"
    step = int(re.fullmatch(r"saved step (\d+)", saved)[1])
    assert (tmp_path / "run" / "checkpoints" / str(step) / "params").is_dir()
    flags += (f"--config.training.num_steps={step + 2}",)
    code, _, err = run(ROOT / "train.py", *flags, devices=4)
    assert code == 0 and f"resumed at step {step}" in err


def test_each_input_line_gives_one_output_line_in_order(trained):
    lines = ["eins zwei drei", "", "elf", "   ", "vier\u2028fünf", "zehn neun " * 10, "sechs acht"]
    text = "\n".join([*lines, " ".join(["eins"] * 200), "drei"])  # no final newline
    code, out, err = decode(trained, stdin=text.encode())
    assert code == 0
    assert out.endswith("\n") and len(out.split("\n")) == len(lines) + 2 + 1
    translations = out.split("\n")[:-1]
    assert translations[1] == translations[3] == ""
    # the same translation without its neighbours
    assert decode(trained, stdin=lines[4].encode())[1] == translations[4] + "\n"
    assert "-:8: 201 tokens > 32, truncated" in err
    assert re.fullmatch(r"9 lines, 2 blank, 1 truncated, [\d.]+ s, [\d.,]+ lines/s", err[-1])


def test_translator_equals_the_command_line_and_files_equal_pipes(trained):
    path = trained[0]
    lines = ["eins zwei", "", "drei vier fünf sechs", "sieben", "acht elf neun"]
    source, output, reference = (path / name for name in ("in.txt", "out.txt", "ref.txt"))
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    reference.write_text("\n".join(line.upper() for line in lines) + "\n", encoding="utf-8")
    options = "--max_extra_length=1", "--alpha=1.0"
    code, scores, _ = decode(
        trained,
        f"--input={source}",
        f"--output={output}",
        f"--reference={reference}",
        *options,
        "--overwrite",
    )
    assert code == 0
    assert "BLEU" in scores and "chrF2" in scores and scores.count("version:") == 3
    _, piped, _ = decode(trained, *options, stdin=source.read_bytes())
    assert output.read_text(encoding="utf-8") == piped
    assert decode(trained, stdin=source.read_bytes())[1] != piped  # the options take effect
    translator = Translator.load(path / "run", max_extra_length=1, alpha=1.0)
    assert translator.translate(lines) == piped.split("\n")[:-1]
    code, _, err = decode(trained, f"--input={source}", f"--output={output}", devices=False)
    assert code == 6 and "--overwrite" in err[0]


def test_with_pieces_only_spaces_separate_tokens(trained, tmp_path):
    """In a vocabulary of words a word with a tab is two words of text and one unknown piece."""
    pairs = ("a\tb", "c"), ("a-b", "c"), ("c", "a\tb"), ("c", "a-b")
    files = [tmp_path / side for side in ("source", "target")]
    for file, lines in zip(files, zip(*pairs, strict=True), strict=True):
        file.write_text("".join(f"{line}\n" for line in lines))
    scores = {}
    for flags in ((), ("--source_pieces",), ("--target_pieces",)):
        code, out, err = decode(
            trained, "--mode=score", f"--input={files[0]}", f"--target={files[1]}", *flags
        )
        assert code == 0, err
        first, second, third, fourth = out.splitlines()
        scores[flags] = first == second, third == fourth
    assert [*scores.values()] == [(False, False), (True, False), (False, True)]
    code, _, err = decode(trained, "--target_pieces", f"--reference={files[1]}", devices=False)
    assert code == 2 and "--target_pieces is not supported with --reference" in err[0]


def test_empty_input_gives_empty_output(trained):
    code, out, err = decode(trained, stdin=b"")
    assert (code, out) == (0, "") and err[-1].startswith("0 lines")


BAD_TRAINING = {
    "--confg=x": (1, "Did you mean: config"),
    "--config.model.num_heads=x": (1, "num_heads=x: expected an integer, got 'x' (--help"),
    "--config.model.d_ff=8 --config.model.d_ff=x": (1, "d_ff=x: expected an integer, got 'x'"),
    "--config.model.dropout=x": (1, "dropout=x: expected a number, got 'x' (--help"),
    "--config.data.reverse=x": (1, "reverse=x: expected true or false, got 'x' (--help"),
    "--lr=1": (1, "unknown flag --lr; did you mean --config.training.learning_rate?"),
    "--xyzzy=1": (1, "Unknown command line flag 'xyzzy'"),
    "--config.batch_tokens=1": (2, "did you mean config.training.tokens_per_batch? --help_config"),
    "--config.xyzzy=1": (2, "unknown config field config.xyzzy; --help_config lists all fields"),
    "--config.training.lerning_rate=1": (2, "did you mean config.training.learning_rate?"),
    "--config=nowhere.py": (2, "nowhere.py"),
    "--config.modle.d_model=8": (2, "did you mean config.model"),
    "--config.data.corpus=tsv:{d}/pairs --config.model.end_id=9": (
        2,
        "unknown_id must be 0, 1, 2, 3",
    ),
    "--config={d}/broken.py": (2, "SyntaxError"),
    "--config={d}/without.py": (2, "get_config"),
    "--config={d}/wrong.py": (
        2,
        "wrong.py:5: TypeError: training.num_steps must be an integer, got",
    ),
    "--config.model.num_heads=7": (2, "d_model=64, num_heads=7"),
    "--config.data.corpus=tvs:x": (2, "text:SOURCE,TARGET"),
    "--config.data.corpus=text:{d}/no,{d}/nope": (3, "/no does not exist"),
    "--config.data.corpus=text:{d}/empty,{d}/three": (3, "is empty"),
    "--config.data.corpus=text:{d}/three,{d}/four": (3, "three has 3 lines, "),
    "--config.data.corpus=text:{d}/bad,{d}/three": (3, "byte 0xff in column 3 of "),
    "--config.data.corpus=tsv:{d}/three": (
        3,
        "3 invalid lines: expected 2 tab-separated columns, got 1 at ",
    ),
    "--config.data.corpus=tsv:{d}/long.tsv": (3, "0 of 2 pairs left"),
    "--workdir={d}/three/run": (6, "three/run"),
    "--dry_run --coordinator=a:1": (2, "--dry_run runs in one process; remove --distributed and"),
    "--dry_run --num_processes=2": (2, "--num_processes and --process_id belong together"),
    "--compile_for=h100 --distributed": (2, "--compile_for runs in one process"),
}


# Of the errors at each end of the checks, also in a process that cannot use a device.
LAST_CHECKS = "--xyzzy=1", "--config.data.corpus=tsv:{d}/long.tsv", "--nbest=9"


@pytest.mark.parametrize("flag", BAD_TRAINING)
def test_bad_training_input_is_one_line_before_any_device(flag, tmp_path):
    (tmp_path / "broken.py").write_text("def get_config(:\n")
    (tmp_path / "without.py").write_text("x = 1\n")
    (tmp_path / "wrong.py").write_text(
        "from seq2seq.configs import base\n\ndef get_config():\n    config = base.get_config()\n"
        "    config.training.num_steps = 1e1\n    return config\n"
    )
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "three").write_bytes(b"a\nb\nc\n")
    (tmp_path / "four").write_bytes(b"a\nb\nc\nd\n")
    (tmp_path / "pairs").write_bytes(b"a\tb\n")
    (tmp_path / "bad").write_bytes(b"a\nb \xff\nc\n")
    (tmp_path / "long.tsv").write_bytes((b"x " * 100 + b"\t" + b"y " * 100 + b"\n") * 2)
    workdir = [] if flag.startswith("--workdir") else [f"--workdir={tmp_path / 'run'}"]
    default = [] if flag.startswith("--config=") else [f"--config={KOREAN_ENGLISH}"]
    flags = *default, *flag.format(d=tmp_path).split(), *workdir, "--config.data.tokenizer=words"
    call = partial(run, ROOT / "train.py") if flag in LAST_CHECKS else train
    code, out, err = call(*flags, devices=False)
    expected_code, part = BAD_TRAINING[flag]
    assert (code, out) == (expected_code, ""), err
    errors = [line for line in err if line.startswith("error: ")]
    assert len(errors) == 1 and part in errors[0] and err[-1] == errors[0], err
    assert not any("Traceback" in line for line in err)


BAD_DECODING = {
    "--workdir=": (2, "--workdir=RUN is required"),
    "--workdir={d}": (4, "not a run directory"),
    "--checkpoint=5": (4, "2, 4, 6 and the average"),
    "--checkpoint=2,5": (4, "no checkpoint '5' in"),
    "--weights=1,0": (2, "--weights: expected positive numbers such as 0.7,0.3; got '1,0'"),
    "--weights=1,2": (2, "expected as many weights as models, 1, got 2"),
    "--workdir={d},{d} --checkpoint=1,2,3": (2, "one for each of 2 runs, got 3 (1, 2, 3)"),
    "--input={d}/no": (3, "no such file: "),
    "--output={d}/no/where": (6, "cannot write "),
    "--beam_size=0": (2, "decoding.beam_size must be at least 1"),
    "--dtype=half": (2, "decoding.dtype must be one of float32, mixed, bfloat16, got 'half'"),
    "--nbest=9": (2, "decoding.nbest must be at most decoding.beam_size"),
    "--beam=4": (1, "Unknown command line flag"),
}


@pytest.mark.parametrize("flag", BAD_DECODING)
def test_invalid_decoding_input_is_one_line_before_any_device_is_used(flag, trained, tmp_path):
    call = decode_as_process if flag in LAST_CHECKS else decode
    code, out, err = call(trained, *flag.format(d=tmp_path).split(), devices=False)
    expected_code, part = BAD_DECODING[flag]
    assert (code, out, len(err)) == (expected_code, "", 1), err
    assert err[0].startswith("error: ") and part in err[0]


def test_a_config_that_does_not_fit_the_parameters_is_refused(trained, tmp_path):
    shutil.copytree(trained[0] / "run", tmp_path / "run")
    config = tmp_path / "run" / "config.json"
    changed = config.read_text().replace('"num_heads": 2', '"num_heads": 4')
    assert changed != config.read_text()
    config.write_text(changed)
    code, out, err = decode([tmp_path], stdin=b"a b\n")
    assert (code, out) == (4, "") and "does not fit config.json's model" in err[-1], err


def test_a_vocabulary_that_does_not_fit_is_refused(trained, tmp_path):
    from seq2seq.data.tokenizers.list_tokenizer import ListTokenizer
    from seq2seq.data.tokenizers.vocabulary import save_tokenizers

    shutil.copytree(trained[0] / "run", tmp_path / "run")
    same_size = "\n".join(f"w{i}" for i in range(22)).encode()
    for words in (b"eins\nzwei", same_size):
        tokenizer = ListTokenizer("words", words)
        save_tokenizers(str(tmp_path / "run" / "vocab"), tokenizer, tokenizer)
        code, _, err = decode([tmp_path], devices=False)
        assert code == 4 and "does not fit the checkpoint" in err[0] and len(err) == 1
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    shutil.rmtree(tmp_path / "run" / "average")
    code, _, err = decode([tmp_path], devices=False)
    assert code == 4 and "no checkpoint" in err[0] and len(err) == 1
