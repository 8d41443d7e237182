"""Rows 19–21: non-finite numbers, empty attention, and reproducible results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.model.config import ModelConfig
from seq2seq.model.transformer import Transformer
from seq2seq.storage.run_files import steps
from tests.acceptance.processes import Bench, arrays, error_of, final_state, last_step
from tests.support.tiny import WORDS

row = pytest.mark.row
DIVERGED = row(
    19,
    "the loss is NaN at a step that is not logged (a poisoned pair, a learning rate of 1e30)",
    "exit 5 before a bad state is saved: step, loss, gradient norm, batch, "
    "file:line; skip_nonfinite skips up to this number in a row and never applies them",
)
NOTHING = row(
    20,
    "empty source, a query with nothing to attend to, a batch of padding",
    "finite; padding has a gradient of exactly 0",
)
TWICE = row(
    21,
    "the same command run twice, 20 steps",
    "all bits equal (CPU; on a GPU with training.deterministic)",
)
POISON = ("poison", "gift")
LINE = 57


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory):
    """Runs of a corpus that contains the word "gift" in line 57 only."""
    path = tmp_path_factory.mktemp("poisoned")
    lines = [f"{a} {b}\t{b} {a}\n" for a in WORDS for b in WORDS]
    lines[LINE - 1] = "gift eins\teins gift\n"
    (path / "pairs.tsv").write_text("".join(lines), encoding="utf-8")
    return Bench(path, f"tsv:{path / 'pairs.tsv'}")


def bad_step(error):
    assert error.startswith("step ") and ": loss nan, gradient norm " in error, error
    return int(error.split()[1].rstrip(":"))


@DIVERGED
def test_a_poisoned_pair(poisoned, tmp_path, record_property):
    code, lines = poisoned.train(
        tmp_path / "run",
        "--config.training.log_every=5",
        "--config.training.checkpoint_every=1",
        fault=POISON,
    )
    error = error_of(lines)
    assert code == 5, lines
    step = bad_step(error)
    places = (tmp_path / "run" / "samples" / f"nonfinite-{step}.txt").read_text().splitlines()
    assert f"{poisoned.path / 'pairs.tsv'}:{LINE}" in places and places[0] in error
    assert f"of epoch 0, {len(places)} pairs" in error and len(places) == len(set(places)) < 60
    assert ([0] + steps(tmp_path / "run"))[-1] == step - 1
    record_property(
        "seen",
        f"poisoned: exit 5 at step {step}, step {step - 1} is the last saved, "
        f"line {LINE} among the {len(places)} pairs named",
    )


@DIVERGED
def test_a_skipped_step_changes_only_the_step_number(poisoned, tmp_path, record_property):
    """The parameters after each skipped step of the poisoned pair equal those before it."""
    flags = [
        "--config.training.skip_nonfinite=1",
        "--config.training.checkpoint_every=1",
        "--config.training.keep=100",
    ]
    code, lines = poisoned.train(tmp_path / "run", *flags, fault=POISON)
    assert code == 0, lines
    skipped = [bad_step(line.removeprefix("warning: ")) for line in lines if "not applied" in line]
    directory = tmp_path / "run" / "checkpoints"
    for step in range(2, 13):
        before, after = (
            {**arrays(directory / str(at) / "params"), **arrays(directory / str(at) / "rest")}
            for at in (step - 1, step)
        )
        changed = {name for name in after if after[name] != before[name]}
        assert (changed == {"rest['step']"}) == (step in skipped), (step, changed)
    assert 1 <= len(skipped) <= 4  # twelve steps are four epochs
    record_property(
        "seen", f"skip_nonfinite=1: exit 0, steps {skipped} change only the step number"
    )


@DIVERGED
def test_a_learning_rate_of_1e30(bench, tmp_path, record_property):
    flags = [
        "--config.training.learning_rate=1e30",
        "--config.training.skip_nonfinite=2",
        "--config.training.clip_norm=0",
    ]
    code, lines = bench.train_here(tmp_path / "run", *flags)
    warnings = [line for line in lines if line.startswith("warning: step")]
    assert code == 5 and len(warnings) == 2, lines
    step = bad_step(error_of(lines))
    assert steps(tmp_path / "run")[-1:] in ([], [2])
    assert last_step(lines, "saved step ") <= step
    record_property("seen", f"1e30 with skip_nonfinite=2: two skipped, then exit 5 at step {step}")


V, S, T = 13, 7, 5


def logits_and_gradient(lengths, filler=0):
    """Logits and gradient of two rows with these (source, target) lengths, padded with `filler`."""
    model = Transformer(
        ModelConfig(
            source_vocab_size=V,
            target_vocab_size=V,
            d_model=8,
            d_ff=11,
            num_heads=2,
            num_layers=1,
            max_length=16,
            dropout=0.0,
            tied_embeddings="none",
        )
    )
    segments = [
        (np.arange(size) < np.array(side)[:, None]).astype(np.int32)
        for size, side in zip((S, T), zip(*lengths, strict=True), strict=True)
    ]
    ids = [np.where(segment_ids > 0, 5, filler).astype(np.int32) for segment_ids in segments]
    inputs = [jnp.asarray(array) for array in (*ids, *segments)]

    def loss(params):
        logits = model.apply({"params": params}, *inputs)
        return -(jax.nn.log_softmax(logits)[..., 5] * (inputs[3] > 0)).sum(), logits

    params = model.init(jax.random.key(0), *inputs)["params"]
    (_, logits), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    return np.asarray(logits), jax.tree.map(np.asarray, gradient)


@NOTHING
@pytest.mark.parametrize("source, target", [(0, 3), (0, 0), (4, 0)])
def test_nothing_to_attend_to(record_property, source, target):
    """An empty source leaves cross-attention without keys, an empty target leaves no loss."""
    logits, gradient = logits_and_gradient([(source, target)] * 2)
    leaves = jax.tree.leaves(gradient)
    assert np.isfinite(logits).all() and all(np.isfinite(leaf).all() for leaf in leaves)
    assert any(leaf.any() for leaf in leaves) == (target > 0)
    record_property(
        "seen",
        f"{source} source and {target} target tokens: finite"
        + ("" if target else ", all gradients exactly 0"),
    )


@NOTHING
def test_padding_has_no_gradient(record_property):
    """Rows of unequal lengths, one of them with an empty source."""
    lengths = [(4, 3), (0, 5)]
    _, gradient = logits_and_gradient(lengths)
    for side in ("source_embedding", "target_embedding"):
        assert not gradient[side]["table"][0].any() and gradient[side]["table"][5].any()
    _, other_gradient = logits_and_gradient(lengths, filler=9)
    assert all(
        (a == b).all()
        for a, b in zip(*map(jax.tree.leaves, (gradient, other_gradient)), strict=True)
    )
    record_property("seen", "the padding's embeddings: exactly 0; other padding ids change no bit")


@TWICE
def test_the_same_command_twice(bench, tmp_path, record_property):
    flags = [
        "--config.training.num_steps=20",
        "--config.model.dropout=0.1",
        "--config.training.deterministic",
    ]
    for name in ("one", "two"):
        code, lines = bench.train(tmp_path / name, *flags)
        assert code == 0, lines
    expected = final_state(tmp_path / "one")
    assert final_state(tmp_path / "two") == expected
    code, lines = bench.train(tmp_path / "other", *flags, fault=("reseed",))
    assert code == 0, lines
    other_state = final_state(tmp_path / "other")
    assert [loss for _, loss in other_state["losses"]] != [loss for _, loss in expected["losses"]]
    record_property(
        "seen",
        f"{len(expected)} facts and 20 losses equal (CPU); with another "
        "dropout key the losses differ",
    )
