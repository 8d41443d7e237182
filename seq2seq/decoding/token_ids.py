"""Text as token ids: lines to translate and their prefixes."""

from collections.abc import Sequence

from seq2seq.config.data_config import DataConfig
from seq2seq.data.tokenizers.characters import characters_of
from seq2seq.data.tokenizers.tokenizer import Tokenizer, encode_truncated
from seq2seq.decoding.engine.engine import Engine
from seq2seq.decoding.languages import LineAffixes
from seq2seq.decoding.results import Item, Source, source_text
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError


def encoded_sources(
    engine: Engine,
    tokenizers: tuple[Tokenizer, Tokenizer],
    affixes_of_line: LineAffixes,
    window: Sequence[tuple[int, Item]],
) -> list[Source]:
    """The token ids of numbered lines, truncated to the longest bucket.

    UserError(DATA) for a prefix that leaves no room for the end token or has an unknown one, and
    for a language that is missing or unknown.
    """
    unknown_id = engine.models[0].config.unknown_id
    texts = [source_text(item, tokenizers[0]) for _, item in window]
    room, characters = engine.buckets[-1] - 1, characters_of(tokenizers[0])
    encoded, sources = encode_truncated(tokenizers[0], texts, room), []
    for (number, item), text, (ids, cut) in zip(window, texts, encoded, strict=True):
        if not ids:
            sources.append(Source(number, ids, replaced=item.replaced))
            continue
        unknown = characters.unknown(text, ids)
        prefix = prefix_ids(tokenizers[1], number, item.prefix, unknown_id) if item.prefix else []
        affixes = affixes_of_line(number, item)
        text_room = room - affixes.source_tokens
        cut += max(0, len(ids) - text_room)
        ids = [*affixes.source_begin, *ids[:text_room]]
        forced = (*affixes.target_begin, *engine.forced)
        around = forced, affixes.source_end
        source = Source(number, ids, prefix, cut, *around, unknown, item.replaced)
        limit = engine.max_prefix_length(source.length) - len(forced) if prefix else 0
        if len(prefix) > limit:
            raise UserError(
                DATA,
                f"line {number + 1}: its prefix has {len(prefix)} tokens, "
                f"expected at most {limit}; shorten it, or raise "
                "--max_extra_length or --max_length",
            )
        sources.append(source)
    return sources


def prefix_ids(tokenizer: Tokenizer, number: int, prefix: str, unknown_id: int) -> list[int]:
    """The token ids of the prefix of line `number`. UserError(DATA) if one is the unknown id."""
    ids = tokenizer.encode(prefix)
    if unknown_id in ids:
        unknown = (word for word in prefix.split() if unknown_id in tokenizer.encode(word))
        raise UserError(
            DATA,
            f"line {number + 1}: its prefix is not in the target vocabulary: expected known "
            f"words and characters, got {next(unknown, prefix)!r}; change the prefix",
        )
    return ids


def check_affixes(engine: Engine, data: DataConfig) -> None:
    """UserError(CONFIGURATION) unless every source leaves room for the tokens around its text, and
    for those with which its translation must begin."""
    around = len(data.source_begin.split()) + len(data.source_end.split())
    if around > engine.buckets[-1] - 2:
        raise UserError(
            CONFIGURATION,
            f"data.source_begin and data.source_end have {around} tokens: expected at most "
            f"{engine.buckets[-1] - 2}, which leave room for a text; shorten them",
        )
    number, most = len(data.target_begin.split()) + len(engine.forced), engine.max_prefix_length(1)
    if number > most:
        name = "decoding.forced_prefix" if engine.forced else "data.target_begin"
        raise UserError(
            CONFIGURATION,
            f"{name} has {number} tokens: expected at most {most}, which leave "
            "room for the end token; shorten it, or raise --max_extra_length or --max_length",
        )
