"""Realisation of a meaning in English: word order, articles, agreement, do-support.

The Korean sentence determines the English one. Count nouns are definite (*the apple*); nouns
with a numeral (*three apples*) and mass nouns (*rice*) have no article. Complements, possessed
and existing things are indefinite (*a dog*).
"""

from seq2seq.data.korean.grammar import HOW_MANY, Clause, Phrase, Sentence, phrase_of, subject_of
from seq2seq.data.korean.lexicon import (
    VOWELS,
    Adjective,
    Adverb,
    Noun,
    Pronoun,
    Verb,
    ing,
    plural,
    third_person,
)
from seq2seq.data.korean.predicates import BE, BE_AT, THERE

PREPOSITIONS = {
    "recipient": "to",
    "source": "from",
    "limit": "to",
    "instrument": "with",
    "vehicle": "by",
    "companion": "with",
    "than": "than",
    "on": "on",
    "under": "under",
    "beside": "next to",
    "front": "in front of",
    "behind": "behind",
}
# The order of the roles after the verb; it does not depend on the Korean order.
ORDER = (
    "existent",
    "possessed",
    "complement",
    "object",
    "recipient",
    "goal",
    "source",
    "limit",
    "than",
    "location",
    "on",
    "under",
    "beside",
    "front",
    "behind",
    "manner",
    "companion",
    "instrument",
    "vehicle",
    "place",
    "part",
    "clock",
    "day",
)
INDEFINITE = ("existent", "possessed", "complement")
POINTERS = {"이": ("this", "these"), "그": ("that", "those")}
DIGITS = "_ one two three four five six seven eight nine ten".split()
CHAIN_PASTS = {"want": "wanted", "have": "had"}  # of the verbs that _chain adds
BE_FORMS = {"I": ("am", "was"), "he": ("is", "was"), "they": ("are", "were")}


def _agreement(phrase: Phrase | None) -> str:
    """The agreement class of a subject: `I`, `he` or `they`."""
    if phrase is None:
        return "he"
    if phrase.noun.en in ("I", "you", "we", "they"):
        return "I" if phrase.noun.en == "I" else "they"
    many = phrase.plural or phrase.partner or phrase.number not in (0, 1)
    return "they" if many else "he"


def _possessive(owner: Noun | Pronoun) -> str:
    return owner.possessive if isinstance(owner, Pronoun) else owner.en + "'s"


def _determiner(phrase: Phrase, noun: Noun, following: str, indefinite: bool) -> str:
    if phrase.owner:
        return _possessive(phrase.owner)
    if phrase.pointer:
        return POINTERS[phrase.pointer][phrase.plural]
    if noun.kind in ("name", "city", "study", "question"):
        return ""
    if not noun.plural and not phrase.relative:
        return ""
    if indefinite:
        return "an" if following[0] in VOWELS else "a"
    return "the"


def _phrase(phrase: Phrase, role: str = "object") -> str:
    noun = phrase.noun
    if isinstance(noun, Pronoun):
        words = [noun.en if role in ("topic", "subject") else noun.accusative]
    else:
        many = phrase.plural or phrase.number not in (0, 1)
        words = [phrase.adjective.en] if phrase.adjective else []
        words.append(noun.plural if many and noun.plural else noun.en)
        if phrase.number:
            number = "how many" if phrase.number == HOW_MANY else DIGITS[phrase.number]
            if noun.measure:  # two glasses of water
                words = [plural(noun.measure) if many else noun.measure, "of", *words]
            words = [number, *words]
        elif role != "vehicle":
            words = [_determiner(phrase, noun, words[0], role in INDEFINITE), *words]
    if phrase.focus == "only":
        words = ["only", *words]
    if phrase.relative:
        words.append(_relative(phrase, phrase.relative))
    if phrase.partner:
        words += ["and", _phrase(Phrase(phrase.partner), role)]
    return " ".join(word for word in words if word)


def _relative(head: Phrase, clause: Clause) -> str:
    predicate, subject = clause.predicate, subject_of(clause)
    human = head.noun.kind in ("person", "relative")
    words = ["who" if human and not subject else "that"]
    if subject:
        words.append(_phrase(subject, "subject"))
    auxiliary, verb = _verb(clause, _agreement(subject or head), False)
    if subject and isinstance(predicate, Verb) and predicate.preposition:
        verb.append(predicate.preposition)  # the song that I listened to
    return " ".join([*words, *auxiliary, *verb, *_arguments(clause)])


