"""model/ runs where nothing but its three packages is installed, also as a copy of another name."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = """
import importlib, pkgutil, sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder

# The three packages and their own imports (flax imports absl; it does not need optax).
INCLUDED = {"jax", "jaxlib", "flax", "jaxtyping", "numpy", "scipy", "ml_dtypes", "opt_einsum",
            "absl", "msgpack", "rich", "typing_extensions", "yaml", "wadler_lindig", "treescope"}

class Installed(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        top = name.partition(".")[0]
        standard = top in sys.stdlib_module_names or top.startswith("_sysconfigdata")
        allowed = standard or top in INCLUDED | ours
        return super().find_spec(name, path, target) if allowed else None

ours = {"lab"}
sys.meta_path[:] = [BuiltinImporter, FrozenImporter, Installed]
import jax, jax.numpy as jnp
import lab

for module in pkgutil.walk_packages(lab.__path__, "lab."):
    importlib.import_module(module.name)

from lab.config import ModelConfig
from lab.transformer import Transformer
from lab.search.arguments import SearchOptions
from lab.search.translate import Request, translate

transformer = Transformer(ModelConfig(source_vocab_size=11, target_vocab_size=11, d_model=8, d_ff=8,
                                      num_heads=2, num_layers=1, max_length=8))
ids = jnp.array([[5, 7, 2]])
request = Request(ids, lengths=jnp.array([3]), limits=jnp.array([4]))
def run():
    variables = transformer.init(jax.random.key(0), ids, ids, ids, ids)
    return translate([(transformer, variables)], request, SearchOptions(4, 2, beam_size=2), 1)
shape = jax.eval_shape(run).lengths.shape
print(shape, *(name in sys.modules for name in ("seq2seq", "model", "data")))

ours = {"seq2seq", "examples"}
sys.path[0] = sys.argv[1]
import seq2seq.model.attention, seq2seq.model.layers, seq2seq.model.transformer
import seq2seq.model.search.beam_search, seq2seq.model.search.translate
from examples import attention
print(attention.main() < 1e-5, sorted(set(sys.modules)))
"""


def test_the_model_runs_with_three_packages_and_as_a_copy_beside_other_packages(tmp_path):
    """The copy is named `lab`, next to the user's own `model.py` and `data/`."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "model", tmp_path / "lab", ignore=ignored)
    foreign = "raise ImportError('this is not the project')\n"
    (tmp_path / "model.py").write_text(foreign)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "__init__.py").write_text(foreign)
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py", str(ROOT)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    of_copy, of_package = done.stdout.splitlines()
    assert of_copy == "(1, 1) False False False"
    right, _, loaded = of_package.partition(" ")
    assert right == "True"
    names = [name.split(".") for name in ast.literal_eval(loaded)]
    ours = {tuple(parts[:2]) for parts in names if parts[0] == "seq2seq"}
    assert ours == {("seq2seq",), ("seq2seq", "model")}
