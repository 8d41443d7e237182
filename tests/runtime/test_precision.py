"""When mixed is recommended; the training and decode.py log the line."""

import jax
import pytest

from seq2seq.runtime import precision
from seq2seq.runtime.precision import has_bfloat16_instructions, precision_hint

FLAGS = "flags\t\t: fpu sse2 avx512f {} rdpid\n"


def pretend(monkeypatch, tmp_path, platform, flag):
    """A machine whose default backend is `platform` and whose CPU has the instructions `flag`."""
    path = tmp_path / "cpuinfo"
    path.write_text(f"processor\t: 0\nmodel name\t: avx512_bf16\n{FLAGS.format(flag)}")
    monkeypatch.setattr(precision, "CPU_INFO", path)
    monkeypatch.setattr(jax, "default_backend", lambda: platform)


@pytest.mark.parametrize(
    "work, option, speedup",
    [
        ("training", "--config.model.dtype=mixed", "1.75 to 1.9 times"),
        ("decoding", "--dtype=mixed", "1.4 to 1.6 times"),
    ],
)
@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize("flag", ["", "avx512_bf16", "amx_bf16", "avx512_bf16x"])
@pytest.mark.parametrize("dtype", ["float32", "mixed", "bfloat16"])
def test_mixed_is_recommended_where_its_products_are_faster(
    dtype, flag, platform, work, option, speedup, monkeypatch, tmp_path
):
    pretend(monkeypatch, tmp_path, platform, flag)
    hint = precision_hint(dtype, work)
    faster = platform != "cpu" or flag in ("avx512_bf16", "amx_bf16")
    assert bool(hint) == (dtype == "float32" and faster)
    if hint:
        assert f" {option} " in hint and "\n" not in hint
        assert (speedup in hint) == (platform == "cpu")
        assert platform.upper() in hint


def test_without_a_list_of_instructions_nothing_is_recommended(monkeypatch, tmp_path):
    pretend(monkeypatch, tmp_path, "cpu", "amx_bf16")
    monkeypatch.setattr(precision, "CPU_INFO", tmp_path / "nothing")
    assert not has_bfloat16_instructions() and precision_hint("float32", "training") == ""
