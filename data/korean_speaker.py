"""What the built-in corpus talks about: a `Speaker` draws random meanings from the grammar.

It decides what makes sense (people read books, sometimes rice eats people) and keeps to what has
one reading: nothing stands before a relative clause that could belong into it.
"""

from random import Random

from data.korean_grammar import HOW_MANY, LINKS, Clause, Phrase, Sentence, allows_short_negation
from data.korean_lexicon import (
    CITIES, NAMES, NOUNS, PRONOUNS, STUDIES, WHAT, WHERE, WHO, YOU, Adjective, Adverb, Noun,
    Pronoun, Verb,
)
from data.korean_predicates import (
    ADJECTIVES, ANYTHING, BE, BE_AT, BECOME, CLOCK, DATIVE, DAYS, FREQUENCIES, HAVE, INTRANSITIVE,
    MANNERS, MOTION, NOW, PARTS, THERE, TODAY, TOMORROW, TRANSITIVE, WEATHER, WHEN, WHY, YESTERDAY,
)

ALL = (*NOUNS, *NAMES, *CITIES, *STUDIES)
NOUN = {noun.ko: noun for noun in ALL}


def nouns(*kinds: str) -> list[Noun]:
    return [noun for kind in kinds for noun in ALL if kind in (noun.kind, noun.ko)]


OBJECTS = {verb: nouns(*verb.takes) for verb in (*TRANSITIVE, *DATIVE, *MOTION)}
TAKERS = {noun: [verb for verb in TRANSITIVE if noun in OBJECTS[verb]] for noun in ALL}
DESCRIBED = {adjective: nouns(*adjective.describes) for adjective in ADJECTIVES}
DESCRIBERS = {noun: [a for a in ADJECTIVES if noun in DESCRIBED[a]] for noun in ALL}
PEERS = {noun: [other for other in nouns(noun.kind) if other != noun] for noun in ALL}
ACTORS, RELATIVES, SPOTS = nouns("person", "animal"), nouns("relative"), nouns("building", "area")
ANYTHINGS = [noun for noun in NOUNS if noun.kind not in ("relative", "weather")]
BELONGINGS = nouns("thing", "clothes", "vehicle", "animal", "text", "relative")
FURNITURE, BESIDE = nouns("책상", "의자", "상자", "나무"), ("under", "beside", "front", "behind")
TOOLS = {"자르다": nouns("칼"), "쓰다": nouns("펜", "연필", "컴퓨터"), "그리다": nouns("펜", "연필")}
HUMAN = ("pronoun", "name", "person", "relative")
UNMODIFIED = ("pronoun", "name", "city", "study", "relative", "weather")
POLITE_PRONOUNS = [pronoun for pronoun in PRONOUNS if pronoun is not YOU]  # 너 is for friends


