"""The kinds of sentences of the built-in corpus: each function samples one, using a Speaker.

Most are plausible (people read books). In others the subject and object are arbitrary (밥이 나를
먹었다), so that only the particles tell who did what.
"""

from seq2seq.data.korean.grammar import HOW_MANY, LINKS, Clause, Phrase, Sentence
from seq2seq.data.korean.lexicon import (
    NAMES,
    PRONOUNS,
    WHAT,
    WHERE,
    WHO,
    Adjective,
    Noun,
    Pronoun,
    Verb,
)
from seq2seq.data.korean.predicates import (
    ADJECTIVES,
    BE,
    BE_AT,
    BECOME,
    DATIVE,
    HAVE,
    INTRANSITIVE,
    MOTION,
    THERE,
    TRANSITIVE,
    UNRESTRICTED,
    WEATHER,
    WHEN,
    WHY,
)
from seq2seq.data.korean.speaker import (
    ACTORS,
    DESCRIBED,
    DESCRIBERS,
    HUMAN,
    NOUN,
    OBJECTS,
    PEERS,
    Speaker,
    is_complex,
    is_modifiable,
    nouns,
)

CITIES, VEHICLES = nouns("city"), nouns("vehicle")
PROFESSIONS = [noun for noun in nouns("person") if noun.ko not in ("남자", "여자", "아이")]
PLACES = nouns("building", "area")
ANY_NOUNS = nouns(
    "person",
    "animal",
    "food",
    "drink",
    "text",
    "art",
    "thing",
    "clothes",
    "vehicle",
    "building",
    "area",
    "name",
)
BELONGINGS = nouns("thing", "clothes", "vehicle", "animal", "text")
LOCATED_NOUNS = [*ACTORS, *ACTORS, *nouns("thing", "food", "drink", "text", "clothes")]
FURNITURE = nouns("책상", "의자", "상자", "나무")
RELATIVE_PLACES = ("on", "under", "beside", "front", "behind")
TOOLS = {"자르다": nouns("칼"), "쓰다": nouns("펜"), "그리다": nouns("펜")}
SINGLE: list[Noun | Pronoun] = [
    *NAMES,
    *(pronoun for pronoun in PRONOUNS if pronoun.en in ("I", "he", "she")),
]
FEELINGS = DESCRIBERS[NOUN["남자"]]


def random_sentence(speaker: Speaker) -> Sentence:
    """A sentence of a random kind and speech level."""
    speaker.style = speaker.pick(("plain", "plain", "polite", "formal"))
    return speaker.pick(TOPICS)(speaker)


def action(speaker: Speaker) -> Sentence:
    """A transitive verb with a plausible object: 민수는 공원에서 책을 읽었다."""
    verb, subject = speaker.pick(TRANSITIVE), speaker.subject()
    noun = speaker.pick([noun for noun in OBJECTS[verb] if noun != subject.noun])
    object_phrase = speaker.phrase(noun, subject)
    arguments = [("topic", subject), ("object", object_phrase)]
    u = 1.0 if verb.state or is_complex(subject) or is_complex(object_phrase) else speaker.draw()
    if verb.ko in TOOLS and u < 0.5:
        arguments.insert(1, ("instrument", Phrase(speaker.pick(TOOLS[verb.ko]))))
    elif u < 0.12:
        arguments.insert(1, ("companion", speaker.actor(subject, object_phrase)))
    elif u < 0.27 and noun not in PLACES:
        arguments.insert(1, ("place", Phrase(speaker.pick(PLACES))))
    return speaker.sentence(speaker.clause(verb, *arguments))


def arbitrary_action(speaker: Speaker) -> Sentence:
    """A transitive verb with an arbitrary subject and object: 밥이 나를 먹었다."""
    first, second = (
        speaker.bare(speaker.pick(ANY_NOUNS)) if speaker.chance(0.6) else speaker.actor()
        for _ in range(2)
    )
    if first.noun == second.noun:
        return arbitrary_action(speaker)
    if speaker.chance(0.3):
        first = speaker.phrase(first.noun)
    verb = speaker.pick(UNRESTRICTED)
    return speaker.sentence(speaker.clause(verb, ("topic", first), ("object", second)))


