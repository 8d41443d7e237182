"""The vocabularies and JSON files of a MarianMT directory."""

import json
from pathlib import Path
from typing import Any

from data.marian_tokenizer import END, PAD, UNKNOWN, MarianTokenizer
from runtime.errors import CHECKPOINT, UserError


def load_marian_tokenizers(directory: Path) -> tuple[MarianTokenizer, MarianTokenizer]:
    """Those of source and target. UserError(CHECKPOINT) for a file that is missing or damaged."""
    settings = directory / "tokenizer_config.json"
    there = (
        read_json(settings)
        if settings.exists()
        else {"separate_vocabs": (directory / "target_vocab.json").exists()}
    )
    names = {"eos_token": END, "unk_token": UNKNOWN, "pad_token": PAD}
    for field, expected in {**names, "sp_model_kwargs": {}}.items():
        got = there.get(field) or expected
        if (got.get("content", got) if isinstance(got, dict) else got) != expected:
            raise UserError(
                CHECKPOINT,
                f"{settings}: {field}={got!r} cannot be represented; expected {expected!r}",
            )
    vocabularies = [
        "vocab.json",
        "target_vocab.json" if there.get("separate_vocabs") else "vocab.json",
    ]
    sides = []
    for side, vocabulary in zip(("source", "target"), vocabularies, strict=True):
        model, ids = directory / f"{side}.spm", read_json(directory / vocabulary)
        try:
            sides.append(MarianTokenizer(model.read_bytes(), ids))
        except ValueError as error:
            raise UserError(CHECKPOINT, f"{directory / vocabulary}: {error}") from None
        except (OSError, RuntimeError) as error:
            raise UserError(CHECKPOINT, f"{model} cannot be read: {error}") from None
    return sides[0], sides[1]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object. UserError(CHECKPOINT) if it does not."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(CHECKPOINT, f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise UserError(CHECKPOINT, f"{path} cannot be read: it holds no JSON object")
    return content
