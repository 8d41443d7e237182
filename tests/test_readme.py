"""What the README shows as Python runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
from tiny import write_run

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_search_over_a_table_runs_and_its_scores_are_those_of_the_table():
    (example,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL)
        if "beam_search" in block
    ]
    names = {}
    exec(example, names)
    found = jax.device_get(names["found"])
    assert (found.tokens.shape, found.scores.shape) == ((2, 2, 7), (2, 2))
    log_probs = np.asarray(jax.nn.log_softmax(names["logits"]))
    for tokens, length, log_prob in zip(
        found.tokens.reshape(-1, 7), found.lengths.ravel(), found.log_probs.ravel(), strict=True
    ):
        said = [1, *tokens[:length].tolist()]
        expected = sum(log_probs[a, b] for a, b in zip(said[:-1], said[1:], strict=True))
        np.testing.assert_allclose(log_prob, expected, rtol=1e-5)


def call(script, **environment):
    """What a script prints that starts without a backend; XLA_FLAGS do not set up the devices."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XLA_FLAGS": "", "JAX_COMPILATION_CACHE_DIR": "", **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_loading_a_translator_sets_up_a_device_for_each_core_and_the_cache(tmp_path):
    (example,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL)
        if "Translator.load" in block
    ]
    write_run(tmp_path / "run")
    load = example.split("translator.translate")[0].replace("runs/mine", str(tmp_path / "run"))
    assert "prepare_jax" not in example
    script = (
        f"{load}\nimport jax\nprint(jax.local_device_count())\n"
        "print(jax.config.jax_compilation_cache_dir)"
    )
    cores = min(len(os.sched_getaffinity(0)), 8)
    assert call(script, XDG_CACHE_HOME=str(tmp_path)) == [
        str(cores),
        str(tmp_path / "jax-transformer"),
    ]


def test_devices_that_are_in_use_stay_as_they_are():
    script = (
        "import jax; jax.devices(); from runtime.devices import prepare_jax_by_default; "
        "prepare_jax_by_default(); print(jax.local_device_count(), "
        "jax.config.jax_compilation_cache_dir or None)"
    )
    assert call(script) == ["1", "None"]
