"""The Python examples of README.md run, and loading a Translator sets up the devices."""

from pathlib import Path

import jax
import numpy as np

from seq2seq.runtime.devices import FUSIONS
from tests.support.documents import ROOT, fenced
from tests.support.forked import call_forked
from tests.support.tiny import write_run

README = (ROOT / "README.md").read_text(encoding="utf-8")


def example_with(name: str) -> str:
    """The only Python block of README.md that contains `name`."""
    (example,) = (block for block in fenced(README, "python") if name in block)
    return example


def test_the_search_over_a_table_gives_the_log_probabilities_of_the_table():
    names = {}
    exec(example_with("beam_search"), names)
    hypotheses = jax.device_get(names["hypotheses"])
    assert (hypotheses.tokens.shape, hypotheses.scores.shape) == ((2, 2, 7), (2, 2))
    log_probs = np.asarray(jax.nn.log_softmax(names["logits"]))
    for tokens, length, log_prob in zip(
        hypotheses.tokens.reshape(-1, 7),
        hypotheses.lengths.ravel(),
        hypotheses.log_probs.ravel(),
        strict=True,
    ):
        sequence = [1, *tokens[:length].tolist()]
        expected = sum(log_probs[a, b] for a, b in zip(sequence[:-1], sequence[1:], strict=True))
        np.testing.assert_allclose(log_prob, expected, rtol=1e-5)


# As for a user who does not set JAX_COMPILATION_CACHE_DIR, which jax has read at its import.
NO_CACHE = "import jax\njax.config.update('jax_compilation_cache_dir', None)\n"


def printed_words(path: Path, script: str, **environment: str) -> list[str]:
    """The words that a Python script prints, without devices in XLA_FLAGS."""
    (path / "script.py").write_text(NO_CACHE + script, encoding="utf-8")
    base_environment = {"PYTHONPATH": str(ROOT), "XLA_FLAGS": ""}
    done = call_forked([path / "script.py"], environment=base_environment | environment)
    assert done.code == 0, done.err
    return done.out.split()


def test_loading_a_translator_sets_up_a_device_and_the_cache(tmp_path):
    example = example_with("Translator.load")
    write_run(tmp_path / "run")
    load = example.split("translator.translate")[0].replace("runs/mine", str(tmp_path / "run"))
    assert "prepare_jax" not in example
    script = (
        f"{load}\nimport jax\nimport os\nprint(jax.local_device_count())\n"
        "print(jax.config.jax_compilation_cache_dir, os.environ['XLA_FLAGS'].split()[-1])"
    )
    assert printed_words(tmp_path, script, XDG_CACHE_HOME=str(tmp_path)) == [
        "1",
        str(tmp_path / "jax-transformer"),
        f"--{FUSIONS}=-reduce",  # as in decode.py
    ]


def test_initialised_devices_are_not_changed(tmp_path):
    script = (
        "import jax, os; jax.devices(); "
        "from seq2seq.runtime.devices import FUSIONS, prepare_jax_by_default; "
        "prepare_jax_by_default(); print(jax.local_device_count(), "
        "jax.config.jax_compilation_cache_dir or None, FUSIONS in os.environ['XLA_FLAGS'])"
    )
    assert printed_words(tmp_path, script) == ["1", "None", "False"]