class Speaker:
    """Says random sentences; the same seed says the same ones."""

    def __init__(self, seed: int):
        self.draw = Random(seed).random
        self.style = "plain"

    def chance(self, probability: float) -> bool:
        return self.draw() < probability

    def pick(self, options):
        return options[int(self.draw() * len(options))]

    def sentence(self) -> Sentence:
        self.style = self.pick(("plain", "plain", "polite", "formal"))
        return self.pick(TOPICS)(self)

    # Phrases

    def pronoun(self) -> Pronoun:
        return self.pick(PRONOUNS if self.style == "plain" else POLITE_PRONOUNS)

    def actor(self, *others: Phrase) -> Phrase:
        """Somebody who is none of the others."""
        while True:
            luck = self.draw()
            noun = (self.pick(NAMES) if luck < 0.3 else self.pronoun() if luck < 0.6
                    else self.pick(ACTORS if luck < 0.92 else RELATIVES))
            if all(noun != other.noun for other in others):
                return self.bare(noun)

    def bare(self, noun: Noun | Pronoun) -> Phrase:
        """A relative is always somebody's; all else may stand alone."""
        return Phrase(noun, owner=self.owner() if noun.kind == "relative" else None)

    def owner(self) -> Noun | Pronoun:
        return self.pronoun() if self.chance(0.6) else self.pick(NAMES)

    def phrase(self, noun: Noun | Pronoun, depth: float = 0.08) -> Phrase:
        """A noun and perhaps a word or two about it, `depth` of the time a relative clause."""
        if noun.kind in UNMODIFIED:
            return self.bare(noun)
        adjective = self.pick(DESCRIBERS[noun] or [None]) if self.chance(0.18) else None
        if self.chance(depth):
            return Phrase(noun, adjective, relative=self.relative(noun))
        luck = self.draw()
        if luck < 0.12 and noun.counter:
            number = 1 + int(self.draw() ** 2 * 10)
            return Phrase(noun, adjective, number=number)
        if luck < 0.20:
            return Phrase(noun, adjective, owner=self.owner())
        if luck < 0.26:
            return Phrase(noun, adjective, pointer=self.pick("이그"))
        if luck < 0.31 and noun.kind in ("person", "animal"):
            return Phrase(noun, adjective, plural=True)
        if luck < 0.36:
            return Phrase(noun, partner=self.pick(PEERS[noun]))
        return Phrase(noun, adjective)

    def subject(self, *others: Phrase) -> Phrase:
        actor = self.actor(*others)
        return actor if actor.noun.kind in UNMODIFIED else self.phrase(actor.noun)

    def relative(self, noun: Noun) -> Clause | None:
        """내가 만난 (남자), 빵을 먹는 (여자): a clause that lacks the noun."""
        tense = self.pick(("past", "past", "present", "future"))
        alive, takers = noun.kind in ("person", "animal"), TAKERS[noun]
        if alive and (self.chance(0.5) or not takers):
            verb = self.pick(INTRANSITIVE if self.chance(0.3) else TRANSITIVE)
            options = [thing for thing in OBJECTS.get(verb, ()) if thing != noun]
            arguments = (("object", self.bare(self.pick(options))),) if options else ()
        elif takers:
            verb = self.pick(takers)
            arguments = (("subject", self.actor(Phrase(noun))),)
            if tense != "present" and self.chance(0.15) and not verb.state:
                arguments += (("day", self.pick(DAYS[tense])),)
        else:
            return None
        now = tense == "present" and not verb.state and self.chance(0.4)
        negative = "long" if self.chance(0.1) else ""
        return Clause(verb, arguments, tense, "progressive" if now else "", negative)

    # Clauses: the arguments come in a plain Korean order, the subject first

    def clause(self, verb: Verb | Adjective, *arguments: tuple, plain: bool = False) -> Clause:
        """Adds tense, mode, negation and time."""
        tense = self.pick(("past", "past", "past", "present", "present", "future", "future"))
        active = isinstance(verb, Verb) and not verb.state
        human = arguments and arguments[0][1].noun.kind in HUMAN
        mode = negative = ""
        if active and verb not in WEATHER and self.chance(0.3):
            mode = self.pick(("progressive", "progressive", "ability", "desire", "duty"))
            if mode != "ability" and (tense == "future" or mode == "desire" and not human):
                mode = ""
        if mode != "duty" and self.chance(0.2):
            short = mode != "desire" and allows_short_negation(verb) and self.chance(0.5)
            negative = "short" if short else "long"
        clause = Clause(verb, settled(arguments), tense, mode, negative)
        luck = 1.0 if plain else self.draw()
        if active and human and mode == negative == "" and luck < 0.1:
            return with_adverbs(clause, -1, ("frequency", self.pick(FREQUENCIES)))
        if active and arguments and luck < 0.2:
            return with_adverbs(clause, -1, ("manner", self.pick(MANNERS)))
        return self.with_time(clause) if active and luck < 0.5 else clause

    def with_time(self, clause: Clause) -> Clause:
        tense, luck = clause.tense, self.draw()
        clock, part = ("clock", self.pick(CLOCK)), ("part", self.pick(PARTS))
        if clause.mode == "progressive":
            times = [("day", NOW)] if tense == "present" else [clock]
        elif luck < 0.5:
            times = [("day", self.pick(DAYS[tense]))]
        elif luck < 0.75 or tense == "present":
            times = [self.pick((clock, part))]
        else:
            near = YESTERDAY if tense == "past" else TOMORROW
            times = [("day", self.pick((TODAY, near))), clock]
        return with_adverbs(clause, int(self.chance(0.5)), *times)

    def said(self, clause: Clause, asked: float = 0.15) -> Sentence:
        """Chooses among the ways to say a clause: particles, order, focus, statement or question."""
        question = self.chance(asked)
        arguments = list(clause.arguments)
        roles = [role for role, _ in arguments]
        complex_ = any(is_complex(argument) for _, argument in arguments)
        luck = self.draw()
        if "object" in roles and not complex_:
            place = roles.index("object")
            thing = arguments[place][1]
            if luck < 0.15:  # object first: the particles tell
                arguments.insert(0, arguments.pop(place))
            elif thing.number and luck < 0.5:
                arguments[place] = ("object", thing._replace(floating=True))
            elif luck > 0.95 and not (thing.number or question or clause.negative):
                focused = thing._replace(focus=self.pick(("also", "only")))
                arguments[place] = ("object", focused)
        place = [role for role, _ in arguments].index("topic")
        subject = arguments[place][1]
        plain = not (subject.number or question or clause.negative or "frequency" in roles)
        if 0.87 < luck < 0.95 and plain and not subject.relative:
            arguments[place] = ("topic", subject._replace(focus=self.pick(("also", "only"))))
        elif self.chance(0.35) and not complex_:
            arguments[place] = ("subject", subject)
        return Sentence(clause._replace(arguments=tuple(arguments)), self.style, question)

    # Topics of conversation

    def deed(self) -> Sentence:
        return self.said(self.transitive())

    def transitive(self) -> Clause:
        verb = self.pick(TRANSITIVE)
        subject = self.subject()
        noun = self.pick(OBJECTS[verb])
        while noun == subject.noun:
            noun = self.pick(OBJECTS[verb])
        arguments = [("topic", subject), ("object", self.phrase(noun, rest_depth(subject)))]
        luck = self.draw()
        if verb.state:
            pass
        elif verb.ko in TOOLS and luck < 0.5:
            arguments.insert(1, ("instrument", Phrase(self.pick(TOOLS[verb.ko]))))
        elif luck < 0.12:
            arguments.insert(1, ("companion", self.actor(subject, Phrase(noun))))
        elif luck < 0.27 and noun.kind != "building":
            arguments.insert(1, ("place", Phrase(self.pick(SPOTS))))
        return self.clause(verb, *arguments)

    def whim(self) -> Sentence:
        """Anything does something to anything: 밥이 나를 먹었다."""
        verb = self.pick(ANYTHING)
        first, second = (
            self.bare(self.pick(ANYTHINGS)) if self.chance(0.6) else self.actor() for _ in "12")
        if first.noun == second.noun:
            return self.whim()
        if self.chance(0.3):
            first = self.phrase(first.noun)
        return self.said(self.clause(verb, ("topic", first), ("object", second)))

    def rest(self) -> Sentence:
        subject = self.subject()
        arguments = [("topic", subject)]
        if self.chance(0.3):
            arguments.append(("companion", self.actor(subject)))
        if self.chance(0.5):
            arguments.append(("place", self.phrase(self.pick(SPOTS), 0)))
        return self.said(self.clause(self.pick(INTRANSITIVE), *arguments))

    def motion(self) -> Sentence:
        verb, subject = self.pick(MOTION), self.subject()
        arguments = [("topic", subject), ("goal", self.phrase(self.pick(OBJECTS[verb]), 0))]
        if verb.preposition == "to" and self.chance(0.5):
            arguments.insert(1, self.pick((
                ("vehicle", Phrase(self.pick(nouns("vehicle")))), ("companion", self.actor(subject)))))
        elif verb.preposition == "to" and self.chance(0.5):
            arguments = [arguments[0], ("source", Phrase(self.pick(CITIES)))]
            if self.chance(0.5):
                city = self.pick(PEERS[arguments[1][1].noun])
                arguments.append(("limit", Phrase(city)))
        return self.said(self.clause(verb, *arguments))

    def gift(self) -> Sentence:
        verb, subject = self.pick(DATIVE), self.subject()
        thing = self.phrase(self.pick(OBJECTS[verb]), rest_depth(subject))
        arguments = [("topic", subject), ("recipient", self.actor(subject)), ("object", thing)]
        return self.said(self.clause(verb, *arguments))

    def quality(self) -> Sentence:
        adjective = self.pick(ADJECTIVES)
        noun = self.pick(DESCRIBED[adjective])
        subject = self.actor() if noun.kind in HUMAN else self.phrase(noun)
        if subject.noun not in DESCRIBED[adjective] and subject.noun.kind != "pronoun":
            subject = self.bare(noun)
        return self.said(self.clause(adjective, ("topic", subject._replace(adjective=None))))

    def comparison(self) -> Sentence:
        adjective = self.pick(ADJECTIVES)
        noun = self.pick(DESCRIBED[adjective])
        other = self.pick(PEERS[noun] or [NOUN["여자"]])
        arguments = [("topic", self.bare(noun)), ("than", self.bare(other))]
        return self.said(self.clause(adjective, *arguments))

    def identity(self) -> Sentence:
        """민수는 학생이다, 의사가 됐다: whom one is or becomes."""
        single = [self.pick(NAMES), self.pick(PRONOUNS[:1] + PRONOUNS[3:5])]
        complement = Phrase(noun := self.pick(nouns("person")))
        if self.chance(0.3):
            complement = complement._replace(adjective=self.pick(DESCRIBERS[noun]))
        verb, subject = self.pick((BE, BECOME)), Phrase(self.pick(single))
        return self.said(self.clause(verb, ("topic", subject), ("complement", complement)))

    def existence(self) -> Sentence:
        """방에 고양이가 있다 there is a cat; 고양이는 방에 있다 the cat is in the room."""
        beside = self.chance(0.5)
        role = self.pick((*BESIDE, "on")) if beside else "location"
        spot = Phrase(self.pick(FURNITURE if role in BESIDE or role == "on" else SPOTS))
        noun = self.pick(ACTORS if self.chance(0.5) else nouns("thing", "food", "text", "clothes"))
        if noun == spot.noun:
            return self.existence()
        if self.chance(0.4):
            return self.said(self.clause(BE_AT, ("topic", self.subject()), (role, spot)))
        adjective = self.pick(DESCRIBERS[noun] or [None]) if self.chance(0.2) else None
        clause = self.clause(THERE, (role, spot), ("existent", Phrase(noun, adjective)))
        if noun.counter and not clause.negative and self.chance(0.4):
            number = 1 + int(self.draw() * 10)
            counted = Phrase(noun, adjective, number=number, floating=self.chance(0.5))
            clause = clause._replace(arguments=(clause.arguments[0], ("existent", counted)))
        return Sentence(clause, self.style, self.chance(0.2))

    def property(self) -> Sentence:
        """민수는 자전거가 있다: what one has."""
        noun = self.pick(BELONGINGS)
        adjective = self.pick(DESCRIBERS[noun] or [None]) if self.chance(0.25) else None
        owned = Phrase(noun, adjective)
        return self.said(self.clause(HAVE, ("topic", self.actor(owned)), ("possessed", owned)))

    def question(self) -> Sentence:
        """누가, 누구를, 무엇을, 어디에, 몇 개, 언제, 왜: one argument of a deed is asked for."""
        template = self.pick((Speaker.deed, Speaker.deed, Speaker.deed, Speaker.gift,
                              Speaker.motion, Speaker.rest))
        clause = template(self).clause
        if any(is_complex(argument) or getattr(argument, "focus", "") for _, argument in clause.arguments):
            return self.question()
        arguments = list(clause.arguments)
        place = int(self.draw() * len(arguments))
        role, argument = arguments[place]
        if role in ("topic", "subject"):
            asked = ("subject", Phrase(WHO))
        elif role in ("object", "recipient"):
            human = argument.noun.kind in HUMAN
            asked = (role, Phrase(WHO if human else WHAT))
            if not human and argument.noun.counter and self.chance(0.5):
                asked = (role, Phrase(argument.noun, number=HOW_MANY, floating=self.chance(0.5)))
        elif role in ("goal", "place"):
            asked = (role, Phrase(WHERE))
        else:
            return self.question()
        if self.chance(0.3) and role not in ("topic", "subject"):
            arguments.insert(1, ("question", self.pick((WHEN, WHY))))
        else:
            arguments[place] = asked
        return Sentence(clause._replace(arguments=tuple(arguments)), self.style, True)

    def story(self) -> Sentence:
        """Two short clauses, and what the first is to the second."""
        link = self.pick(tuple(LINKS))
        before, after = self.short(), self.short()
        tenses = {"if": ("present", "future"), "when": ("past", "past")}
        first, second = tenses.get(link) or self.pick((("past",) * 2, ("present",) * 2))
        if link in ("because", "if", "when"):
            before = before._replace(arguments=tuple(
                ("subject" if role == "topic" else role, argument) for role, argument in before.arguments))
        sentence = Sentence(after._replace(tense=second), self.style, False, link, before._replace(tense=first))
        return sentence

    def short(self) -> Clause:
        luck = self.draw()
        negative = "long" if self.chance(0.15) else ""
        if luck < 0.1:
            return Clause(self.pick(WEATHER), (), "past", "", negative)
        subject = ("topic", self.actor())
        if luck < 0.3:
            return Clause(self.pick(INTRANSITIVE), (subject,), "past", "", negative)
        if luck < 0.5:
            adjective = self.pick(DESCRIBERS[NOUN["남자"]])
            return Clause(adjective, (subject,), "past", "", negative)
        if luck < 0.7:
            verb = self.pick(MOTION)
            return Clause(verb, (subject, ("goal", Phrase(self.pick(OBJECTS[verb])))), "past", "", negative)
        verb = self.pick(TRANSITIVE)
        thing = self.bare(self.pick(OBJECTS[verb]))
        if thing.noun == subject[1].noun:
            return self.short()
        return Clause(verb, (subject, ("object", thing)), "past", "", negative)

    def weather(self) -> Sentence:
        clause = self.clause(self.pick(WEATHER))
        return Sentence(clause, self.style, self.chance(0.3))


