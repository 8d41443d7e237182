"""The grammar of the built-in corpus: the meaning of a sentence and its realisation in Korean.

A `Sentence` has one or two clauses. A `Clause` has a predicate and its arguments with their roles,
in Korean order; any order is grammatical, because particles mark the roles. `korean` here and
`english` in english.py are pure functions of the meaning. Variants of the same meaning (word order,
speech level, 은 or 이) have the same English sentence.
"""

from typing import NamedTuple

from seq2seq.data.korean.lexicon import Adjective, Adverb, Noun, Pronoun, Verb
from seq2seq.data.korean.morphology import (
    Stem,
    adnominal,
    connective,
    finite_form,
    infinitive,
    particle,
    past_stem,
    with_linking_vowel,
)
from seq2seq.data.korean.predicates import BE

# Role → Korean particle. The English prepositions are in english.py.
PARTICLES = {
    "topic": "은/는",
    "subject": "이/가",
    "object": "을/를",
    "recipient": "에게",
    "goal": "에",
    "place": "에서",
    "location": "에",
    "source": "에서",
    "limit": "까지",
    "instrument": "으로/로",
    "vehicle": "으로/로",
    "companion": "과/와 함께",
    "than": "보다",
    "complement": "이/가",
    "existent": "이/가",
    "possessed": "이/가",
    **{
        role: f" {word}에"
        for role, word in (
            ("on", "위"),
            ("under", "아래"),
            ("beside", "옆"),
            ("front", "앞"),
            ("behind", "뒤"),
        )
    },
}
FOCUS = {"also": "도", "only": "만"}  # they replace 은, 이 and 을
FUSED = {"나가": "내가", "저가": "제가", "너가": "네가", "누구가": "누가"}
POSSESSIVES = {"나": "내", "저": "제", "너": "네", "우리": "우리"}
DIGITS = "_ 한 두 세 네 다섯 여섯 일곱 여덟 아홉 열".split()  # native numerals, used with counters
HOW_MANY = -1
LINKS = {"and": "고", "but": "지만", "because": "기 때문에", "if": "면", "when": "ㄹ 때"}

EXIST, LACK = Stem("있", "", True), Stem("없", "", True)
DO, NOT = Stem("하"), "않"


class Phrase(NamedTuple):
    noun: Noun | Pronoun
    adjective: Adjective | None = None
    owner: Noun | Pronoun | None = None
    pointer: str = ""  # 이 or 그
    number: int = 0  # 0: none, HOW_MANY: a question
    plural: bool = False  # 학생들
    relative: "Clause | None" = None  # the noun fills the gap of this clause
    partner: Noun | None = None  # 빵과 사과
    focus: str = ""
    floating: bool = False  # floating quantifier: 사과를 세 개, not 사과 세 개를


Argument = tuple[str, Phrase | Adverb]  # a role and its phrase or adverb


class Clause(NamedTuple):
    predicate: Verb | Adjective
    arguments: tuple[Argument, ...] = ()
    tense: str = "past"  # past, present, future
    mode: str = ""  # progressive, desire, ability, duty
    negative: str = ""  # short (안, 못) or long (-지 않다)


class Sentence(NamedTuple):
    clause: Clause
    style: str = "plain"  # plain, polite, formal
    question: bool = False
    link: str = ""  # a key of LINKS, which relates `before` to `clause`
    before: Clause | None = None


def phrase_of(clause: Clause, *roles: str) -> Phrase | None:
    """The first phrase of a clause with one of these roles; None without one."""
    for role, argument in clause.arguments:
        if role in roles and isinstance(argument, Phrase):
            return argument
    return None


def subject_of(clause: Clause) -> Phrase | None:
    """The first topic or subject of a clause; None without one."""
    return phrase_of(clause, "topic", "subject")


def allows_short_negation(predicate: Verb | Adjective) -> bool:
    """Whether 안 can precede the predicate: short native ones, not 공부하다 or 아름답다."""
    if isinstance(predicate, Adjective):
        return len(predicate.ko) <= 3 and predicate.ko[-2] not in "하있"
    return predicate.ko in ("좋아하다", "싫어하다") or not (
        predicate.ko.endswith("하다") and len(predicate.ko) > 2
    )


def _name(noun: Noun | Pronoun, style: str) -> str:
    return noun.polite if isinstance(noun, Pronoun) and style != "plain" else noun.ko


