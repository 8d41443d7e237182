"""The Python examples of README.md run, and loading a Translator sets up the devices."""

import os
import subprocess
import sys

import jax
import numpy as np
from documents import ROOT, fenced
from tiny import write_run

README = (ROOT / "README.md").read_text(encoding="utf-8")


def example_with(name: str) -> str:
    """The only Python block of README.md that contains `name`."""
    (example,) = (block for block in fenced(README, "python") if name in block)
    return example


def test_the_search_over_a_table_gives_the_log_probabilities_of_the_table():
    names = {}
    exec(example_with("beam_search"), names)
    found = jax.device_get(names["found"])
    assert (found.tokens.shape, found.scores.shape) == ((2, 2, 7), (2, 2))
    log_probs = np.asarray(jax.nn.log_softmax(names["logits"]))
    for tokens, length, log_prob in zip(
        found.tokens.reshape(-1, 7), found.lengths.ravel(), found.log_probs.ravel(), strict=True
    ):
        sequence = [1, *tokens[:length].tolist()]
        expected = sum(log_probs[a, b] for a, b in zip(sequence[:-1], sequence[1:], strict=True))
        np.testing.assert_allclose(log_prob, expected, rtol=1e-5)


def printed_words(script: str, **environment: str) -> list[str]:
    """The words that a Python script prints in a new process, without devices in XLA_FLAGS."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XLA_FLAGS": "", "JAX_COMPILATION_CACHE_DIR": "", **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_loading_a_translator_sets_up_a_device_and_the_cache(tmp_path):
    example = example_with("Translator.load")
    write_run(tmp_path / "run")
    load = example.split("translator.translate")[0].replace("runs/mine", str(tmp_path / "run"))
    assert "prepare_jax" not in example
    script = (
        f"{load}\nimport jax\nprint(jax.local_device_count())\n"
        "print(jax.config.jax_compilation_cache_dir)"
    )
    assert printed_words(script, XDG_CACHE_HOME=str(tmp_path)) == [
        "1",
        str(tmp_path / "jax-transformer"),
    ]


def test_initialised_devices_are_not_changed():
    script = (
        "import jax; jax.devices(); from runtime.devices import prepare_jax_by_default; "
        "prepare_jax_by_default(); print(jax.local_device_count(), "
        "jax.config.jax_compilation_cache_dir or None)"
    )
    assert printed_words(script) == ["1", "None"]
