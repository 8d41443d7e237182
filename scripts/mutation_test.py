"""Mutation test: change the code in one place, run the tests of that file, count detected changes.

    python scripts/mutation_test.py --seed=0 --mutants=120 --jobs=2 --report=mutation.md

scripts/mutants.py draws the mutants. tests/mutation/test_files.json maps each source file to its
test files, the fastest and most specific first. They run in this order up to the first failure, on
a copy of the tree. tests/mutation/equivalent.json lists mutants that no test can detect, with the
reason. Results are appended to build/mutation/seed-N.jsonl, so the same command resumes. --retry
runs the survivors again, after tests were added. --mutants can be increased later. Delete the file
after a change of the code.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import IO

from mutants import Mutant, draw, source_files

ROOT = Path(__file__).resolve().parent.parent
# The grammar and lexicon of the built-in corpus have many constants of little importance.
LOW_WEIGHT = ("korean", "english")
PATIENCE = 4.0  # timeout without output, × the longest pause of the unchanged code
MIN_PATIENCE = 45.0  # seconds


def run_tests(
    tree: Path, file: str, environment: dict[str, str], patience: float = 600.0
) -> tuple[bool, str, float]:
    """(all passed, first failure, longest pause between two outputs in seconds) of a test file.

    A run without output for `patience` seconds is stopped and counts as failed.
    """
    options = "-n 0 -x -q -rfE --tb=no -p no:cacheprovider".split()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "pytest", *options, "-m", "not slow", file],
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        longest = wait_for(process, output, patience)
        in_time = process.poll() is not None
        try:  # including processes that the tests started
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        code = process.wait()
        output.seek(0)
        lines = output.read().decode("utf-8", errors="replace").splitlines()
    if in_time and code in (4, 5):
        raise RuntimeError(f"pytest cannot run {file} in {tree}: {lines[-3:]}")
    failures = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    if not in_time:
        return False, f"no output for {patience:.0f} s", longest
    return code == 0, failures[0] if failures else f"exit code {code}" * bool(code), longest


def wait_for(process: subprocess.Popen, output: IO[bytes], patience: float) -> float:
    """Wait until a process ends or writes nothing for `patience` seconds.

    Returns the longest pause between two outputs in seconds.
    """
    size, since, longest = 0, time.monotonic(), 0.0
    while process.poll() is None:
        time.sleep(0.1)
        longest = max(longest, time.monotonic() - since)
        if (now := os.fstat(output.fileno()).st_size) != size:
            size, since = now, time.monotonic()
        if time.monotonic() - since > patience:
            break
    return longest


def copy_tree(root: Path, to: Path) -> Path:
    """A clone with the files of the working tree that are not ignored by git."""
    subprocess.run(
        ["git", "clone", "-q", "--no-checkout", "--shared", str(root), str(to)],
        check=True,
        capture_output=True,
    )
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (root / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)
    return to


class Session:
    """The results of one seed, read from its file; new results are appended at once."""

    def __init__(self, path: Path):
        self.path, self._lock = path, threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.results: dict[tuple[str, ...], dict] = {}
        for line in lines:
            try:
                result = json.loads(line)
            except ValueError:
                continue  # a partial line, after a kill
            self.results[tuple(result["key"])] = result

    def add(self, key: tuple[str, ...], **facts) -> None:
        """Append a result; it replaces an earlier one with the same key."""
        with self._lock:
            self.results[key] = {"key": key, **facts}
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(self.results[key], ensure_ascii=False) + "\n")


class Runner:
    """Runs mutants on copies of the tree: one per job, and an unchanged one for reference."""

    def __init__(self, root: Path, folder: Path, jobs: int, session: Session):
        self.session, self._measuring = session, threading.Lock()
        self._code = "".join(source_files(root).values())
        self._unchanged = copy_tree(root, folder / "unchanged")
        self._trees: SimpleQueue[Path] = SimpleQueue()
        for i in range(jobs):
            self._trees.put(copy_tree(root, folder / str(i)))
        compiled = str(session.path.parent / "compiled")  # shared by all runs: tests/conftest.py
        self._environment = {
            **os.environ,
            "TESTS_COMPILED": compiled,
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def patience(self, file: str) -> float:
        """The timeout of a test file without output, from its longest pause on unchanged code.

        The first call also fills the compilation cache. Raises SystemExit if the file fails.
        """
        test = (self._unchanged / file).read_text(encoding="utf-8")
        key = ("unchanged", file, hashlib.sha256((self._code + test).encode()).hexdigest()[:12])
        with self._measuring:
            if key not in self.session.results:
                passed, failure, pause = run_tests(self._unchanged, file, self._environment)
                if not passed:
                    raise SystemExit(f"{file} fails on the unchanged code: {failure}")
                self.session.add(key, pause=pause)
        return max(MIN_PATIENCE, PATIENCE * self.session.results[key]["pause"])

    def test(self, mutant: Mutant, source: str, files: list[str]) -> None:
        """Apply a mutant, run its test files up to the first failure, record the outcome."""
        tree, since = self._trees.get(), time.monotonic()
        try:
            for file in files:
                patience = self.patience(file)
                (tree / mutant.path).write_text(mutant.apply(source), encoding="utf-8")
                passed, failure, _ = run_tests(tree, file, self._environment, patience)
                if not passed:
                    break
        finally:
            (tree / mutant.path).write_text(source, encoding="utf-8")
            self._trees.put(tree)
        outcome, seconds = "survived" if passed else "killed", time.monotonic() - since
        self.session.add(
            mutant.key,
            outcome=outcome,
            line=mutant.line,
            kind=mutant.kind,
            seconds=round(seconds, 1),
            by=failure,
        )
        print(
            f"{outcome} {seconds:5.1f} s  {mutant.path}:{mutant.line}  {shown(mutant)}  "
            f"[{failure}]",
            flush=True,
        )


def shown(mutant: Mutant) -> str:
    """The change of a mutant in one line."""
    return f"{mutant.original} → {' '.join(mutant.mutated.split())}"


def report(drawn: list[Mutant], session: Session, equivalent: dict[tuple, str]) -> str:
    """Counts per source file, the survivors, the equivalent mutants, and the detected share."""
    outcomes = {
        m: "equivalent" if m.key in equivalent else session.results[m.key]["outcome"] for m in drawn
    }
    columns = ("killed", "survived", "equivalent")
    rows = ["| file | " + " | ".join(columns) + " |", "|---" * 4 + "|"]
    for path in sorted({mutant.path for mutant in drawn}):
        count = Counter(outcome for mutant, outcome in outcomes.items() if mutant.path == path)
        rows.append(f"| {path} | " + " | ".join(str(count[c]) for c in columns) + " |")
    rows += ["", "Survived:"]
    rows += [
        f"- {m.path}:{m.line}: `{shown(m)}`"
        for m, outcome in outcomes.items()
        if outcome == "survived"
    ]
    rows += ["", "Equivalent:"]
    rows += [
        f"- {m.path}:{m.line}: `{shown(m)}`: {equivalent[m.key]}"
        for m, outcome in outcomes.items()
        if outcome == "equivalent"
    ]
    total = Counter(outcomes.values())
    share = 100.0 * total["killed"] / max(1, total["killed"] + total["survived"])
    rows += [
        "",
        f"{len(drawn)} mutants: {total['killed']} killed, {total['survived']} survived, "
        f"{total['equivalent']} equivalent; {share:.1f} % of the others detected",
    ]
    return "\n".join(rows) + "\n"


def read_tables(root: Path) -> tuple[dict[str, list[str]], dict[tuple, str]]:
    """(source file → test files, equivalent mutant → reason)."""
    folder = root / "tests" / "mutation"
    files = json.loads((folder / "test_files.json").read_text(encoding="utf-8"))
    listed = json.loads((folder / "equivalent.json").read_text(encoding="utf-8"))
    names = ("path", "code", "original", "mutated")
    return files, {tuple(one[name] for name in names): one["reason"] for one in listed}


def weight(path: str) -> float:
    """The relative number of mutants that a file gets for each of its expressions."""
    return 0.1 if any(word in path for word in LOW_WEIGHT) else 1.0


def mutation_test(
    root: Path, seed: int, count: int, jobs: int, retry: bool = False, only: str = ""
) -> str:
    """Test `count` mutants of the tree at `root`, `jobs` at a time, and return the report."""
    test_files, equivalent = read_tables(root)
    sources = {path: text for path, text in source_files(root).items() if only in path}
    drawn = draw(sources, count, seed, weight)
    session = Session(root / "build" / "mutation" / f"seed-{seed}.jsonl")
    survivors = {key for key, one in session.results.items() if one.get("outcome") == "survived"}
    pending = [
        m
        for m in drawn
        if m.key not in equivalent
        and (m.key not in session.results or retry and m.key in survivors)
    ]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        runner = Runner(root, Path(folder), jobs, session)
        list(pool.map(lambda m: runner.test(m, sources[m.path], test_files[m.path]), pending))
    return report(drawn, session, equivalent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutants", type=int, default=120)
    parser.add_argument("--jobs", type=int, default=1, help="mutants tested in parallel")
    parser.add_argument("--retry", action="store_true", help="run the survivors again")
    parser.add_argument(
        "--only", default="", help="only source files whose path contains this text"
    )
    parser.add_argument("--report", default="", help="also write the report to this file")
    options = parser.parse_args()
    text = mutation_test(
        ROOT, options.seed, options.mutants, options.jobs, options.retry, options.only
    )
    print(text, end="")
    if options.report:
        Path(options.report).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