def activity(speaker: Speaker) -> Sentence:
    """An intransitive verb: 아이가 방에서 잤다."""
    subject = speaker.subject()
    arguments = [("topic", subject)]
    if speaker.chance(0.3):
        arguments.append(("companion", speaker.actor(subject)))
    if speaker.chance(0.5):
        arguments.append(("place", speaker.modified(speaker.pick(PLACES))))
    return speaker.sentence(speaker.clause(speaker.pick(INTRANSITIVE), *arguments))


def motion(speaker: Speaker) -> Sentence:
    """A verb of motion with a goal or source: 민수는 학교에 갔다."""
    verb, subject = speaker.pick(MOTION), speaker.subject()
    goal = ("goal", speaker.modified(speaker.pick(OBJECTS[verb])))
    arguments, u = [("topic", subject)], speaker.draw()
    if verb.preposition != "to" or u < 0.4:
        arguments.append(goal)
    elif u < 0.6:
        arguments += [("vehicle", Phrase(speaker.pick(VEHICLES))), goal]
    elif u < 0.75:
        arguments += [("companion", speaker.actor(subject)), goal]
    else:
        city = speaker.pick(CITIES)
        arguments.append(("source", Phrase(city)))
        if u < 0.88:
            arguments.append(("limit", Phrase(speaker.pick(PEERS[city]))))
    return speaker.sentence(speaker.clause(verb, *arguments))


def giving(speaker: Speaker) -> Sentence:
    """A ditransitive verb: 민수는 유나에게 책을 줬다."""
    verb, subject = speaker.pick(DATIVE), speaker.subject()
    object_phrase = speaker.phrase(speaker.pick(OBJECTS[verb]), subject)
    arguments = ("topic", subject), ("recipient", speaker.actor(subject)), ("object", object_phrase)
    return speaker.sentence(speaker.clause(verb, *arguments))


def description(speaker: Speaker) -> Sentence:
    """An adjective, plain or in a comparison: 민수는 바쁘다, 민수는 유나보다 바쁘다."""
    adjective = speaker.pick(ADJECTIVES)
    noun = speaker.pick(DESCRIBED[adjective])
    compared = PEERS[noun] and speaker.chance(0.25)
    if compared:
        subject, peer = speaker.bare(noun), speaker.bare(speaker.pick(PEERS[noun]))
        return speaker.sentence(speaker.clause(adjective, ("topic", subject), ("than", peer)))
    use_pronoun = noun.kind in HUMAN and speaker.chance(0.5)
    subject = speaker.phrase(speaker.pronoun() if use_pronoun else noun)._replace(adjective=None)
    return speaker.sentence(speaker.clause(adjective, ("topic", subject)))


def identity(speaker: Speaker) -> Sentence:
    """A copular sentence with be or become: 민수는 학생이다, 민수는 의사가 됐다."""
    complement = speaker.described(speaker.pick(PROFESSIONS))
    subject = Phrase(speaker.pick(SINGLE))
    verb = speaker.pick((BE, BECOME))
    return speaker.sentence(speaker.clause(verb, ("topic", subject), ("complement", complement)))


def existence(speaker: Speaker) -> Sentence:
    """Existence or location: 방에 고양이가 있다 (there is a cat), 고양이는 방에 있다."""
    if speaker.chance(0.5):
        place = (speaker.pick(RELATIVE_PLACES), Phrase(speaker.pick(FURNITURE)))
    else:
        place = ("location", Phrase(speaker.pick(PLACES)))
    noun = speaker.pick([noun for noun in LOCATED_NOUNS if noun != place[1].noun])
    if speaker.chance(0.4):
        return speaker.sentence(speaker.clause(BE_AT, ("topic", speaker.subject()), place))
    existent = speaker.described(noun)
    clause = speaker.clause(THERE, place, ("existent", existent))
    if noun.counter and not clause.negative and speaker.chance(0.4):
        counted = existent._replace(number=speaker.number(), floating=speaker.chance(0.5))
        clause = clause._replace(arguments=(place, ("existent", counted)))
    return Sentence(clause, speaker.style, speaker.chance(0.2))


