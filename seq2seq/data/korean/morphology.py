"""Korean morphology: composition of Hangul syllables, particles, conjugation.

A Hangul syllable is `0xAC00 + (initial·21 + vowel)·28 + final`, so every form is arithmetic on
the last syllable. A `Stem` is a predicate without its 다. Periphrastic forms (먹고 있다, 먹지 않다,
먹을 것이다) are words followed by another stem, so these few functions conjugate all of them.
"""

from functools import cache
from typing import NamedTuple

INITIALS = "ㄱㄲㄴㄷㄸㄹㅁㅂㅃㅅㅆㅇㅈㅉㅊㅋㅌㅍㅎ"
VOWELS = "ㅏㅐㅑㅒㅓㅔㅕㅖㅗㅘㅙㅚㅛㅜㅝㅞㅟㅠㅡㅢㅣ"
FINALS = " ㄱㄲㄳㄴㄵㄶㄷㄹㄺㄻㄼㄽㄾㄿㅀㅁㅂㅄㅅㅆㅇㅈㅊㅋㅌㅍㅎ"
BRIGHT = "ㅏㅑㅗ"  # vowel harmony: 아 after these vowels, 어 after the others
NO_FINAL = " "
CONTRACTED = {"ㅗ": "ㅘ", "ㅜ": "ㅝ", "ㅣ": "ㅕ", "ㅚ": "ㅙ"}  # 오+아=와, 주+어=줘, 시+어=셔
ABSORBING = "ㅏㅓㅐㅔㅕ"  # 가+아=가, 보내+어=보내


class Stem(NamedTuple):
    text: str  # 먹, 빨갛, 학생이
    irregular: str = ""  # ㅂ ㄷ ㅅ 르 ㅎ, or 이 for the copula, 아니 for its negation
    descriptive: bool = False  # adjectives and 있다: no -는 in the present


def syllable(initial: str, vowel: str, final: str = NO_FINAL) -> str:
    """The Hangul syllable of these letters."""
    place = (INITIALS.index(initial) * 21 + VOWELS.index(vowel)) * 28 + FINALS.index(final)
    return chr(0xAC00 + place)