def _chain(clause: Clause) -> list[str]:
    """The verbs of a clause in their base forms; the caller inflects the first one."""
    predicate, future = clause.predicate, clause.tense == "future"
    base, rest = predicate.en, []
    if isinstance(predicate, Adjective):
        compared = any(role == "than" for role, _ in clause.arguments)
        base, rest = "be", [predicate.comparative if compared else predicate.en]
    elif predicate in (BE, BE_AT, THERE):
        base = "be"
    chain = {
        "": [base],
        "progressive": ["be", ing(base)],
        "desire": ["want", "to", base],
        "ability": ["be", "able", "to", base] if future else ["can", base],
        "duty": ["have", "to", base],
    }[clause.mode]
    return [*(["will"] if future else []), *chain, *rest]


def _verb(clause: Clause, agreement: str, inverted: bool) -> tuple[list[str], list[str]]:
    """The auxiliary with `not`, and the other verbs; a question has its subject in between."""
    head, *rest = _chain(clause)
    is_past = clause.tense == "past"
    negation = ["not"] if clause.negative else []
    if head == "can" and negation and not is_past and not inverted:
        return ["cannot"], rest
    if head == "be":
        present, past = BE_FORMS[agreement]
        return [past if is_past else present, *negation], rest
    if head in ("can", "will"):
        return ["could" if head == "can" and is_past else head, *negation], rest
    if negation or inverted:
        do = "did" if is_past else "does" if agreement == "he" else "do"
        return [do, *negation], [head, *rest]
    if is_past and head in CHAIN_PASTS:
        head = CHAIN_PASTS[head]
    elif is_past:
        assert isinstance(clause.predicate, Verb)  # an adjective follows be
        head = clause.predicate.past
    elif agreement == "he":
        head = third_person(head)
    return [], [head, *rest]


def _argument(clause: Clause, role: str, argument: Phrase | Adverb) -> str:
    if isinstance(argument, Adverb):
        return argument.en
    if role in ("object", "goal"):
        assert isinstance(clause.predicate, Verb)  # an adjective has no object
        preposition = clause.predicate.preposition
    elif role in ("place", "location"):
        assert isinstance(argument.noun, Noun)  # a pronoun is not a place
        preposition = argument.noun.preposition
    else:
        preposition = PREPOSITIONS.get(role, "")
    if argument.noun.en == "where":
        preposition = ""
    return (preposition + " " + _phrase(argument, role)).strip()


def _arguments(clause: Clause, fronted: str = "") -> list[str]:
    """All arguments except the subject, in English order; a fronted one strands its preposition."""
    roles = dict(clause.arguments)
    arguments = []
    for role in ORDER:
        if role in roles:
            argument = roles[role]
            text = _argument(clause, role, argument)
            if role == fronted and isinstance(argument, Phrase):
                text = text.removesuffix(_phrase(argument, role)).strip()
            arguments.append(text)
    return [text for text in arguments if text]


def _asked(clause: Clause) -> str:
    """The role of the question word (누구, 몇 개, 언제), "" if there is none."""
    for role, argument in clause.arguments:
        if role == "question":
            return role
        if isinstance(argument, Phrase) and (
            argument.noun.kind == "question" or argument.number == HOW_MANY
        ):
            return role
    return ""


def _clause(clause: Clause, question: bool = False) -> str:
    roles = dict(clause.arguments)
    subject, existent = subject_of(clause), phrase_of(clause, "existent")
    asked = _asked(clause)
    inverted = question and asked not in ("topic", "subject")
    agreement = _agreement(existent or subject)
    auxiliary, verb = _verb(clause, agreement, inverted)
    name = "there" if existent else _phrase(subject, "subject") if subject else "it"
    frequency = roles.get("frequency")
    middle = [frequency.en] if isinstance(frequency, Adverb) else []
    if subject and subject.focus == "also":
        middle.insert(0, "also")
    arguments = _arguments(clause, asked if inverted else "")
    if existent and clause.negative:  # there is no cat
        auxiliary, verb = [auxiliary[0], *verb], ["no"]
        arguments[0] = arguments[0].removeprefix("an ").removeprefix("a ")
    words = [*auxiliary[:1], name, *auxiliary[1:]] if inverted else [name, *auxiliary]
    if asked and inverted:
        argument = roles[asked]
        front = argument.en if isinstance(argument, Adverb) else _phrase(argument, asked)
        words.insert(0, front)
    words += [*middle, *verb, *arguments]
    if any(
        isinstance(argument, Phrase) and argument.focus == "also" and argument is not subject
        for argument in roles.values()
    ):
        words.append("too")
    return " ".join(words)


def english(sentence: Sentence) -> str:
    """The English sentence with this meaning."""
    text = _clause(sentence.clause, sentence.question)
    if sentence.before:
        first = _clause(sentence.before)
        if sentence.link in ("and", "but"):
            text = f"{first}, {sentence.link} {text}"
        elif sentence.link == "because":  # the reason precedes in Korean and follows in English
            text = f"{text} because {first}"
        else:
            text = f"{sentence.link.capitalize()} {first}, {text}"
    return text[0].upper() + text[1:] + ("?" if sentence.question else ".")
