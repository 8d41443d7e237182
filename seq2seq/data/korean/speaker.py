"""A `Speaker` samples the parts of sentences: phrases, clauses, and variants of a clause.

The sentences are unambiguous: a sentence has at most one relative clause, and no argument before
it could be read as part of it.
"""

from collections.abc import Sequence
from random import Random
from typing import TypeGuard, TypeVar

from seq2seq.data.korean.grammar import Argument, Clause, Phrase, Sentence, allows_short_negation
from seq2seq.data.korean.lexicon import (
    CITIES,
    NAMES,
    NOUNS,
    PRONOUNS,
    STUDIES,
    YOU,
    Adjective,
    Adverb,
    Noun,
    Pronoun,
    Verb,
)
from seq2seq.data.korean.predicates import (
    ADJECTIVES,
    CLOCK,
    DATIVE,
    DAYS,
    FREQUENCIES,
    INTRANSITIVE,
    MANNERS,
    MOTION,
    NOW,
    PARTS,
    TODAY,
    TOMORROW,
    TRANSITIVE,
    WEATHER,
    YESTERDAY,
)

ALL = (*NOUNS, *NAMES, *CITIES, *STUDIES)
NOUN = {noun.ko: noun for noun in ALL}


def nouns(*kinds: str) -> list[Noun]:
    """The nouns of the given kinds; a kind may also be a single noun."""
    return [noun for kind in kinds for noun in ALL if kind in (noun.kind, noun.ko)]


OBJECTS = {verb: nouns(*verb.takes) for verb in (*TRANSITIVE, *DATIVE, *MOTION)}
VERBS_TAKING = {noun: [verb for verb in TRANSITIVE if noun in OBJECTS[verb]] for noun in ALL}
DESCRIBED = {adjective: nouns(*adjective.describes) for adjective in ADJECTIVES}
DESCRIBERS = {noun: [a for a in ADJECTIVES if noun in DESCRIBED[a]] for noun in ALL}
PEERS = {noun: [peer for peer in nouns(noun.kind) if peer != noun] for noun in ALL}
ACTORS, RELATIVES = nouns("person", "animal"), nouns("relative")
OWNED = {*nouns("animal", "food", "drink", "text", "art", "thing", "clothes", "vehicle", "집")}
HUMAN = ("pronoun", "name", "person", "relative")
UNMODIFIED = ("name", "city", "study", "relative", "weather")
POLITE_PRONOUNS = [pronoun for pronoun in PRONOUNS if pronoun is not YOU]  # 너 is plain style only

Option = TypeVar("Option")