def is_complex(argument: Phrase | Adverb) -> bool:
    return isinstance(argument, Phrase) and argument.relative is not None


def rest_depth(subject: Phrase) -> float:
    """One relative clause a sentence."""
    return 0.0 if subject.relative else 0.1


def settled(arguments: tuple) -> tuple:
    """A relative clause follows the topic at once, lest what is between seem part of it."""
    return tuple(sorted(arguments, key=lambda item: 0 if item[0] == "topic" else 1 if is_complex(item[1]) else 2))


def with_adverbs(clause: Clause, place: int, *adverbs: tuple[str, Adverb]) -> Clause:
    """Puts adverbs at a place (-1 is before the verb), but never before a relative clause."""
    arguments = list(clause.arguments)
    complex_ = [is_complex(argument) for _, argument in arguments]
    if place == 1 and any(complex_[1:]):
        place = 0
    if place == 0 and complex_ and complex_[0]:
        place = 1
    if place < 0:
        place = len(arguments)
    arguments[place:place] = adverbs
    return clause._replace(arguments=tuple(arguments))


TOPICS = (
    *[Speaker.deed] * 9, *[Speaker.whim] * 6, *[Speaker.rest] * 2, *[Speaker.motion] * 3,
    *[Speaker.gift] * 3, *[Speaker.quality] * 3, Speaker.comparison, Speaker.identity,
    *[Speaker.existence] * 2, Speaker.property, *[Speaker.question] * 3, *[Speaker.story] * 4,
)
