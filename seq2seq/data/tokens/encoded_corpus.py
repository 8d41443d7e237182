"""From the parts of the training corpus to their token ids, in memory or in the corpus cache."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial, reduce
from pathlib import Path
from typing import Any

from seq2seq.config.data_config import DataConfig
from seq2seq.data.corpora.blocks import BLOCK_BYTES, BLOCK_LINES
from seq2seq.data.corpora.counts import Counts
from seq2seq.data.corpora.part_reader import LARGE, PartReader
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.data.tokenizers.vocabulary import tokenizer_sha256
from seq2seq.data.tokens.affixes import affixes_of
from seq2seq.data.tokens.corpus_cache import CorpusCache
from seq2seq.data.tokens.encoding import EncodedBlock, check_pairs_left, encoded_blocks
from seq2seq.data.tokens.store_writer import StoreWriter
from seq2seq.data.tokens.token_store import TokenStore, memory_store
from seq2seq.data.tokens.training_pairs import EncodedPart, Part, TrainingPairs
from seq2seq.runtime.devices import usable_cores
from seq2seq.runtime.errors import CONFIGURATION, INTERNAL, UserError
from seq2seq.runtime.logs import Log, throttled
from seq2seq.runtime.workers import Workers

VERSION = 1  # of the token ids: a change of reading or encoding raises it

Tokenizers = tuple[Tokenizer, Tokenizer]


def encode_parts(
    readers: Sequence[PartReader],
    config: DataConfig,
    tokenizers: Tokenizers,
    cache: CorpusCache | None,
    log: Log,
) -> TrainingPairs:
    """The token ids of all parts. `log` receives progress every few seconds, and events.

    UserError(DATA) if a part has invalid lines or no pair is left, UserError(CONFIGURATION) if an
    epoch would take no pair of a part, UserError(OUTPUT) if the cache cannot be written,
    UserError(INTERNAL) if a worker is lost or cannot be started.
    """
    return TrainingPairs(
        [encode_part(reader, config, tokenizers, cache, log) for reader in readers]
    )


def encode_part(
    reader: PartReader,
    config: DataConfig,
    tokenizers: Tokenizers,
    cache: CorpusCache | None,
    log: Log,
) -> EncodedPart:
    """The token ids of one part.

    UserError(DATA) if it has invalid lines or no pair is left, UserError(CONFIGURATION) if an epoch
    would take no pair, UserError(OUTPUT) if the cache cannot be written, UserError(INTERNAL) if a
    worker is lost or cannot be started.
    """
    key = store_key(reader, config, tokenizers)
    entry: tuple[TokenStore, dict[str, Any]] | None = None
    if cache and key:
        if entry := cache.find(key):
            log(f"{reader.title}: {len(entry[0]):,} pairs from the corpus cache {cache.directory}")
        elif reader.num_bytes >= cache.smallest:
            write = partial(_write, reader, config, tokenizers, key, log)
            entry = cache.find_or_write(key, write, log)
    if entry:
        store, facts = entry
        counts, hashes = _from_facts(reader, facts)
    else:
        blocks = list(_encoded(reader, config, tokenizers, 0, log))
        counts, hashes = _checked_counts(reader, [block.counts for block in blocks]), reader.hashes
        store = memory_store([block.pairs for block in blocks], [block.numbers for block in blocks])
    _check_weight(reader, len(store))
    return EncodedPart(reader.names, reader.weight, store, counts, hashes)


def store_key(
    reader: PartReader, config: DataConfig, tokenizers: Tokenizers
) -> dict[str, Any] | None:
    """What determines the token ids of a part, as JSON; None if they cannot be cached."""
    text, around = reader.identity(), affixes_of(config, tokenizers)[:3]
    return text and {
        "version": VERSION,
        "blocks": [BLOCK_LINES, BLOCK_BYTES],  # an interrupted entry continues after whole blocks
        "text": text,
        "vocabularies": [tokenizer_sha256(tokenizer) for tokenizer in tokenizers],
        "lengths": [config.source_length, config.target_length],
        "max_length_ratio": config.max_length_ratio,
        **({"affixes": around} if any(around) else {}),
    }


def _write(
    reader: PartReader,
    config: DataConfig,
    tokenizers: Tokenizers,
    key: dict[str, Any],
    log: Log,
    directory: Path,
) -> None:
    """Write an entry of the corpus cache, or the rest of one that was interrupted."""
    started = time.perf_counter()
    largest = max(tokenizer.size for tokenizer in tokenizers) - 1
    writer = StoreWriter(directory, key, largest)
    counts = [Counts.from_json(facts) for facts in writer.appended]
    if counts:
        done = sum(of_append.kept for of_append in counts)
        log(f"{reader.title}: continues after {done:,} pairs in {directory}")
    is_valid = True
    for block in _encoded(reader, config, tokenizers, len(counts), log):
        is_valid = is_valid and not block.counts.invalid
        if is_valid:  # the invalid lines of a stored block would not be reported after a kill
            writer.append(block.pairs, block.numbers, block.counts.to_json())
        counts.append(block.counts)
    total = _checked_counts(reader, counts)
    reader.check_unchanged()
    hashes = [reader.hashes[name] for name in reader.names]
    writer.finish({"counts": total.to_json(), "names": reader.names, "hashes": hashes})
    seconds = time.perf_counter() - started
    log(f"{reader.title}: {total.kept:,} pairs in {directory} after {seconds:.0f} s")


def _from_facts(reader: PartReader, facts: dict[str, Any]) -> tuple[Counts, dict[str, str]]:
    """Counts and hashes of an entry, with the paths of `reader`: those of the run that wrote the
    entry may be relative to another directory."""
    names = dict(zip(facts["names"], reader.names, strict=True))

    def renamed(place: str) -> str:
        name, _, number = place.rpartition(":")
        return f"{names.get(name, name)}:{number}"

    counts = Counts.from_json(facts["counts"])
    examples = {reason: list(map(renamed, places)) for reason, places in counts.examples.items()}
    hashes = dict(zip(reader.names, facts["hashes"], strict=True))
    return counts._replace(examples=examples), hashes


def _encoded(
    reader: PartReader, config: DataConfig, tokenizers: Tokenizers, skip: int, log: Log
) -> Iterator[EncodedBlock]:
    """`encoded_blocks` with a worker for each core if the corpus is large; logs the throughput."""
    log = throttled(log)
    with ExitStack() as stack:
        workers = None
        if reader.num_bytes > LARGE:
            workers = stack.enter_context(Workers(usable_cores()))
        started, kept = time.perf_counter(), 0
        try:
            for block in encoded_blocks(reader, config, tokenizers, workers, skip, log):
                yield block
                kept += block.counts.kept
                rate = kept / (time.perf_counter() - started)
                log(f"{reader.title}: {kept:,} pairs tokenized, {rate:,.0f} pairs/s")
        except OSError as error:  # not of the cache; for example, no process can be started
            raise UserError(
                INTERNAL, f"{reader.title} cannot be tokenized: {error}; run the same command again"
            ) from error


def _checked_counts(reader: PartReader, counts: Sequence[Counts]) -> Counts:
    """The sum of the counts of all blocks. UserError(DATA) for invalid lines or if no pair is
    left."""
    total = reduce(Counts.merged, counts, Counts())
    if not total.invalid:
        check_pairs_left(reader.names, total.kept, total.dropped)
    total.check(reader.names)
    return total


def _check_weight(reader: PartReader, count: int) -> None:
    """UserError(CONFIGURATION) if the first epoch takes no pair of a part."""
    part = Part(count, reader.weight)
    if not part.taken_before(1):
        raise UserError(
            CONFIGURATION,
            f"{reader.title}: a weight of {part.weight:g} takes none of {count} pairs in an epoch; "
            "raise it",
        )
