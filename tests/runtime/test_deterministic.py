"""Options of XLA that commands set before the backend starts, as XLA's dump shows: deterministic
operations if they are asked for, and no fused reductions in decode.py."""

import pytest

from tests.support.forked import ROOT, call_forked
from tests.support.tiny import tiny_flags, write_corpus

# The command with one small program in place of its work, so that XLA dumps its options.
SCRIPT = """
import sys
import COMMAND
from seq2seq.cli.command import run_command

def compile_something(*_, **__):
    import jax
    jax.jit(lambda x: x + 1.0)(1.0)
    sys.exit(7)

COMMAND.WORK = compile_something
run_command(COMMAND.define_flags, COMMAND.main)
"""


def train_flags(path, asked):
    corpus = write_corpus(path / "pairs.tsv", 61)
    return "Translator", [
        *tiny_flags(),
        f"--config.data.corpus={corpus}",
        f"--config.training.deterministic={asked}",
    ]


def decode_flags(path, asked):
    (path / "in.txt").write_text("eins\n")
    return "Translator.load", [f"--input={path / 'in.txt'}", *["--deterministic"] * asked]


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("command, flags", [("train", train_flags), ("decode", decode_flags)])
def test_xla_is_deterministic_if_asked_for_and_fuses_reductions_in_training_only(
    command, flags, asked, tmp_path
):
    work, arguments = flags(tmp_path, asked)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("COMMAND", command).replace("WORK", work))
    environment = {"XLA_FLAGS": f"--xla_dump_to={tmp_path / 'xla'}", "PYTHONPATH": str(ROOT)}
    done = call_forked(
        [script, *arguments, f"--workdir={tmp_path / 'run'}", "--compilation_cache=off"],
        environment=environment,
    )
    assert done.code == 7, done
    written = [path.read_text() for path in (tmp_path / "xla").glob("*debug_options")]
    assert written
    assert all(("xla_gpu_deterministic_ops: true" in text) == asked for text in written)
    # XLA lists the kinds of fusions only if some are off.
    assert all(("ynn_fusion_type" in text) == (command == "decode") for text in written)
    assert not any("FUSION_TYPE_REDUCE" in text for text in written)
