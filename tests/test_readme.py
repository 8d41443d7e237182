"""What the README shows as Python runs as it stands."""

import re
from pathlib import Path

import jax
import numpy as np

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_search_over_a_table_runs_and_its_scores_are_those_of_the_table():
    (example,) = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL)
                  if "beam_search" in block]
    names = {}
    exec(example, names)
    found = jax.device_get(names["found"])
    assert (found.tokens.shape, found.scores.shape) == ((2, 2, 7), (2, 2))
    log_probs = np.asarray(jax.nn.log_softmax(names["logits"]))
    for tokens, length, log_prob in zip(
            found.tokens.reshape(-1, 7), found.lengths.ravel(), found.log_probs.ravel(),
            strict=True):
        said = [1, *tokens[:length].tolist()]
        expected = sum(log_probs[a, b] for a, b in zip(said[:-1], said[1:], strict=True))
        np.testing.assert_allclose(log_prob, expected, rtol=1e-5)
