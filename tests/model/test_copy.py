"""model/ works as a copy under another name, next to the user's own `model.py` and `data/`."""

import shutil
import subprocess
import sys
from pathlib import Path

MODEL = Path(__file__).parents[2] / "model"
SCRIPT = """
import importlib, pkgutil, sys
import jax, jax.numpy as jnp
import lab

for module in pkgutil.iter_modules(lab.__path__):
    importlib.import_module(f"lab.{module.name}")

from lab.config import ModelConfig
from lab.transformer import Transformer
from lab.translate import Request, Search, translate

transformer = Transformer(ModelConfig(source_vocab_size=11, target_vocab_size=11, d_model=8, d_ff=8,
                                      num_heads=2, num_layers=1, max_length=8))
ids = jnp.array([[5, 7, 2]])
request = Request(ids, lengths=jnp.array([3]), limits=jnp.array([4]))
def run():
    variables = transformer.init(jax.random.key(0), ids, ids, ids, ids)
    return translate([(transformer, variables)], request, Search(beam_size=2), 4, 1)
shape = jax.eval_shape(run).lengths.shape
print(shape, *(name in sys.modules for name in ("seq2seq", "model", "data")))
"""


def test_a_copy_of_the_model_named_lab_runs_beside_other_packages_named_model_and_data(tmp_path):
    shutil.copytree(MODEL, tmp_path / "lab", ignore=shutil.ignore_patterns("__pycache__"))
    foreign = "raise ImportError('this is not the project')\n"
    (tmp_path / "model.py").write_text(foreign)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "__init__.py").write_text(foreign)
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("(1, 1) False False False\n", 0), done.stderr
