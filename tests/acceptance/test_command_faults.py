"""Rows 35 and 36: mistakes on the command line, and malicious run directories."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.acceptance.command_line import DECODE, ROOT, TRAIN, call, decode, train, trained
from tests.support.tiny import write_corpus

SOURCES = [
    path
    for path in ROOT.rglob("*.py")
    if not {"tests", ".venv", "build"} & set(path.relative_to(ROOT).parts)
]
UNSAFE = re.compile(  # calls that execute or unpack their input
    r"(?:import|from) (?:cloud|c)?(?:pickle|dill|joblib|marshal|shelve)\b|\bpickle\.\w|"
    r"(?<![\w.])(eval|exec)\(|yaml\.(unsafe_|full_)?load|allow_pickle=True|shell=True|os\.system|"
    r"torch\.load|extractall|unpack_archive|tempfile\.mktemp\("
)


@pytest.mark.row(
    35,
    "unknown flag, bad value, config typo, --help without devices or TensorFlow, "
    "unknown checkpoint step",
    "one line with “did you mean”, exit 1 or 2 (4 for the "
    "step, which lists the existing ones), no device",
)
def test_mistakes_on_the_command_line(tmp_path, record_property):
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text("raise SystemExit('tensorflow loaded')\n")
    options = {"devices": 0, "environment": {"PYTHONPATH": str(tmp_path)}, "cwd": tmp_path}
    mistakes = [
        (TRAIN, "--wrokdir=x", 1, "Did you mean: workdir"),
        (
            TRAIN,
            "--config.training.lerning_rate=1",
            2,
            "did you mean config.training.learning_rate?",
        ),
        (TRAIN, "--config.modle.d_model=8", 2, "did you mean config.model"),
        (TRAIN, "--config.model.num_heads=x", 1, "num_heads"),
        (TRAIN, "--config.training.schedule=cosin", 2, "'cosin'"),
        (TRAIN, "workdir", 1, "every option is a --flag=value"),
        (DECODE, "--beam=4", 1, "Did you mean: beam_size"),
        (DECODE, "--beam_size=four", 1, "beam_size=four"),
        (DECODE, f"--workdir={tmp_path}", 4, "not a run directory"),
    ]
    for script, flag, code, part in mistakes:
        done = call(script, flag, **options)
        assert (done.code, done.out, len(done.err)) == (code, "", 1), (flag, done)
        assert part in done.error, (flag, done.error)
    done = decode(trained(), "--checkpoint=3", **options)
    assert done.code == 4 and "expected one of the steps 100, 200 and the average" in done.error
    for script in (TRAIN, DECODE):
        done = call(script, "--help", **options)
        assert done.code == 0 and "--workdir" in done.out and not done.err
    assert list(tmp_path.iterdir()) == [tmp_path / "tensorflow"]
    record_property("seen", f"{len(mistakes) + 3} of {len(mistakes) + 3}")


SECURITY = pytest.mark.row(
    36,
    "malicious pickle, YAML, .npy; .. and links in names; unsafe calls in the source",
    "refused, never executed; nothing outside the run is changed; the source has no unsafe call",
)


@SECURITY
def test_the_source_never_executes_its_input(record_property):
    unsafe_lines = [
        f"{path}:{number}: {line.strip()}"
        for path in SOURCES
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1)
        if UNSAFE.search(line.partition("#")[0])
    ]
    assert not unsafe_lines
    for bad in (
        "import pickle",
        "x = pickle.loads(y)",
        "from joblib import load",
        "x = eval(y)",
        "yaml.load(f)",
        "np.load(f, allow_pickle=True)",
        "run(c, shell=True)",
        "torch.load(f)",
    ):
        assert UNSAFE.search(bad), bad
    record_property("seen", f"{len(SOURCES)} files are clean")


class Payload:
    """Unpickling it creates a file."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return (Path.touch, (self.marker,))


def payloads(marker):
    """Name → bytes that create `marker` if they are loaded unsafely."""
    import io
    import pickle  # to create the payload

    array = io.BytesIO()
    np.save(array, np.array([Payload(marker)], dtype=object), allow_pickle=True)
    return {
        "pickle": pickle.dumps(Payload(marker)),
        "npy": array.getvalue(),
        "yaml": f"!!python/object/apply:os.system ['touch {marker}']\n".encode(),
    }


def copied(path):
    shutil.copytree(trained(), path)
    return path


