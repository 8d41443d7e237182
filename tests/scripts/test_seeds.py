"""scripts/seeds.py: its output, and what it refuses."""

import pytest

from seq2seq.data.metrics import METRICS
from seq2seq.runtime.errors import CONFIGURATION, DATA
from seq2seq.scripts import seeds
from tests.support.in_process import call_in_process

TEXTS = {
    "reference": ["a b c d e", "f g h i j", "k l m n o"],
    "a0": ["a b c d e", "f g h i j", "k l m n x"],
    "a1": ["a b c d x", "f g h i j", "k l m n o"],
    "b0": ["a b c d x", "f g h i x", "k l m n x"],
    "short": ["a b c d e"],
}


@pytest.fixture
def call(tmp_path):
    for name, lines in TEXTS.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "link").symlink_to("a0")

    def run(outputs, baseline="", *more, reference="reference"):
        paths = {
            name: ",".join(str(tmp_path / file) for file in files.split(",") if file)
            for name, files in (
                ("outputs", outputs),
                ("baseline", baseline),
                ("reference", reference),
            )
        }
        arguments = [f"--{name}={value}" for name, value in paths.items() if value]
        return call_in_process(seeds, *arguments, *more)

    return run


def test_scores_of_a_group_and_the_difference_of_two_are_printed(call):
    bleu = {
        name: METRICS["bleu"](TEXTS[name], TEXTS["reference"]).value
        for name in TEXTS
        if name != "short"
    }
    done = call("a0,a1", "b0", "--metric=bleu")
    assert (done.code, done.err) == (0, [])
    title, outputs, baseline, difference = done.out.splitlines()
    assert title.startswith("BLEU (nrefs:1|") and title.endswith(")")
    mean = (bleu["a0"] + bleu["a1"]) / 2
    assert outputs.startswith(f"outputs  {mean:.2f} ± ")
    assert outputs.endswith(f"({bleu['a0']:.2f}, {bleu['a1']:.2f})")
    assert baseline == f"baseline {bleu['b0']:.2f}"
    assert difference.startswith(f"difference {mean - bleu['b0']:+.2f}, p-value 0.")
    score = METRICS["exact"](TEXTS["a0"], TEXTS["reference"], TEXTS["a1"])
    done = call("a0", "", "--metric=exact", reference="reference,a1")
    assert done.out == f"exact match ({score.signature})\noutputs  {score.value:.2f}\n"
    assert len(call("a0,a1").out.splitlines()) == 6  # three metrics without a difference


@pytest.mark.parametrize(
    "outputs, baseline, code, part",
    [
        ("a0,short", "", DATA, "is not parallel to --reference: expected 3 lines, got 1"),
        ("a0,a1", "a1", CONFIGURATION, "expected each file once"),
        ("a0,a0", "", CONFIGURATION, "expected each file once"),
        ("a0", "link", CONFIGURATION, "expected each file once"),
    ],
)
def test_what_cannot_be_compared_is_one_line(call, outputs, baseline, code, part):
    done = call(outputs, baseline)
    assert (done.code, done.out, len(done.err)) == (code, "", 1) and part in done.err[0]
    unknown = call("a0", "", "--metric=x")
    assert unknown.code == CONFIGURATION and "unknown metric" in unknown.err[0]
