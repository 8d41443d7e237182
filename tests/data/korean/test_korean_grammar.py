"""Korean word forms against a table written by hand, and meanings in both languages."""

import unicodedata

import pytest

from seq2seq.data.korean.english import english
from seq2seq.data.korean.grammar import HOW_MANY, Clause, Phrase, Sentence, korean, stem_of
from seq2seq.data.korean.lexicon import PRONOUNS, WHAT, WHO, Adjective
from seq2seq.data.korean.morphology import (
    Stem,
    adnominal,
    connective,
    final_consonant,
    finite_form,
    infinitive,
    jamo,
    particle,
    past_stem,
    syllable,
    with_linking_vowel,
)
from seq2seq.data.korean.predicates import (
    ADJECTIVES,
    BE,
    BE_AT,
    DATIVE,
    INTRANSITIVE,
    MOTION,
    THERE,
    TRANSITIVE,
)
from seq2seq.data.korean.speaker import ALL, NOUN

VERBS = {verb.ko: verb for verb in (*TRANSITIVE, *DATIVE, *INTRANSITIVE, *MOTION)}
ME, YOU = PRONOUNS[:2]

# Dictionary form, polite, formal, plain past, and the form before a noun: past for verbs (먹은),
# present for adjectives (큰). Written by hand; every predicate of the lexicon is here.
FORMS = """
먹다 먹어요 먹습니다 먹었다 먹은      마시다 마셔요 마십니다 마셨다 마신
읽다 읽어요 읽습니다 읽었다 읽은      듣다 들어요 듣습니다 들었다 들은
사다 사요 삽니다 샀다 산              팔다 팔아요 팝니다 팔았다 판
쓰다 써요 씁니다 썼다 쓴              그리다 그려요 그립니다 그렸다 그린
보다 봐요 봅니다 봤다 본              찾다 찾아요 찾습니다 찾았다 찾은
만나다 만나요 만납니다 만났다 만난    돕다 도와요 돕습니다 도왔다 도운
부르다 불러요 부릅니다 불렀다 부른    기다리다 기다려요 기다립니다 기다렸다 기다린
만들다 만들어요 만듭니다 만들었다 만든  고르다 골라요 고릅니다 골랐다 고른
열다 열어요 엽니다 열었다 연          닫다 닫아요 닫습니다 닫았다 닫은
씻다 씻어요 씻습니다 씻었다 씻은      요리하다 요리해요 요리합니다 요리했다 요리한
자르다 잘라요 자릅니다 잘랐다 자른    배우다 배워요 배웁니다 배웠다 배운
공부하다 공부해요 공부합니다 공부했다 공부한  청소하다 청소해요 청소합니다 청소했다 청소한
입다 입어요 입습니다 입었다 입은      벗다 벗어요 벗습니다 벗었다 벗은
받다 받아요 받습니다 받았다 받은      짓다 지어요 짓습니다 지었다 지은
타다 타요 탑니다 탔다 탄              잡다 잡아요 잡습니다 잡았다 잡은
물다 물어요 뭅니다 물었다 문          쫓다 쫓아요 쫓습니다 쫓았다 쫓은
좋아하다 좋아해요 좋아합니다 좋아했다 좋아한  싫어하다 싫어해요 싫어합니다 싫어했다 싫어한
사랑하다 사랑해요 사랑합니다 사랑했다 사랑한  알다 알아요 압니다 알았다 안
주다 줘요 줍니다 줬다 준              보내다 보내요 보냅니다 보냈다 보낸
보여주다 보여줘요 보여줍니다 보여줬다 보여준  빌려주다 빌려줘요 빌려줍니다 빌려줬다 빌려준
가르치다 가르쳐요 가르칩니다 가르쳤다 가르친  자다 자요 잡니다 잤다 잔
울다 울어요 웁니다 울었다 운          웃다 웃어요 웃습니다 웃었다 웃은
걷다 걸어요 걷습니다 걸었다 걸은      뛰다 뛰어요 뜁니다 뛰었다 뛴
쉬다 쉬어요 쉽니다 쉬었다 쉰          놀다 놀아요 놉니다 놀았다 논
일하다 일해요 일합니다 일했다 일한    노래하다 노래해요 노래합니다 노래했다 노래한
춤추다 춤춰요 춤춥니다 춤췄다 춤춘    가다 가요 갑니다 갔다 간
오다 와요 옵니다 왔다 온              돌아가다 돌아가요 돌아갑니다 돌아갔다 돌아간
들어가다 들어가요 들어갑니다 들어갔다 들어간  앉다 앉아요 앉습니다 앉았다 앉은
살다 살아요 삽니다 살았다 산
행복하다 행복해요 행복합니다 행복했다 행복한  슬프다 슬퍼요 슬픕니다 슬펐다 슬픈
바쁘다 바빠요 바쁩니다 바빴다 바쁜    아프다 아파요 아픕니다 아팠다 아픈
피곤하다 피곤해요 피곤합니다 피곤했다 피곤한  친절하다 친절해요 친절합니다 친절했다 친절한
젊다 젊어요 젊습니다 젊었다 젊은      유명하다 유명해요 유명합니다 유명했다 유명한
예쁘다 예뻐요 예쁩니다 예뻤다 예쁜    아름답다 아름다워요 아름답습니다 아름다웠다 아름다운
크다 커요 큽니다 컸다 큰              작다 작아요 작습니다 작았다 작은
무겁다 무거워요 무겁습니다 무거웠다 무거운  가볍다 가벼워요 가볍습니다 가벼웠다 가벼운
맛있다 맛있어요 맛있습니다 맛있었다 맛있는  차갑다 차가워요 차갑습니다 차가웠다 차가운
뜨겁다 뜨거워요 뜨겁습니다 뜨거웠다 뜨거운  재미있다 재미있어요 재미있습니다 재미있었다 재미있는
어렵다 어려워요 어렵습니다 어려웠다 어려운  쉽다 쉬워요 쉽습니다 쉬웠다 쉬운
길다 길어요 깁니다 길었다 긴          짧다 짧아요 짧습니다 짧았다 짧은
비싸다 비싸요 비쌉니다 비쌌다 비싼    싸다 싸요 쌉니다 쌌다 싼
빠르다 빨라요 빠릅니다 빨랐다 빠른    느리다 느려요 느립니다 느렸다 느린
빨갛다 빨개요 빨갛습니다 빨갰다 빨간  하얗다 하얘요 하얗습니다 하얬다 하얀
좋다 좋아요 좋습니다 좋았다 좋은      나쁘다 나빠요 나쁩니다 나빴다 나쁜
춥다 추워요 춥습니다 추웠다 추운      덥다 더워요 덥습니다 더웠다 더운
""".split()


