"""Benchmark: an exported file and the live model: size, time to first translation, speed.

    python benchmarks/export.py --workdir=RUN --input=FILE [--rounds=2]
Prints a Markdown table; recorded in benchmarks/export.md. Each measurement is a process of its own
without a compilation cache; live and exported alternate. Their translations are compared bytewise.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from absl import flags

sys.path.insert(0, str(Path(__file__).parent.parent))

from seq2seq.runtime.command import run_command
from seq2seq.runtime.lines import check_file
from seq2seq.runtime.path_flags import define_path
from seq2seq.runtime.paths import expand_path

ROOT = Path(__file__).parent.parent
# Prints the seconds of loading, of the first line, of all lines (compiles the other buckets), and
# of all lines again.
MEASURE = """
import json, os, sys, time
began = time.perf_counter()
sys.path.insert(0, {scripts!r})
{load}
lines = open({input!r}, encoding="utf-8", newline="\\n").read().removesuffix("\\n").split("\\n")
seconds = [time.perf_counter() - began]
for part in (lines[:1], lines, lines):
    began = time.perf_counter()
    translations = model.translate(part)
    seconds.append(time.perf_counter() - began)
print(json.dumps([seconds, translations]))
"""
LOAD = {
    "live": """
from seq2seq.runtime.devices import prepare_jax
prepare_jax("off", 1, decoding_only=True)
from seq2seq import Translator
model = Translator.load({run!r})
""",
    "exported": """
import jax
jax.config.update("jax_num_cpu_devices", min(len(os.sched_getaffinity(0)), 8))
from load_exported import Exported
model = Exported({file!r})
""",
}


def stdout_of(*command: str | Path) -> str:
    """What a Python command prints. If it fails, this one exits too, after its messages."""
    done = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def main() -> None:
    f = flags.FLAGS
    check_file(f.input)
    run, lines_file = (str(Path(expand_path(path)).absolute()) for path in (f.workdir, f.input))
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "exported.zip"
        stdout_of(ROOT / "scripts" / "export.py", f"--workdir={run}", f"--to={file}")
        times, texts = {name: [] for name in LOAD}, {}
        for _ in range(f.rounds):
            for name, load in LOAD.items():
                program = MEASURE.format(
                    scripts=str(ROOT / "scripts"),
                    input=lines_file,
                    load=load.format(run=run, file=str(file)),
                )
                seconds, texts[name] = json.loads(stdout_of("-c", program))
                times[name].append(seconds)
        size = file.stat().st_size
    lines = len(texts["live"])
    print(
        f"\n{size:,} bytes; {lines} lines; byte-identical: "
        f"{'yes' if texts['live'] == texts['exported'] else 'no'}\n"
    )
    print("| | ready | first line | warm lines/s |\n|---|---|---|---|")
    for name, rounds in times.items():
        ready, first, _, warm = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"| {name} | {ready:.1f} s | {first:.1f} s | {lines / warm:,.0f} |")


def define_flags() -> None:
    define_path("workdir", None, "The run directory.", required=True)
    define_path("input", None, "A file with one sentence per line.", required=True)
    flags.DEFINE_integer("rounds", 2, "Measurements of each variant.", 1)


if __name__ == "__main__":
    run_command(define_flags, main)
