"""Deletes the files of a run, and nothing else: --overwrite of a directory that is no run fails."""

import shutil
from pathlib import Path

from seq2seq.config.tree import is_foreign
from seq2seq.runtime.errors import OUTPUT, UserError
from seq2seq.storage.run_files import LEFT_BY_FAILED_START, RUN_FILES


def check_deletable(run: Path) -> None:
    """Raise UserError(OUTPUT) if the directory holds files of RUN_FILES but no run."""
    if not _is_deletable(run):
        raise UserError(
            OUTPUT,
            f"{run} holds files but no run: expected the config.json of a run; "
            "--overwrite deletes nothing here, choose another --workdir",
        )


def _is_deletable(run: Path) -> bool:
    """Whether the directory holds a run, or only what a failed first start has left."""
    config = run / "config.json"
    if is_foreign(config):
        return False
    if config.exists():
        return True
    left_by_failed_start = set(LEFT_BY_FAILED_START)
    if not (run / "vocab" / "tokenizers.json").exists():
        left_by_failed_start.remove("vocab")
    names = set(RUN_FILES) - left_by_failed_start
    return not any((run / name).exists() for name in names)


def delete_run_files(run: Path) -> None:
    """Delete the files of the run in this directory; other files stay."""
    more = run.glob("run.json.corrupt-*")  # quarantined after run.json.corrupt
    for path in (*more, *(run / name for name in RUN_FILES)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