class Speaker:
    """A seeded sampler; `style` is the speech level of the current sentence."""

    def __init__(self, seed: int):
        self.draw = Random(seed).random
        self.style = "plain"

    def chance(self, probability: float) -> bool:
        return self.draw() < probability

    def pick(self, options: Sequence[Option]) -> Option:
        return options[int(self.draw() * len(options))]

    def number(self) -> int:
        """One to ten; small numbers are more frequent."""
        return 1 + int(self.draw() ** 1.5 * 10)

    # Phrases

    def pronoun(self) -> Pronoun:
        return self.pick(PRONOUNS if self.style == "plain" else POLITE_PRONOUNS)

    def owner(self) -> Noun | Pronoun:
        return self.pronoun() if self.chance(0.6) else self.pick(NAMES)

    def actor(self, *others: Phrase) -> Phrase:
        """A person or animal that is none of the others."""
        noun: Noun | Pronoun
        while True:
            u = self.draw()
            if u < 0.3:
                noun = self.pick(NAMES)
            elif u < 0.6:
                noun = self.pronoun()
            else:
                noun = self.pick(ACTORS if u < 0.92 else RELATIVES)
            if all(noun != other.noun for other in others):
                return self.bare(noun)

    def bare(self, noun: Noun | Pronoun) -> Phrase:
        """The noun without modifiers; a relative has an owner."""
        return Phrase(noun, owner=self.owner() if noun.kind == "relative" else None)

    def described(self, noun: Noun) -> Phrase:
        """The noun, optionally with an adjective."""
        describers = DESCRIBERS.get(noun)
        adjective = self.pick(describers) if describers and self.chance(0.2) else None
        return self.bare(noun)._replace(adjective=adjective)

    def modified(self, noun: Noun | Pronoun) -> Phrase:
        """The noun, optionally with an adjective and an owner or demonstrative."""
        if not is_modifiable(noun):
            return self.bare(noun)
        phrase, u = self.described(noun), self.draw()
        if u < 0.08:
            return phrase._replace(pointer=self.pick("이그"))
        if u < 0.16 and noun in OWNED:
            return phrase._replace(owner=self.owner())
        return phrase

    def phrase(self, noun: Noun | Pronoun, subject: Phrase | None = None) -> Phrase:
        """The noun with any modifiers; `subject` is that of the same sentence."""
        if not is_modifiable(noun) or self.chance(0.5):
            return self.modified(noun)
        u = self.draw()
        if u < 0.32 and not (subject and subject.relative):
            return self.described(noun)._replace(relative=self.relative(noun))
        if u < 0.6 and noun.counter:
            return self.described(noun)._replace(number=self.number())
        if u < 0.75 and noun.kind in ("person", "animal"):
            return self.modified(noun)._replace(plural=True)
        if u < 0.92:
            return Phrase(noun, partner=self.pick(PEERS[noun]))
        return self.modified(noun)

    def subject(self) -> Phrase:
        actor = self.actor()
        return self.phrase(actor.noun) if is_modifiable(actor.noun) else actor

    def relative(self, noun: Noun) -> Clause | None:
        """A clause with a gap for the noun, None if no verb fits: 내가 만난, 빵을 먹는."""
        tense = self.pick(("past", "past", "present", "future"))
        arguments: tuple[Argument, ...]
        animate, verbs = noun.kind in ("person", "animal"), VERBS_TAKING[noun]
        if animate and self.chance(0.65):
            verb = self.pick(INTRANSITIVE if self.chance(0.3) else TRANSITIVE)
            objects = [candidate for candidate in OBJECTS.get(verb, ()) if candidate != noun]
            arguments = (("object", self.bare(self.pick(objects))),) if objects else ()
        elif verbs:
            verb = self.pick(verbs)
            arguments = (("subject", self.actor(Phrase(noun))),)
            if tense != "present" and self.chance(0.15) and not verb.state:
                arguments += (("day", self.pick(DAYS[tense])),)
        else:
            return None
        now = tense == "present" and not verb.state and self.chance(0.4)
        negative = "long" if self.chance(0.1) else ""
        return Clause(verb, arguments, tense, "progressive" if now else "", negative)

    # Clauses

    def clause(self, verb: Verb | Adjective, *arguments: tuple[str, Phrase]) -> Clause:
        """Samples tense, mode, negation and adverbs. `arguments` have basic order, topic first."""
        tense = self.pick(("past", "past", "past", "present", "present", "future", "future"))
        active = isinstance(verb, Verb) and not verb.state
        human = bool(arguments) and arguments[0][1].noun.kind in HUMAN
        mode = negative = ""
        if active and verb not in WEATHER and self.chance(0.3):
            mode = self.pick(("progressive", "progressive", "ability", "desire", "duty"))
            if mode != "ability" and (tense == "future" or mode == "desire" and not human):
                mode = ""
        if mode != "duty" and self.chance(0.2):
            short = mode != "desire" and allows_short_negation(verb) and self.chance(0.5)
            negative = "short" if short else "long"
        # A relative clause directly follows the topic: an argument in between could be part of it.
        ordered = sorted(arguments, key=lambda item: item[0] != "topic" and 2 - is_complex(item[1]))
        clause = Clause(verb, tuple(ordered), tense, mode, negative)
        u = self.draw() * (2 if any(is_complex(argument) for _, argument in arguments) else 1)
        if not active or u > 0.45:
            return clause
        if human and mode == negative == "" and u < 0.1:
            return with_adverbs(clause, len(arguments), ("frequency", self.pick(FREQUENCIES)))
        accompanied = any(role == "companion" for role, _ in arguments)
        if arguments and not accompanied and u < 0.17:
            return with_adverbs(clause, len(arguments), ("manner", self.pick(MANNERS)))
        return with_adverbs(clause, int(self.chance(0.5)), *self.time_adverbs(tense, mode))

    def time_adverbs(self, tense: str, mode: str) -> list[tuple[str, Adverb]]:
        clock, part, u = ("clock", self.pick(CLOCK)), ("part", self.pick(PARTS)), self.draw()
        if mode == "progressive":
            return [("day", NOW)] if tense == "present" else [clock]
        if u < 0.5:
            return [("day", self.pick(DAYS[tense]))]
        if u < 0.8 or tense == "present":
            return [self.pick((clock, part))]
        return [("day", self.pick((TODAY, YESTERDAY if tense == "past" else TOMORROW))), clock]

    def sentence(self, clause: Clause) -> Sentence:
        """Samples a variant of a clause: question, focus, word order, 은 or 이."""
        question, u = self.chance(0.15), self.draw()
        arguments = list(clause.arguments)
        roles = [role for role, _ in arguments]
        simple = not any(is_complex(argument) for _, argument in arguments)
        plain = not (question or clause.negative or "frequency" in roles)
        place = roles.index("topic")
        subject = arguments[place][1]
        assert isinstance(subject, Phrase)  # adverbs have other roles
        focus = self.pick(("also", "only"))
        if (
            plain
            and u > 0.92
            and not subject.number
            and not subject.relative
            and not (subject.noun.ko == "그" and focus == "only")
        ):  # 그만 means "stop"
            arguments[place] = ("topic", subject._replace(focus=focus))
        elif simple and self.chance(0.35):
            arguments[place] = ("subject", subject)
        if simple and "object" in roles:
            place = roles.index("object")
            object_phrase = arguments[place][1]
            assert isinstance(object_phrase, Phrase)
            if u < 0.18:
                arguments.insert(0, arguments.pop(place))
            elif u < 0.6 and object_phrase.number:
                arguments[place] = ("object", object_phrase._replace(floating=True))
            elif plain and 0.85 < u < 0.92 and not object_phrase.number:
                arguments[place] = ("object", object_phrase._replace(focus=focus))
        return Sentence(clause._replace(arguments=tuple(arguments)), self.style, question)


def is_modifiable(noun: Noun | Pronoun) -> TypeGuard[Noun]:
    """Whether the noun can have an adjective, numeral, relative clause, owner or demonstrative."""
    return isinstance(noun, Noun) and noun.kind not in UNMODIFIED


def is_complex(argument: Phrase | Adverb) -> bool:
    return isinstance(argument, Phrase) and argument.relative is not None


def with_adverbs(clause: Clause, place: int, *adverbs: tuple[str, Adverb]) -> Clause:
    """Inserts adverbs into the arguments at `place`, but not directly before a relative clause."""
    arguments = list(clause.arguments)
    complex_ = [is_complex(argument) for _, argument in arguments]
    if place == 0 and complex_[:1] == [True]:
        place = 1
    elif place == 1 and any(complex_[1:]):
        place = 0
    arguments[place:place] = adverbs
    return clause._replace(arguments=tuple(arguments))