# Korean


def test_every_predicate_is_conjugated_as_in_the_hand_written_table():
    table = {row[0]: tuple(row[1:]) for row in zip(*[iter(FORMS)] * 5, strict=True)}
    predicates = {**VERBS, **{adjective.ko: adjective for adjective in ADJECTIVES}}
    assert table.keys() == predicates.keys()
    for ko, predicate in predicates.items():
        stem = stem_of(predicate)
        attribute = adnominal(stem, "present" if isinstance(predicate, Adjective) else "past")
        assert table[ko] == (
            finite_form(stem, "polite", False),
            finite_form(stem, "formal", False),
            finite_form(past_stem(stem), "plain", False),
            attribute,
        )


@pytest.mark.parametrize(
    "ko, statement, question, present, future, condition",
    [
        ("먹다", "먹는다", "먹니", "먹는", "먹을", "먹으면"),
        ("가다", "간다", "가니", "가는", "갈", "가면"),
        ("돕다", "돕는다", "돕니", "돕는", "도울", "도우면"),
        ("듣다", "듣는다", "듣니", "듣는", "들을", "들으면"),
        ("만들다", "만든다", "만드니", "만드는", "만들", "만들면"),
        ("부르다", "부른다", "부르니", "부르는", "부를", "부르면"),
        ("짓다", "짓는다", "짓니", "짓는", "지을", "지으면"),
    ],
)
def test_verbs_take_the_endings_of_their_class(ko, statement, question, present, future, condition):
    stem = stem_of(VERBS[ko])
    assert finite_form(stem, "plain", False) == statement
    assert finite_form(stem, "plain", True) == question
    assert (adnominal(stem, "present"), adnominal(stem, "future")) == (present, future)
    assert connective(stem, "면") == condition


