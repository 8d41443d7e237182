"""The grammar's own alignment of a Korean sentence and its English translation.

A word of the meaning is replaced by a marker. Both sentences are generated again; the places of the
marker on the two sides are aligned.
"""

from collections.abc import Iterator
from typing import Any

from seq2seq.data.korean.english import english
from seq2seq.data.korean.grammar import Sentence, korean
from seq2seq.data.korean.lexicon import Adjective, Adverb, Noun, Pronoun, Verb
from seq2seq.data.korean.predicates import BE, BE_AT, HAVE, THERE
from seq2seq.scripts.experiments.korean_model import spaced

KO, EN = "뷁", "zzmark"  # in no word of the grammar


def aligned_words(sentence: Sentence) -> tuple[str, str, set[tuple[int, int]]]:
    """The two sentences with spaces between their tokens, and pairs of aligned token indices.

    A word has no pair if the sentence without it has another number of tokens, or if the marker is
    not in exactly one token of each side.
    """
    texts = spaced(korean(sentence)), spaced(english(sentence))
    links = set()
    for other in marked(sentence):
        tokens = [spaced(korean(other)).split(), spaced(english(other)).split()]
        places = [
            [i for i, token in enumerate(side) if mark in token.lower()]
            for side, mark in zip(tokens, (KO, EN), strict=True)
        ]
        same = all(len(a) == len(b.split()) for a, b in zip(tokens, texts, strict=True))
        if same and all(len(numbers) == 1 for numbers in places):
            links.add((places[0][0], places[1][0]))
    return *texts, links


def marked(node: Any) -> Iterator[Any]:
    """Copies of a part of a meaning in which one word is replaced by the marker."""
    if isinstance(node, (Noun, Pronoun, Verb, Adjective, Adverb)):
        if node not in (BE, BE_AT, HAVE, THERE):  # they have forms of their own
            yield marked_word(node)
    elif isinstance(node, tuple):
        for place, child in enumerate(node):
            for other in marked(child):
                parts = [*node[:place], other, *node[place + 1 :]]
                yield type(node)(*parts) if hasattr(node, "_fields") else tuple(parts)


def marked_word(word: Any) -> Any:
    """The word with the marker in place of its Korean and English forms."""
    if isinstance(word, Noun):
        return word._replace(ko=KO, en=EN, plural=EN if word.plural else "")
    if isinstance(word, Pronoun):
        return word._replace(ko=KO, polite=KO, en=EN, accusative=EN, possessive=EN)
    if isinstance(word, Verb):
        return word._replace(ko=f"{KO}다", irregular="", en=EN, past=EN, negative="")
    if isinstance(word, Adjective):
        return word._replace(ko=f"{KO}다", irregular="", en=EN, comparative=EN)
    return word._replace(ko=KO, en=EN)
