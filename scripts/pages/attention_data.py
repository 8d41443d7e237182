"""Attention weights as the data of a page: multiples of 0.0001, with the mean over the heads.

Axes: L layers · H heads · R rows (queries) · C columns (keys).
"""

import base64
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from seq2seq.decoding.engine.attention_weights import Attention
from seq2seq.decoding.results import Item
from seq2seq.decoding.translator import Translator
from seq2seq.runtime.errors import DATA, UserError
from seq2seq.scripts.pages.template import json_element, text

LEVELS = 10_000  # a weight w is stored as the integer nearest to LEVELS · w
START = "<s>"  # the label of the start token, which each vocabulary names differently


class Kind(NamedTuple):
    """One of the three attentions of a model."""

    name: str  # the name of its array in Attention
    label: str
    row_side: str  # source or target: the side of its queries
    column_side: str  # of its keys
    help: str


KINDS = (
    Kind(
        "encoder",
        "Encoder self-attention",
        "source",
        "source",
        "Each source piece attends to all source pieces.",
    ),
    Kind(
        "decoder",
        "Decoder self-attention",
        "target",
        "target",
        f"To predict a target piece, the decoder attends to the start token {START} and the target "
        "pieces before it.",
    ),
    Kind(
        "cross",
        "Cross-attention",
        "target",
        "source",
        "To predict a target piece, the decoder attends to the source pieces.",
    ),
)


class Example(NamedTuple):
    """The attention weights of a model for a pair of texts."""

    attention: Attention
    source: str
    target: str
    truncated: tuple[str, ...] = ()  # the sides whose weights are those of their first pieces


def check_sentence(flag: str, value: str | None) -> None:
    """UserError(DATA) for the value of a flag that is blank or has several lines."""
    if value is not None and (not value.strip() or "\n" in value.strip()):
        raise UserError(
            DATA, f"--{flag} is invalid: expected one sentence, got {value[:40]!r}; give a text"
        )


def load_example(
    directory: Path,
    checkpoint: str,
    source: str,
    target: str | None,
    source_language: str = "",
    target_language: str = "",
) -> Example:
    """The example of a run or a directory of another project. Without a target, that of its
    translation.

    Raises UserError for a directory or checkpoint that cannot be loaded.
    """
    translator = Translator.load(
        directory,
        checkpoint,
        source_language=source_language,
        target_language=target_language,
        nbest=1,
        samples=0,
        mbr="",
    )
    attention = translator.attention(source, target)
    # Of each side alone, with the tokens around its text.
    item, forcing = Item(source, source), translator.forcing
    ids = translator.source_tokenizer.encode(source.strip())
    pairs = {"source": forcing.pairs.of_texts(0, item, ids, [])}
    if target is None:
        numbers = [translator.target_tokenizer.id_of(piece) for piece in attention.target[:-1]]
        target = translator.target_tokenizer.decode(
            [number for number in numbers if number is not None]
        )
    else:
        ids = translator.target_tokenizer.encode(target.strip())
        pairs["target"] = forcing.pairs.of_texts(0, item, [], ids)
    truncated = tuple(side for side, pair in pairs.items() if pair.cut)
    return Example(attention, source, target, truncated)


def view_data(example: Example) -> dict[str, Any]:
    """The JSON data of attention.js: of the kinds of attention that the model has."""
    attention, source, target = example[:3]
    pieces = {"source": attention.source, "target": attention.target}
    kinds = []
    for kind in KINDS:
        weights = getattr(attention, kind.name)
        columns = pieces[kind.column_side]
        columns = [START, *columns[:-1]] if kind.name == "decoder" else columns
        layers, heads = weights.shape[:2]
        if not layers:
            continue  # an RNN has cross-attention only
        kinds.append(
            kind._asdict()
            | {"layers": layers, "heads": heads, "rows": pieces[kind.row_side], "columns": columns}
            | {"weights": encoded_weights(weights)}
        )
    return {"source": source, "target": target, "levels": LEVELS, "kinds": kinds}


def encoded_weights(weights: np.ndarray) -> str:
    """Weights [L, H, R, C] and their mean over the heads as head number H, as base64 of
    little-endian 16-bit integers, LEVELS for 1."""
    mean = weights.mean(axis=1, keepdims=True, dtype=np.float64)
    stored = np.rint(np.concatenate([weights, mean], axis=1) * LEVELS)
    return base64.b64encode(stored.astype("<u2").tobytes()).decode("ascii")


def attention_section(example: Example) -> str:
    """The HTML that attention.js fills with the views of an example."""
    data = view_data(example)
    sides = ""
    for side in ("source", "target"):
        truncated = " (truncated)" if side in example.truncated else ""
        sides += f"<dt>{side}{truncated}</dt><dd>{text(data[side])}</dd>"
    return (
        f'<div class="attention">\n<dl class="texts">{sides}</dl>\n'
        f"{json_element(data, 'attention-data')}\n<noscript>The maps need JavaScript.</noscript>"
        "\n</div>"
    )