def possession(speaker: Speaker) -> Sentence:
    """A possessive sentence: 민수는 자전거가 있다."""
    owned = speaker.described(speaker.pick(BELONGINGS))
    clause = speaker.clause(HAVE, ("topic", speaker.actor(owned)), ("possessed", owned))
    return Sentence(clause, speaker.style, speaker.chance(0.15))


def question(speaker: Speaker) -> Sentence:
    """A question with 누가, 누구를, 무엇을, 어디에, 몇 개, 언제 or 왜."""
    clause = speaker.pick((action, action, action, giving, motion, activity))(speaker).clause
    arguments = list(clause.arguments)
    place = int(speaker.draw() * len(arguments))
    role, argument = arguments[place]
    if not isinstance(argument, Phrase) or any(
        is_complex(value) or getattr(value, "focus", "") for _, value in arguments
    ):
        return question(speaker)
    if role not in ("topic", "subject") and speaker.chance(0.25):
        arguments.insert(1, ("question", speaker.pick((WHEN, WHY))))
    elif role in ("topic", "subject"):
        arguments[place] = ("subject", Phrase(WHO))
    elif role in ("goal", "place"):
        arguments[place] = (role, Phrase(WHERE))
    elif role not in ("object", "recipient"):
        return question(speaker)
    elif is_modifiable(argument.noun) and argument.noun.counter and speaker.chance(0.4):
        asked = Phrase(argument.noun, number=HOW_MANY, floating=role == "object")
        arguments[place] = (role, asked)
    else:
        human = argument.noun.kind in HUMAN or role == "recipient"
        arguments[place] = (role, Phrase(WHO if human else WHAT))
    if any(adverb is WHEN for _, adverb in arguments):
        arguments = [
            (role, argument) for role, argument in arguments if role not in ("day", "part", "clock")
        ]
    return Sentence(clause._replace(arguments=tuple(arguments)), speaker.style, True)


def two_events(speaker: Speaker) -> Sentence:
    """Two short clauses linked by and, but, because, if or when."""
    link = speaker.pick(tuple(LINKS))
    before, after = _event(speaker), _event(speaker)
    tense = speaker.pick(("past", "present"))
    first, second = {"if": ("present", "future"), "when": ("past", "past")}.get(
        link, (tense, tense)
    )
    if link not in ("and", "but"):  # the topic of the sentence is in the second clause
        before = before._replace(
            arguments=tuple(
                ("subject" if role == "topic" else role, argument)
                for role, argument in before.arguments
            )
        )
    return Sentence(
        after._replace(tense=second), speaker.style, False, link, before._replace(tense=first)
    )


def _event(speaker: Speaker) -> Clause:
    verb: Verb | Adjective
    subject, u = speaker.actor(), speaker.draw()
    arguments = [("topic", subject)]
    if u < 0.1:
        verb, arguments = speaker.pick(WEATHER), []
    elif u < 0.3:
        verb = speaker.pick(INTRANSITIVE)
    elif u < 0.5:
        verb = speaker.pick(FEELINGS)
    else:
        verb = speaker.pick(MOTION if u < 0.65 else TRANSITIVE)
        argument = speaker.bare(
            speaker.pick([noun for noun in OBJECTS[verb] if noun != subject.noun])
        )
        arguments.append(("goal" if verb in MOTION else "object", argument))
    return Clause(verb, tuple(arguments), "past", "", "long" if speaker.chance(0.15) else "")


def weather(speaker: Speaker) -> Sentence:
    """A weather verb: 비가 오고 있다."""
    clause = speaker.clause(speaker.pick(WEATHER))
    if clause.tense == "present" and not clause.arguments:
        clause = clause._replace(mode="progressive")
    return Sentence(clause, speaker.style, speaker.chance(0.3))


TOPICS = [
    topic
    for topic, share in (
        (action, 18),
        (arbitrary_action, 12),
        (activity, 5),
        (motion, 6),
        (giving, 6),
        (description, 7),
        (identity, 3),
        (existence, 6),
        (possession, 3),
        (question, 9),
        (two_events, 9),
        (weather, 1),
    )
    for _ in range(share)
]