@SECURITY
def test_nothing_in_a_run_directory_is_executed(tmp_path, record_property):
    marker, refused = tmp_path / "marker", 0
    for kind, raw in payloads(marker).items():
        run = copied(tmp_path / kind)
        vocabulary = next((run / "vocab").glob("joint.*")).name
        for name in ("config.json", "vocab/tokenizers.json", f"vocab/{vocabulary}", "best.json"):
            before = (run / name).read_bytes()
            (run / name).write_bytes(raw)
            done = decode(run, devices=0)
            assert done.code in (2, 4) and run.name in done.error, (kind, name, done)
            refused += 1
            (run / name).write_bytes(before)
        for path in [*run.glob("average/params/**/*"), *run.glob("checkpoints/*/params/**/*")]:
            if path.is_file():
                path.write_bytes(raw)
        done = decode(run, stdin=b"eins\n")
        assert done.code == 4 and done.error
        refused += 1
    code = f"import pathlib; pathlib.Path({str(marker)!r}).touch()\n"
    run = copied(tmp_path / "code")
    for name in ("sitecustomize", "train", "config", "conftest", "data", "jax", "get_config"):
        (run / f"{name}.py").write_text(code)
    done = decode(run, stdin=b"eins\n", cwd=run)
    assert done.code == 0 and done.out.count("\n") == 1
    assert not marker.exists()
    record_property("seen", f"{refused} payloads refused, 7 modules in the run ignored")


@SECURITY
def test_names_and_links_never_point_outside_a_run(tmp_path, record_property):
    outside = tmp_path / "outside"
    shutil.copytree(trained() / "checkpoints", outside)
    before = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    run = copied(tmp_path / "run")
    (run / "best.json").write_text('{"checkpoint": "../../outside/200"}')
    done = decode(run, devices=0)
    assert done.code == 4 and "no checkpoint '../../outside/200'" in done.error
    (run / "best.json").write_text('{"checkpoint": 200}')
    description = run / "vocab" / "tokenizers.json"
    content = json.loads(description.read_text())
    content["joint"]["kind"] = "../../outside/words"
    description.write_text(json.dumps(content))
    done = decode(run, devices=0)
    assert done.code == 4 and "is unknown" in done.error
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").symlink_to(outside)  # a directory of the run is a link
    (run / "samples" / "link").symlink_to(outside)  # and one is inside another
    shutil.rmtree(run / "tensorboard")
    (run / "tensorboard").symlink_to(tmp_path / "nowhere")
    done = train(write_corpus(tmp_path / "new.tsv", 29), run, "--overwrite")
    assert done.code == 0, done.err
    assert before == {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    assert not (run / "checkpoints").is_symlink() and not (tmp_path / "nowhere").exists()
    record_property("seen", "2 names refused; --overwrite deletes 3 links, not their targets")


@SECURITY
def test_a_training_changes_no_file_of_others_through_links(tmp_path, record_property):
    outside, run = tmp_path / "outside", copied(tmp_path / "run")
    shutil.move(run / "checkpoints", outside)
    for name in ("LOCK", "train.log", "1.tmp/part", "samples/202.txt"):
        (outside / name).parent.mkdir(exist_ok=True)
        (outside / name).write_text("mine")
    before = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    shutil.rmtree(run / "samples")
    links = {"LOCK": "LOCK", "train.log": "train.log", "metrics.jsonl": "train.log",
             "samples": "samples", "checkpoints": "."}  # fmt: skip
    for name, target in links.items():
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(outside / target)
    resume = TRAIN, f"--workdir={run}", "--config.training.num_steps=202"
    done = call(*resume)
    assert done.code == 6 and "LOCK is not a lock of this program" in done.error
    (run / "LOCK").unlink()
    done = call(*resume)
    assert done.code == 0 and "saved step 202" in done.err, done.err
    after = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    assert before.items() <= after.items()
    record_property(
        "seen",
        "a linked LOCK is refused; through a linked log, samples/ and checkpoints/ no file of "
        "others is changed",
    )


@SECURITY
def test_a_run_directory_is_json_text_and_arrays(record_property):
    for name in ("config.json", "run.json", "best.json", "vocab/tokenizers.json"):
        assert isinstance(json.loads((trained() / name).read_text()), dict)
    for line in (trained() / "metrics.jsonl").read_text().splitlines():
        assert json.loads(line)["step"] >= 0
    suffixes = {path.suffix for path in trained().rglob("*") if path.is_file()}
    assert not suffixes & {".py", ".pyc", ".pkl", ".pickle", ".yaml", ".yml", ".npy", ".npz", ".pt"}
    record_property("seen", "a run holds JSON, text, event files and Orbax arrays")
