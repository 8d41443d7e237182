"""Pairs of a source and a given target as token ids, with what a search would add to them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from seq2seq.config.tree import DecodingConfig
from seq2seq.data.tokenizers.characters import characters_of
from seq2seq.data.tokenizers.tokenizer import Tokenizer, encode_truncated
from seq2seq.data.tokens.affixes import Affixes
from seq2seq.decoding.engine.engine import Engine
from seq2seq.decoding.results import Item, source_text, stripped

AffixesOfLine = Callable[[int, Item], Affixes]


def without_affixes(number: int, item: Item) -> Affixes:
    """No tokens around the texts of a line."""
    return Affixes()


class EncodedPair(NamedTuple):
    """Token ids of both sides, truncated, with end tokens."""

    source: list[int]
    target: list[int]
    cut: int  # tokens truncated from the longer side
    forced: int = 0  # first tokens of the target, which cost nothing
    forced_end: bool = False  # the end token is at the limit of a search and costs nothing
    after: int = 0  # tokens of the source after its end token
    unknown: tuple[str, ...] = ()  # characters of the texts that the vocabularies lack

    @property
    def length(self) -> int:
        """Tokens of the longer side."""
        return max(len(self.source), len(self.target))


class EncodedPairs:
    """Makes the pairs for the models and options of an engine."""

    def __init__(
        self,
        engine: Engine,
        decoding: DecodingConfig,
        tokenizers: tuple[Tokenizer, Tokenizer],
        affixes_of_line: AffixesOfLine,
    ):
        self._engine, self._decoding, self._tokenizers = engine, decoding, tokenizers
        self._affixes_of_line = affixes_of_line

    def of_ids(
        self,
        source: Sequence[int],
        target: Sequence[int],
        forced: int = 0,
        prefix: int = 0,
        after: Sequence[int] = (),
    ) -> EncodedPair:
        """The pair of these token ids without end tokens, truncated to the longest bucket.

        The target begins with `forced` tokens that cost nothing and `prefix` others to which the
        search was restricted. The ids `after` follow the end token of the source."""
        end, room = self._engine.models[0].config.end_id, self._room
        cut = max(0, len(source) + len(after) - room, len(target) - room)
        source = [*source[: room - len(after)], end, *after]
        target = [*target[:room], end]
        ends_free = self._decoding.forced_end and len(target) == self._engine.limit(
            len(source), forced + prefix
        )
        return EncodedPair(source, target, cut, forced, ends_free, len(after))

    def of_texts(
        self, number: int, item: Item, source: list[int], target: list[int]
    ) -> EncodedPair:
        """The pair of the ids of the texts of line `number`, with the tokens around them. A blank
        source has none."""
        affixes = self._affixes_of_line(number, item) if source or target else Affixes()
        forced = (*affixes.target_begin, *self._engine.forced)
        after: tuple[int, ...] = ()
        if source:
            source, after = [*affixes.source_begin, *source], affixes.source_end
        return self.of_ids(source, self._with_forced(forced, target), len(forced), after=after)

    def _with_forced(self, forced: tuple[int, ...], target: list[int]) -> list[int]:
        """The ids of a given target with those before them with which every translation begins. A
        target that begins with the text of these pieces has it once."""
        if not forced:
            return target
        tokenizer = self._tokenizers[1]
        text = tokenizer.encode(tokenizer.decode(forced))  # special tokens are no text
        rest = target[len(text) :] if target[: len(text)] == text else target
        return [*forced, *rest]

    @property
    def _room(self) -> int:
        """The most tokens of a side without its end token."""
        return self._engine.buckets[-1] - 1

    def of_lines(self, lines: Sequence[tuple[int, Item]]) -> list[EncodedPair | None]:
        """The pairs of these numbered lines and their targets; None if both sides are blank."""
        sources = [source_text(item, self._tokenizers[0]) for _, item in lines]
        targets = [stripped(item.target or "", self._tokenizers[1]) for _, item in lines]
        sides = map(encode_truncated, self._tokenizers, (sources, targets), (self._room,) * 2)
        lacks = [characters_of(tokenizer).unknown for tokenizer in self._tokenizers]
        pairs: list[EncodedPair | None] = []
        for i, ((number, item), *both) in enumerate(zip(lines, *sides, strict=True)):
            (source, source_cut), (target, target_cut) = both
            if source or target:
                pair = self.of_texts(number, item, source, target)
                unknown = [*lacks[0](sources[i], source), *lacks[1](targets[i], target)]
                cut = pair.cut + max(source_cut, target_cut)
                pairs.append(pair._replace(cut=cut, unknown=tuple(dict.fromkeys(unknown))))
            else:
                pairs.append(None)
        return pairs
