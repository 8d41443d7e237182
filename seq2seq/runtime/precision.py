"""The hint to use `mixed` where matmuls in bfloat16 are faster than float32 matmuls."""

import re
from pathlib import Path

import jax

CPU_INFO = Path("/proc/cpuinfo")  # of Linux
# The option that the hint names, and how many times as fast it is on a CPU with AVX512-BF16
# (benchmarks/train_speed.md, benchmarks/decode_speed.md).
MIXED = {
    "training": ("--config.model.dtype=mixed", "1.75 to 1.9"),
    "decoding": ("--dtype=mixed", "1.4 to 1.6"),
}
NATIVE = re.compile(r"^flags\b.*\b(avx512_bf16|amx_bf16)\b", re.MULTILINE)


def precision_hint(dtype: str, work: str) -> str:
    """A hint to enable the option in MIXED for a float32 model, if the hardware has bfloat16
    instructions; else "". `work` is training or decoding."""
    option, speedup = MIXED[work]
    platform = jax.default_backend()
    if dtype != "float32" or (platform == "cpu" and not has_bfloat16_instructions()):
        return ""
    if platform == "cpu":
        return f"hint: this CPU has bfloat16 instructions; {option} is {speedup} times as fast"
    return (
        "hint: float32 matmuls are several times as slow as those in bfloat16 on a "
        f"{platform.upper()}; {option} is recommended"
    )


def has_bfloat16_instructions() -> bool:
    """Whether this CPU has bfloat16 instructions; False if that is unknown."""
    try:
        return NATIVE.search(CPU_INFO.read_text(encoding="utf-8")) is not None
    except OSError:
        return False
