"""format_version of config.json and of checkpoints, and the migration of older ones."""

from pathlib import Path
from typing import Any

from seq2seq.runtime.errors import CHECKPOINT, UserError

FORMAT_VERSION = 5  # raise it with every change that older programs cannot read
# Fields that no longer exist, with the value that turned them off.
REMOVED = {"data": {"subword_sampling": 0.0}}
# Fields of config.json that version 5 has added, with the value that gives the earlier behaviour.
BEFORE_5: dict[str, dict[str, Any]] = {
    "data": {"normalization": "nmt_nfkc", "nfc": False},
    "decoding": {"clean_source": False},
}
NAMES_BEFORE_4 = {"judged": "evaluated_step", "without_better": "without_improvement"}


def migrate(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """The content of `path` in the current format, without its format_version.

    A file without format_version has version 0, the format before versions were written; its
    fields are those of version 1. Before version 3 the default of decoding.batch_size was 32, which
    every config.json stores: it becomes 0 (by platform), which is 32 on a CPU. Before version 4 the
    training data was read in another order: the position in it, without its field window, is
    refused by seq2seq/training/resume.py. Two fields of a checkpoint had other names. The fields of
    BEFORE_5 did not exist before version 5. Fields of REMOVED that were turned off are dropped;
    others remain and are refused as unknown. Raises UserError(CHECKPOINT) for an unknown version.
    """
    version = content.get("format_version", 0)
    if type(version) is not int or version < 0:
        raise UserError(
            CHECKPOINT,
            f"{path} is damaged: format_version must be an integer of at least 0, got {version!r}",
        )
    if version > FORMAT_VERSION:
        raise UserError(
            CHECKPOINT,
            f"{path} was written by a newer version of this program: expected format_version "
            f"{FORMAT_VERSION} or lower, got {version}; update the program",
        )
    content = {name: value for name, value in content.items() if name != "format_version"}
    decoding = content.get("decoding")
    if version < 3 and isinstance(decoding, dict) and decoding.get("batch_size") == 32:
        content["decoding"] = decoding | {"batch_size": 0}
    if version < 4:
        content.pop("window", None)
        content = {NAMES_BEFORE_4.get(name, name): value for name, value in content.items()}
    if version < 5:
        for name, values in BEFORE_5.items():
            if isinstance(section := content.get(name), dict):
                content[name] = values | section
    for name, removed in REMOVED.items():
        if isinstance(section := content.get(name), dict):
            content[name] = {
                field: value
                for field, value in section.items()
                if field not in removed or value != removed[field]
            }
    return content
