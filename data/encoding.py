"""From blocks of raw lines to token ids, block by block, in this process or in spawned ones."""

from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from data.blocks import Block
from data.config import DataConfig
from data.corpus import CollectedBlock
from data.corpus_kinds import MixturePart
from data.counts import EXAMPLES, Counts
from data.pairs import Pairs, encode_pairs
from data.part_reader import PartReader, collect_block
from data.tokenizer import Tokenizer
from data.vocabulary import make_tokenizer
from runtime.notices import Log
from runtime.workers import Workers

AHEAD = 2  # blocks in work or done for each worker


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
    numbers: np.ndarray  # int64
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
    pairs, kept, dropped = encode_pairs(block, *map(_tokenizer, vocabularies), config)
    counts = dropped_counts(dropped, lambda i: f"{names[0]}:{block.numbers[i]}")
    numbers = np.array(block.numbers, np.int64)[kept]
    return EncodedBlock(pairs, numbers, block.counts.merged(counts))


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
    vocabularies = tuple(map(Vocabulary.of, tokenizers))
    # Duplicates depend on the blocks before, so this process collects the text if they are dropped.
    blocks: Iterator[Block | CollectedBlock]
    blocks = reader.collected(log) if reader.drops_duplicates else reader.blocks(log)
    waiting: deque = deque()
    for number, block in enumerate(blocks):
        if number < skip:
            continue
        task = reader.part, reader.names, config, vocabularies, block
        if workers is None:
            yield encode_block(*task)
            continue
        waiting.append(workers.submit(encode_block, *task))
        if len(waiting) >= AHEAD * workers.count:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
