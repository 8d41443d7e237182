"""Results of parts on disk: one JSON file per part, written after each of its rows.

A file holds the device, the versions and the state of its part. A directory holds the results of
one device and one set of sizes.
"""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from seq2seq.files.output_files import write_atomic
from seq2seq.runtime.errors import DATA, UserError

DONE, RUNNING, FAILED = "done", "running", "failed"


class Results:
    """The results in a directory, which belong to one `setting`: platform, device and sizes."""

    def __init__(self, directory: Path, setting: dict[str, Any], facts: dict[str, Any]):
        """`facts` (versions, commit) are stored with each part. UserError(DATA) if the directory
        holds a result of another setting or a damaged file."""
        self._directory, self._setting, self._facts = directory, setting, facts
        self._directory.mkdir(parents=True, exist_ok=True)
        for path in sorted(directory.glob("*.json")):
            check_setting(path, self._read(path), setting)

    def get(self, part: str) -> dict[str, Any] | None:
        """The stored result of a part: state, rows, seconds, error; None if it has not started."""
        path = self._path(part)
        return self._read(path) if path.exists() else None

    def is_done(self, part: str) -> bool:
        """Whether the part has ended without an error."""
        return (self.get(part) or {}).get("state") == DONE

    def run(self, part: str, rows: Iterable[dict[str, Any]]) -> None:
        """Store each row as soon as it is measured. An error of the part is stored, not raised."""
        start, kept, state, error = time.monotonic(), [], DONE, ""
        self._write(part, RUNNING, kept, 0.0)
        try:
            for row in rows:
                kept.append(row)
                self._write(part, RUNNING, kept, time.monotonic() - start)
        except Exception as failure:  # noqa: BLE001 – the next part runs
            state, error = FAILED, f"{type(failure).__name__}: {failure}"
        self._write(part, state, kept, time.monotonic() - start, error)

    def fail(self, part: str, error: str) -> None:
        """Store why a part has not ended; its rows are kept."""
        result = self.get(part) or {"rows": [], "seconds": 0.0}
        self._write(part, FAILED, result["rows"], result["seconds"], error)

    def _write(
        self, part: str, state: str, rows: list[dict[str, Any]], seconds: float, error: str = ""
    ) -> None:
        result = {
            "part": part, "setting": self._setting, "state": state, "seconds": seconds,
            "error": " ".join(error.split())[:400], "rows": rows, **self._facts,
        }  # fmt: skip
        write_atomic(self._path(part), json.dumps(result, indent=1))

    def _path(self, part: str) -> Path:
        return self._directory / f"{part.replace(':', '-')}.json"

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(result["rows"], list) or not isinstance(result["state"], str):
                raise ValueError("rows or state is missing")
        except (ValueError, LookupError, TypeError) as error:
            raise UserError(
                DATA, f"{path} is damaged: expected a result, got {error}; delete it"
            ) from None
        return result


def check_setting(path: Path, result: dict[str, Any], setting: dict[str, Any]) -> None:
    """UserError(DATA) if a result was measured on another device or with other sizes."""
    if result.get("setting") != setting:
        raise UserError(
            DATA,
            f"{path} was measured elsewhere: expected {described(setting)}, got "
            f"{described(result.get('setting') or {})}; choose another directory with --results",
        )


def described(setting: dict[str, Any]) -> str:
    """One line: the values of a setting."""
    return ", ".join(f"{name} {value}" for name, value in setting.items()) or "nothing"
