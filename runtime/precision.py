"""The recommendation of `mixed` where products of bfloat16 are faster than those of float32."""

import re
from pathlib import Path

import jax

CPU_INFO = Path("/proc/cpuinfo")  # of Linux
NATIVE = re.compile(r"^flags\b.*\b(avx512_bf16|amx_bf16)\b", re.MULTILINE)


def precision_hint(dtype: str, option: str, speedup: str) -> str:
    """The recommendation of an option to a model of float32, if the hardware multiplies bfloat16;
    else "". `speedup` is what was measured on such a CPU."""
    platform = jax.default_backend()
    if dtype != "float32" or (platform == "cpu" and not multiplies_bfloat16()):
        return ""
    if platform == "cpu":
        return f"hint: this CPU multiplies bfloat16; {option} is {speedup} times as fast"
    return (
        "hint: products of float32 are several times as slow as those of bfloat16 on a "
        f"{platform.upper()}; {option} is recommended"
    )


def multiplies_bfloat16() -> bool:
    """Whether the CPU has instructions for products of bfloat16; False if that is unknown."""
    try:
        return NATIVE.search(CPU_INFO.read_text(encoding="utf-8")) is not None
    except OSError:
        return False