def test_stems_that_are_not_in_the_lexicon_are_conjugated():
    assert (
        infinitive(Stem("하얗", "ㅎ")) == "하얘"
        and with_linking_vowel(Stem("파랗", "ㅎ"), "ㄴ") == "파란"
    )
    assert infinitive(Stem("모르", "르")) == "몰라" and infinitive(Stem("곱", "ㅂ")) == "고와"
    assert infinitive(Stem("되")) == "돼" and infinitive(Stem("서")) == "서"
    assert finite_form(Stem("않"), "plain", False) == "않는다"
    assert finite_form(Stem("없", "", True), "plain", False) == "없다"
    assert finite_form(Stem("아니", "아니", True), "polite", False) == "아니에요"
    assert finite_form(past_stem(Stem("아니", "아니", True)), "plain", False) == "아니었다"
    assert finite_form(Stem("학생이", "이", True), "polite", False) == "학생이에요"
    assert finite_form(Stem("의사이", "이", True), "polite", False) == "의사예요"
    assert finite_form(past_stem(Stem("의사이", "이", True)), "formal", False) == "의사였습니다"
    assert finite_form(Stem("것이", "이", True), "polite", False) == "거예요"


def test_syllables_are_unicode_compositions():
    for code in range(0xAC00, 0xD7A4, 7):
        assert syllable(*jamo(chr(code))) == chr(code)
        jamos = unicodedata.normalize("NFD", chr(code))
        assert (final_consonant(chr(code)) == " ") == (len(jamos) == 2)


def test_particles_agree_with_the_final_consonant_of_every_noun():
    for noun in ALL:
        letters = unicodedata.normalize("NFD", noun.ko)
        closed = "\u11a8" <= letters[-1] <= "\u11ff"
        for forms in ("은/는", "이/가", "을/를", "과/와"):
            assert particle(noun.ko, forms) == forms.split("/")[0 if closed else 1]
        to = "으로" if closed and letters[-1] != "\u11af" else "로"  # ㄹ counts as open
        assert particle(noun.ko, "으로/로") == to
    assert particle("책", "에서") == "에서"


@pytest.mark.parametrize(
    "style, question, ko, en",
    [
        ("plain", False, "내가 너를 만났다.", "I met you."),
        ("plain", True, "내가 너를 만났니?", "Did I meet you?"),
        ("polite", False, "제가 너를 만났어요.", "I met you."),
        ("formal", True, "제가 너를 만났습니까?", "Did I meet you?"),
    ],
)
def test_styles_change_the_korean_and_not_the_english(style, question, ko, en):
    arguments = (("subject", Phrase(ME)), ("object", Phrase(YOU)))
    sentence = Sentence(Clause(VERBS["만나다"], arguments), style, question)
    assert (korean(sentence), english(sentence)) == (ko, en)


# Meaning


def render(verb, *arguments, tense="past", mode="", negative="", style="plain", question=False):
    sentence = Sentence(Clause(verb, arguments, tense, mode, negative), style, question)
    return korean(sentence), english(sentence)


def test_particles_decide_who_eats_whom():
    eat, rice, me = VERBS["먹다"], Phrase(NOUN["밥"]), Phrase(ME)
    assert render(eat, ("topic", me), ("object", rice)) == (
        "나는 밥을 먹었다.",
        "I ate rice.",
    )
    assert render(eat, ("subject", rice), ("object", me)) == (
        "밥이 나를 먹었다.",
        "Rice ate me.",
    )
    assert render(eat, ("object", me), ("subject", rice)) == (
        "나를 밥이 먹었다.",
        "Rice ate me.",
    )


MINSU, YUNA, DOG = Phrase(NOUN["민수"]), Phrase(NOUN["유나"]), Phrase(NOUN["개"])
BOOKS = Phrase(NOUN["책"], number=2)


