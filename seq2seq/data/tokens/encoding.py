"""From text to token ids, and from blocks of raw lines, in this process or in spawned ones.

Pairs that do not fit into a row are dropped and counted.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64

from seq2seq.config.data_config import DataConfig
from seq2seq.data.corpora.blocks import Block
from seq2seq.data.corpora.corpus import CollectedBlock
from seq2seq.data.corpora.counts import EXAMPLES, Counts, Note, merged_notes, none_left, value_range
from seq2seq.data.corpora.part_reader import PartReader, collect_block
from seq2seq.data.corpora.raw_corpus import MixturePart
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.data.tokenizers.vocabulary import make_tokenizer
from seq2seq.data.tokens.affixes import Affixes, affixes_of
from seq2seq.data.tokens.character_notes import PairTexts, text_notes
from seq2seq.data.tokens.pairs import Pairs, Ragged, concatenate_sequences, ragged
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError
from seq2seq.runtime.logs import Log
from seq2seq.runtime.workers import Workers

ENCODE_AT_ONCE = 10_000  # sentences
# A text with more characters per token of a row than this is dropped before it is tokenized: its
# tokens would need far more memory than the text, and cannot fit.
MAX_CHARACTERS_PER_TOKEN = 64
AHEAD = 2  # blocks in work or done for each worker


def encode_pairs(
    texts: PairTexts,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    config: DataConfig,
    notes: dict[str, Note] | None = None,
) -> tuple[Pairs, Int64[np.ndarray, " P"], dict[str, list[int]]]:
    """Token ids of the pairs that fit, their indices in `texts`, and the indices of the dropped
    pairs by reason. `check_pairs_left` refuses a corpus of which no pair is kept. UserError if a
    piece or language around the texts is unknown (affixes.py).

    `notes` receives what the vocabularies lack or rewrite (`text_notes`)."""
    tokenizers = source_tokenizer, target_tokenizer
    affixes = affixes_of(config, tokenizers)
    limits = text_limits(config, affixes)
    dropped: dict[str, list[int]] = {}
    ranges: list[tuple[Ragged, Ragged, np.ndarray]] = []
    total = len(texts.source)
    for start in range(0, total, ENCODE_AT_ONCE):
        indices = range(start, min(start + ENCODE_AT_ONCE, total))
        encoded, misfits = _encode_range(texts, indices, tokenizers, config, affixes, limits)
        ranges.append(encoded)
        for reason, index in misfits.items():
            dropped.setdefault(reason, []).extend(index)
        if notes is not None:
            notes |= merged_notes(notes, text_notes(texts, encoded, tokenizers, affixes))
    kept = np.concatenate([np.zeros(0, np.int64), *(indices for _, _, indices in ranges)])
    loss_weights = None
    if texts.loss_weights is not None:
        loss_weights = np.array(texts.loss_weights, np.float32)[kept]
    source = concatenate_sequences([source for source, _, _ in ranges])
    target = concatenate_sequences([target for _, target, _ in ranges])
    return Pairs(source, target, loss_weights), kept, dropped


def text_limits(config: DataConfig, affixes: Affixes) -> tuple[int, int]:
    """The largest numbers of tokens of a source and of a target, without the end token and what
    else is around them. UserError(CONFIGURATION) if there is no room for a token."""
    limits = []
    for side, around in (
        ("source", affixes.source_tokens),
        ("target", len(affixes.target_begin)),
    ):
        length = getattr(config, f"{side}_length")
        if length < around + 2:
            raise UserError(
                CONFIGURATION,
                f"data.{side}_length must be at least {around + 2}: a token of the text, the end "
                f"token and {around} tokens around each {side}, got {length}",
            )
        limits.append(length - 1 - around)
    return limits[0], limits[1]


def check_pairs_left(names: Sequence[str], kept: int, dropped: dict[str, int]) -> None:
    """UserError(DATA) with the numbers of dropped pairs by reason if no pair was kept.

    `names` are the files or data sets of the corpus.
    """
    if not kept:
        advice = ""
        if any("longer than" in reason or "ratio" in reason for reason in dropped):
            advice = "; see config.data.source_length, target_length, max_length_ratio"
        raise UserError(DATA, none_left(", ".join(dict.fromkeys(names)), dropped) + advice)


def _encode_range(
    texts: PairTexts,
    indices: range,
    tokenizers: tuple[Tokenizer, Tokenizer],
    config: DataConfig,
    affixes: Affixes,
    limits: tuple[int, int],
) -> tuple[tuple[Ragged, Ragged, Int64[np.ndarray, " P"]], dict[str, list[int]]]:
    """Source and target of the pairs `indices` that fit, with their indices, and the indices of the
    others by reason."""
    dropped: dict[str, list[int]] = {}
    candidates = []
    for i in indices:
        if reason := _too_many_characters(len(texts.source[i]), len(texts.target[i]), limits):
            dropped.setdefault(reason, []).append(i)
        else:
            candidates.append(i)
    sources = tokenizers[0].encode_many([texts.source[i] for i in candidates])
    targets = tokenizers[1].encode_many([texts.target[i] for i in candidates])
    fitting = []  # indices into `candidates`
    for at, (i, source, target) in enumerate(zip(candidates, sources, targets, strict=True)):
        if reason := _misfit(len(source), len(target), limits, config.max_length_ratio):
            dropped.setdefault(reason, []).append(i)
        else:
            fitting.append(at)
    begin, end = affixes.source_begin, affixes.source_end
    encoded = (
        ragged([[*begin, *sources[at], *end] for at in fitting]),
        ragged([[*affixes.target_begin, *targets[at]] for at in fitting]),
        np.array([candidates[at] for at in fitting], np.int64),
    )
    return encoded, dropped


def _too_many_characters(source: int, target: int, limits: tuple[int, int]) -> str | None:
    """The reason to drop texts of these numbers of characters before tokenizing, or None."""
    for side, length, limit in zip(("source", "target"), (source, target), limits, strict=True):
        if length > MAX_CHARACTERS_PER_TOKEN * limit:
            return f"{side} longer than {MAX_CHARACTERS_PER_TOKEN * limit:,} characters"
    return None


def _misfit(source: int, target: int, limits: tuple[int, int], max_ratio: float) -> str | None:
    """The reason to drop a pair of these numbers of tokens, or None."""
    if source > limits[0]:
        return f"source longer than {limits[0]} tokens"
    if target > limits[1]:
        return f"target longer than {limits[1]} tokens"
    if not source or not target:
        return "empty after tokenizing"
    if max_ratio and max(source, target) > max_ratio * min(source, target):
        return f"length ratio above {max_ratio:g}"
    return None


class Vocabulary(NamedTuple):
    """A tokenizer as it is sent to another process."""

    kind: str
    serialized: bytes

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Vocabulary":
        """The kind and the content of a tokenizer."""
        return cls(tokenizer.kind, tokenizer.serialized())


class EncodedBlock(NamedTuple):
    """The pairs of a block that are kept, and the numbers of their lines."""

    pairs: Pairs
    numbers: Int64[np.ndarray, " P"]
    counts: Counts


def encode_block(
    part: MixturePart,
    names: tuple[str, str],
    config: DataConfig,
    vocabularies: tuple[Vocabulary, Vocabulary],
    block: Block | CollectedBlock,
) -> EncodedBlock:
    """The token ids of the pairs of a block that fit into a row.

    `names` are the files or data sets of source and target.
    """
    if isinstance(block, Block):
        block = collect_block(part, config, "train", block)
    source, target = map(_tokenizer, vocabularies)
    notes: dict[str, Note] = {}
    pairs, kept, dropped = encode_pairs(block, source, target, config, notes)
    counts = dropped_counts(dropped, lambda i: f"{names[0]}:{block.numbers[i]}")
    counts = counts._replace(notes=notes)
    numbers = np.array(block.numbers, np.int64)[kept]
    weights = () if pairs.loss_weights is None else pairs.loss_weights.tolist()
    of_block = block.counts._replace(loss_weights=value_range(weights))  # of the pairs that fit
    return EncodedBlock(pairs, numbers, of_block.merged(counts))


def dropped_counts(dropped: dict[str, list[int]], where: Callable[[int], str]) -> Counts:
    """The change of the counts by the pairs that `encode_pairs` has dropped; `where(i)` is the
    place of pair i."""
    return Counts(
        -sum(map(len, dropped.values())),
        {reason: len(index) for reason, index in dropped.items()},
        {reason: [where(i) for i in index[:EXAMPLES]] for reason, index in dropped.items()},
    )


@lru_cache(maxsize=4)
def _tokenizer(vocabulary: Vocabulary) -> Tokenizer:
    return make_tokenizer(*vocabulary)


def encoded_blocks(
    reader: PartReader,
    config: DataConfig,
    tokenizers: tuple[Tokenizer, Tokenizer],
    workers: Workers | None,
    skip: int,
    log: Log,
) -> Iterator[EncodedBlock]:
    """The encoded blocks of a part in order, without the first `skip`.

    `workers` encode several blocks at the same time; None: this process encodes them.
    """
    vocabularies = Vocabulary.of(tokenizers[0]), Vocabulary.of(tokenizers[1])
    # Duplicates depend on the blocks before, so this process collects the text if they are dropped.
    blocks: Iterator[Block | CollectedBlock]
    blocks = reader.collected(log) if reader.drops_duplicates else reader.blocks(log)
    waiting: deque[Future[EncodedBlock]] = deque()
    for number, block in enumerate(blocks):
        if number < skip:
            continue
        task: tuple[Any, ...] = reader.part, reader.names, config, vocabularies, block
        if workers is None:
            yield encode_block(*task)
            continue
        waiting.append(workers.submit(encode_block, *task))
        if len(waiting) >= AHEAD * workers.count:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