def _phrase(phrase: Phrase, role: str, style: str) -> str:
    words = []
    if phrase.relative:
        words.append(_clause(phrase.relative, style, "adnominal"))
    if phrase.pointer:
        words.append(phrase.pointer)
    if phrase.owner:
        owner = _name(phrase.owner, style)
        words.append(POSSESSIVES.get(owner, owner + "의"))
    if phrase.adjective:
        words.append(adnominal(stem_of(phrase.adjective), "present"))
    noun = _name(phrase.noun, style) + ("들" if phrase.plural else "")
    if phrase.partner:
        words.append(noun + particle(noun, "과/와"))
        noun = phrase.partner.ko
    if phrase.number:
        assert isinstance(phrase.noun, Noun)  # a pronoun has no numeral
        number = "몇" if phrase.number == HOW_MANY else DIGITS[phrase.number]
        count = f"{number} {phrase.noun.counter}"
        if not phrase.floating:
            words.append(noun)
            noun = count
    forms, space, position = FOCUS.get(phrase.focus, PARTICLES[role]).partition(" ")
    noun += particle(noun, forms) + space + position
    words.append(FUSED.get(noun, noun))
    if phrase.number and phrase.floating:
        words.append(count)
    return " ".join(words)


def stem_of(predicate: Verb | Adjective) -> Stem:
    """The stem of a predicate, without a prefix word as in 비가 오다."""
    descriptive = isinstance(predicate, Adjective) or predicate.ko == "있다"
    return Stem(predicate.ko.rpartition(" ")[2][:-1], predicate.irregular, descriptive)


def _predicate(clause: Clause) -> tuple[list[str], Stem]:
    """The words before the last stem, and this stem, to which the ending is added."""
    verb, mode, negative = clause.predicate, clause.mode, clause.negative
    prefix = verb.ko.rpartition(" ")[0]
    words, stem = ([prefix] if prefix else []), stem_of(verb)
    if verb is BE:
        complement = phrase_of(clause, "complement")
        assert complement is not None  # 이다 always has one
        noun = _phrase(complement, "complement", "plain")
        if negative:
            words, stem, negative = [noun], Stem("아니", "아니", True), ""
        else:
            *words, noun = noun.split()
            stem = Stem(complement.noun.ko + "이", "이", True)
    elif negative and mode == "" and isinstance(verb, Verb) and verb.negative:
        stem = Stem(verb.negative[:-1], "르" if verb.negative == "모르다" else "", stem.descriptive)
        negative = ""
    if negative == "short":
        words.append("못" if mode == "ability" else "안")
    if mode == "ability" and negative != "short":
        words += [with_linking_vowel(stem, "ㄹ"), "수"]
        stem, negative = (LACK if negative else EXIST), ""
    elif mode == "progressive":
        words.append(stem.text + "고")
        stem = EXIST
    elif mode == "duty":
        words.append(infinitive(stem) + "야")
        stem = DO
    elif mode == "desire":
        words.append(stem.text + "고")
        stem = Stem("싶", "", True)
        subject = subject_of(clause)
        assert subject is not None  # a clause without subject has no mode desire
        if subject.noun.en not in ("I", "you", "we"):  # third person: 싶어 하다
            words.append("싶어")
            stem = DO
    if negative == "long":
        words.append(stem.text + "지")
        stem = Stem(NOT, "", stem.descriptive)
    return words, stem


def _clause(clause: Clause, style: str, ending: str, question: bool = False) -> str:
    """A clause with the ending "finite", "adnominal", or a key of LINKS."""
    words = [
        argument.ko if isinstance(argument, Adverb) else _phrase(argument, role, style)
        for role, argument in clause.arguments
        if role != "complement" or clause.predicate is not BE
    ]
    before, stem = _predicate(clause)
    words += before
    if ending == "adnominal":
        return " ".join([*words, adnominal(stem, clause.tense)])
    if clause.tense == "past":
        stem = past_stem(stem)
    elif clause.tense == "future":
        words.append(with_linking_vowel(stem, "ㄹ"))
        stem = Stem("것이", "이", True)
    if ending == "finite":
        return " ".join([*words, finite_form(stem, style, question)])
    return " ".join([*words, connective(stem, LINKS[ending])])


def korean(sentence: Sentence) -> str:
    """The Korean sentence with this meaning."""
    words = _clause(sentence.clause, sentence.style, "finite", sentence.question)
    if sentence.before:
        words = _clause(sentence.before, sentence.style, sentence.link) + " " + words
    return words + ("?" if sentence.question else ".")