def jamo(hangul: str) -> tuple[str, str, str]:
    """The letters (initial, vowel, final) of a syllable."""
    place = ord(hangul) - 0xAC00
    return INITIALS[place // 588], VOWELS[place // 28 % 21], FINALS[place % 28]


def final_consonant(word: str) -> str:
    """The final consonant (batchim) of the last syllable, or NO_FINAL."""
    return FINALS[(ord(word[-1]) - 0xAC00) % 28]


def with_final(word: str, consonant: str) -> str:
    """The word with another final consonant."""
    initial, vowel, _ = jamo(word[-1])
    return word[:-1] + syllable(initial, vowel, consonant)


@cache
def particle(word: str, forms: str) -> str:
    """The allomorph for `word` of `은/는`: after a consonant / after a vowel (로 also after ㄹ)."""
    closed, _, open_ = forms.partition("/")
    vowel = final_consonant(word) == NO_FINAL or (open_ == "로" and final_consonant(word) == "ㄹ")
    return open_ if open_ and vowel else closed


def infinitive(stem: Stem) -> str:
    """The form with -아 or -어: 먹어, 가, 도와, 들어, 불러, 써, 해, 빨개."""
    text, irregular, _ = stem
    head, (initial, vowel, consonant) = text[:-1], jamo(text[-1])
    harmony = jamo(head[-1])[1] if vowel == "ㅡ" and head else vowel
    if consonant == "ㅆ":  # 갔 and 있: always 어
        return text + "어"
    if irregular == "아니":
        return text + "어"
    if irregular == "ㅂ":
        return with_final(text, NO_FINAL) + ("와" if text in ("돕", "곱") else "워")
    if irregular == "르":
        return with_final(head, "ㄹ") + ("라" if harmony in BRIGHT else "러")
    if irregular == "ㅎ":
        return head + syllable(initial, "ㅒ" if vowel == "ㅑ" else "ㅐ")
    if irregular == "ㄷ":
        text = with_final(text, "ㄹ")
    if irregular == "ㅅ":  # no contraction: 지어
        text = with_final(text, NO_FINAL)
    if text[-1] == "하":
        return head + "해"
    if irregular == "ㅅ" or consonant != NO_FINAL or vowel in "ㅟㅢ":
        return text + ("아" if vowel in BRIGHT else "어")
    if vowel == "ㅡ":
        return head + syllable(initial, "ㅏ" if harmony in BRIGHT else "ㅓ")
    return text if vowel in ABSORBING else head + syllable(initial, CONTRACTED[vowel])


def with_linking_vowel(stem: Stem, ending: str) -> str:
    """The stem with an ending that may need the linking vowel 으: (으)ㄴ, (으)ㄹ, (으)면."""
    text, irregular, _ = stem
    is_open = final_consonant(text) in (NO_FINAL, "ㄹ")
    if irregular == "ㅂ":
        text, is_open = with_final(text, NO_FINAL) + "우", True
    elif irregular == "ㅎ":
        text, is_open = with_final(text, NO_FINAL), True
    elif irregular == "ㅅ":
        text = with_final(text, NO_FINAL)
    elif irregular == "ㄷ":
        text = with_final(text, "ㄹ")
    elif ending in FINALS:
        text = drop_final_l(stem)
    if not is_open:
        text += "으"
    return with_final(text, ending) if ending in FINALS else text + ending


def drop_final_l(stem: Stem) -> str:
    """The stem without a final ㄹ, which is dropped before ㄴ, ㅂ and ㅅ: 만드는, 만듭니다."""
    return with_final(stem.text, NO_FINAL) if final_consonant(stem.text) == "ㄹ" else stem.text


def past_stem(stem: Stem) -> Stem:
    """The stem of the past tense, with -았 or -었."""
    if stem.irregular == "이":  # 학생이었다, 의사였다
        noun = stem.text[:-1]
        return Stem(noun + ("였" if final_consonant(noun) == NO_FINAL else "이었"), "", True)
    return Stem(with_final(infinitive(stem), "ㅆ"), "", True)


def adnominal(stem: Stem, tense: str) -> str:
    """The form that modifies a noun: 먹는, 먹은, 먹을 사람; 큰, 맛있는 사과."""
    if tense == "future":
        return with_linking_vowel(stem, "ㄹ")
    if tense == "past" or (stem.descriptive and stem.text[-1] not in "있없"):
        return with_linking_vowel(stem, "ㄴ")
    return drop_final_l(stem) + "는"


def _copula(stem: Stem, style: str, question: bool) -> str:
    noun = stem.text[:-1]
    spoken = style == "polite" or (style == "plain" and question)
    if noun == "것" and spoken:  # 거예요, 거니?
        noun = "거"
    if style == "formal":
        return noun + ("입니까" if question else "입니다")
    ending = "예요/이에요" if style == "polite" else "니/이니" if question else "다/이다"
    after_vowel, after_consonant = ending.split("/")
    return noun + (after_vowel if final_consonant(noun) == NO_FINAL else after_consonant)


def finite_form(stem: Stem, style: str, question: bool) -> str:
    """The sentence-final form: plain (-다), polite (-해요) or formal (-합니다) speech level."""
    text = stem.text
    if stem.irregular == "이":
        return _copula(stem, style, question)
    if style == "polite":
        return text + "에요" if stem.irregular == "아니" else infinitive(stem) + "요"
    open_text = drop_final_l(stem)
    if style == "formal":
        ending = "니까" if question else "니다"
        is_open = final_consonant(open_text) == NO_FINAL
        return with_final(open_text, "ㅂ") + ending if is_open else text + "습" + ending
    if question:
        return open_text + "니"
    if stem.descriptive:
        return text + "다"
    if final_consonant(open_text) == NO_FINAL:
        return with_final(open_text, "ㄴ") + "다"
    return text + "는다"


def connective(stem: Stem, ending: str) -> str:
    """The form with -고, -지만, -기 때문에, -(으)면 or -(으)ㄹ 때, which links two clauses."""
    if ending in ("면", "ㄹ 때"):
        mark, _, rest = ending.partition(" ")
        return with_linking_vowel(stem, mark) + (" " + rest if rest else "")
    return stem.text + ending