@pytest.mark.parametrize(
    "tense, mode, negative, ko, en",
    [
        ("present", "", "short", "민수는 빵을 안 먹는다.", "Minsu does not eat bread."),
        ("past", "", "long", "민수는 빵을 먹지 않았다.", "Minsu did not eat bread."),
        ("future", "", "long", "민수는 빵을 먹지 않을 것이다.", "Minsu will not eat bread."),
        ("present", "progressive", "", "민수는 빵을 먹고 있다.", "Minsu is eating bread."),
        ("past", "desire", "", "민수는 빵을 먹고 싶어 했다.", "Minsu wanted to eat bread."),
        ("present", "ability", "", "민수는 빵을 먹을 수 있다.", "Minsu can eat bread."),
        ("past", "ability", "short", "민수는 빵을 못 먹었다.", "Minsu could not eat bread."),
        ("present", "ability", "long", "민수는 빵을 먹을 수 없다.", "Minsu cannot eat bread."),
        ("present", "duty", "", "민수는 빵을 먹어야 한다.", "Minsu has to eat bread."),
    ],
)
def test_tense_mode_and_negation(tense, mode, negative, ko, en):
    bread = ("object", Phrase(NOUN["빵"]))
    assert render(
        VERBS["먹다"], ("topic", MINSU), bread, tense=tense, mode=mode, negative=negative
    ) == (ko, en)


def test_relative_clauses_precede_the_korean_and_follow_the_english_noun():
    met = Clause(VERBS["만나다"], (("subject", Phrase(ME)),))
    reads = Clause(VERBS["읽다"], (("object", BOOKS),), "present")
    man, woman = (
        Phrase(NOUN[ko], relative=clause) for ko, clause in (("남자", met), ("여자", reads))
    )
    assert render(VERBS["보다"], ("topic", man), ("object", woman)) == (
        "내가 만난 남자는 책 두 권을 읽는 여자를 봤다.",
        "The man that I met saw the woman who reads two books.",
    )
    song = Phrase(NOUN["노래"], relative=Clause(VERBS["듣다"], (("subject", MINSU),)))
    assert render(VERBS["쓰다"], ("topic", YUNA), ("object", song)) == (
        "유나는 민수가 들은 노래를 썼다.",
        "Yuna wrote the song that Minsu listened to.",
    )


def test_english_fronts_the_argument_of_a_question():
    who, what = Phrase(WHO), Phrase(WHAT)
    many = Phrase(NOUN["책"], number=HOW_MANY, floating=True)
    give = VERBS["주다"]
    assert render(
        give, ("subject", who), ("recipient", YUNA), ("object", BOOKS), question=True
    ) == (
        "누가 유나에게 책 두 권을 줬니?",
        "Who gave two books to Yuna?",
    )
    assert render(
        give, ("topic", MINSU), ("recipient", who), ("object", BOOKS), question=True, style="polite"
    ) == ("민수는 누구에게 책 두 권을 줬어요?", "Who did Minsu give two books to?")
    assert render(
        give, ("topic", MINSU), ("recipient", YUNA), ("object", many), question=True, style="formal"
    ) == ("민수는 유나에게 책을 몇 권 줬습니까?", "How many books did Minsu give to Yuna?")
    assert render(VERBS["듣다"], ("topic", MINSU), ("object", what), question=True) == (
        "민수는 무엇을 들었니?",
        "What did Minsu listen to?",
    )


def test_existence_identity_and_knowledge_have_irregular_negatives():
    room = Phrase(NOUN["방"])
    assert render(THERE, ("location", room), ("existent", DOG), negative="long") == (
        "방에 개가 없었다.",
        "There was no dog in the room.",
    )
    assert render(BE_AT, ("topic", DOG), ("location", room), tense="present") == (
        "개는 방에 있다.",
        "The dog is in the room.",
    )
    artist = ("complement", Phrase(NOUN["화가"]))
    assert render(BE, ("topic", MINSU), artist, tense="present", style="polite") == (
        "민수는 화가예요.",
        "Minsu is an artist.",
    )
    assert render(BE, ("topic", MINSU), artist, negative="long", question=True) == (
        "민수는 화가가 아니었니?",
        "Was Minsu not an artist?",
    )
    assert render(
        VERBS["알다"], ("topic", MINSU), ("object", YUNA), tense="present", negative="short"
    ) == ("민수는 유나를 모른다.", "Minsu does not know Yuna.")
