"""The verbs, adjectives and adverbs of the built-in corpus and their selectional restrictions.

A row is `Korean English/irregular-past objects…`. `:ㅂ` after a Korean word is its conjugation
class, if the form of the stem does not determine it (as for ㄹ, 으, 하). `wait+for` is a verb with
its preposition. Objects are kinds of nouns or single nouns.
"""

from seq2seq.data.korean.lexicon import Adjective, Adverb, Verb, parse_table, regular_past


def _verbs(table: str, state: bool = False, negative: str = "") -> list[Verb]:
    """Rows `먹다 eat/ate food`: dictionary form, English, plausible objects."""
    verbs = []
    for ko, en, *takes in parse_table(table):
        ko, _, irregular = ko.partition(":")
        en, _, preposition = en.partition("+")
        en, _, past = en.partition("/")
        past = past or regular_past(en)
        verbs.append(Verb(ko, irregular, en, past, preposition, tuple(takes), state, negative))
    return verbs


TRANSITIVE = [
    *_verbs("""
        먹다 eat/ate food, 마시다 drink/drank drink, 읽다 read/read text
        듣다:ㄷ listen+to 노래 음악 라디오
        사다 buy/bought food drink text thing clothes, 팔다 sell/sold food drink text thing clothes
        쓰다 write/wrote 책 소설 편지 노래, 그리다 draw/drew person animal 꽃 나무 그림 사과 집 학교
        보다 see/saw person animal art thing vehicle
        찾다 find/found person animal thing text clothes
        만나다 meet/met person name relative, 돕다:ㅂ help person name relative
        부르다:르 call person name relative animal, 기다리다 wait+for person name relative 버스 기차
        만들다 make/made food thing clothes, 고르다:르 choose/chose clothes text thing art
        열다 open 가방 상자 문 편지, 닫다 close 가방 상자 문 책, 씻다 wash 컵 접시 사과 감자 칼
        요리하다 cook 밥 고기 생선 국 감자 계란, 자르다:르 cut/cut 사과 빵 고기 종이 케이크 나무
        배우다 learn study 노래, 공부하다 study study, 청소하다 clean building area
        입다 wear/wore 코트 치마, 벗다 take/took+off clothes, 받다 receive text art 꽃 열쇠
        짓다:ㅅ build/built building, 타다 ride/rode 버스 기차 자전거 말, 잡다 catch/caught animal
        물다 bite/bit person animal name, 쫓다 chase animal person"""),
    *_verbs(
        """
        좋아하다 like person name animal food drink text art study clothes
        싫어하다 hate person name animal food drink study, 사랑하다 love person name relative animal
        """,
        state=True,
    ),
    *_verbs("알다 know/knew person name relative 노래 study", state=True, negative="모르다"),
]
# Verbs also used with any subject and object, so that only the particles mark the roles.
UNRESTRICTED = [
    verb
    for verb in TRANSITIVE
    if verb.ko
    in """
    먹다 보다 만나다 돕다 부르다 찾다 그리다 물다 쫓다 좋아하다 싫어하다 사랑하다 씻다 사다
    """.split()
]
DATIVE = _verbs("""
    주다 give/gave food drink text thing clothes 사진, 보내다 send/sent text 꽃 사진 그림 코트
    보여주다 show text art thing clothes, 빌려주다 lend/lent text clothes vehicle 펜 우산 카메라
    가르치다 teach/taught study 노래""")
INTRANSITIVE = _verbs("""
    자다 sleep/slept, 울다 cry, 웃다 laugh, 걷다:ㄷ walk, 뛰다 run/ran, 쉬다 rest, 놀다 play
    일하다 work, 노래하다 sing/sang, 춤추다 dance""")
MOTION = [
    *_verbs("""
        가다 go/went+to building area city, 오다 come/came+to building area city
        돌아가다 return+to building area city, 들어가다 go/went+into building area
        앉다 sit/sat+on 의자 책상 상자"""),
    *_verbs("살다 live+in city 집", state=True),
]
WEATHER = _verbs("비가_오다 rain, 눈이_오다 snow")
BECOME = Verb("되다", "", "become", "became", state=True)
BE = Verb("이다", "이", "be", "was", state=True, negative="아니다")
BE_AT, THERE, HAVE = (
    Verb("있다", "", en, past, state=True, negative="없다")
    for en, past in (("be", "was"), ("there", "was"), ("have", "had"))
)


def _adjectives(describes: str, table: str) -> list[Adjective]:
    """Rows `크다 big/bigger`; the default comparative is `more …`."""
    adjectives = []
    for ko, en in parse_table(table):
        ko, _, irregular = ko.partition(":")
        en, _, comparative = en.partition("/")
        comparative = comparative or "more " + en
        adjectives.append(Adjective(ko, irregular, en, comparative, tuple(describes.split())))
    return adjectives


ADJECTIVES = [
    *_adjectives(
        "person name relative animal",
        """
        행복하다 happy/happier, 슬프다 sad/sadder, 바쁘다 busy/busier, 아프다 sick/sicker
        피곤하다 tired, 친절하다 kind/kinder""",
    ),
    *_adjectives("person", "젊다 young/younger, 유명하다 famous"),
    *_adjectives("person animal thing clothes building art", "예쁘다 pretty/prettier"),
    *_adjectives("thing clothes building area", "아름답다:ㅂ beautiful"),
    *_adjectives("animal thing clothes vehicle 사과 집", "크다 big/bigger, 작다 small/smaller"),
    *_adjectives("thing animal text", "무겁다:ㅂ heavy/heavier, 가볍다:ㅂ light/lighter"),
    *_adjectives("food drink", "맛있다 delicious, 차갑다:ㅂ cold/colder, 뜨겁다:ㅂ hot/hotter"),
    *_adjectives(
        "text art study",
        """
        재미있다 interesting, 어렵다:ㅂ difficult, 쉽다:ㅂ easy/easier""",
    ),
    *_adjectives("소설 편지 영화 노래 치마 코트", "길다 long/longer, 짧다 short/shorter"),
    *_adjectives("food drink text thing clothes vehicle", "비싸다 expensive, 싸다 cheap/cheaper"),
    *_adjectives("vehicle animal", "빠르다:르 fast/faster, 느리다 slow/slower"),
    *_adjectives("thing clothes vehicle", "빨갛다:ㅎ red/redder, 하얗다:ㅎ white/whiter"),
    *_adjectives("weather text art food drink", "좋다 good/better, 나쁘다 bad/worse"),
    *_adjectives("weather", "춥다:ㅂ cold/colder, 덥다:ㅂ hot/hotter"),
]


def _adverbs(table: str) -> list[Adverb]:
    return [Adverb(*row) for row in parse_table(table)]


NOW, DAILY, YESTERDAY, TODAY, TOMORROW = _adverbs(
    "지금 now, 매일 every_day, 어제 yesterday, 오늘 today, 내일 tomorrow"
)
WEEKDAYS = _adverbs("""
    월요일에 on_Monday, 수요일에 on_Wednesday, 금요일에 on_Friday, 일요일에 on_Sunday""")
PARTS = _adverbs("""
    아침에 in_the_morning, 오후에 in_the_afternoon, 저녁에 in_the_evening, 밤에 at_night""")
CLOCK = [
    Adverb(f"{ko} 시에", f"at {en} o'clock")
    for ko, en in parse_table("""
    한 one, 두 two, 세 three, 네 four, 다섯 five, 여섯 six, 일곱 seven, 여덟 eight, 아홉 nine
    열 ten""")
]
MANNERS = _adverbs("빨리 quickly, 천천히 slowly, 조용히 quietly, 혼자 alone, 다시 again")
FREQUENCIES = _adverbs("항상 always, 자주 often, 가끔 sometimes")
WHEN, WHY = _adverbs("언제 when, 왜 why")
DAYS = {
    "past": [YESTERDAY, TODAY, *WEEKDAYS],
    "present": [DAILY],
    "future": [TODAY, TOMORROW, *WEEKDAYS],
}
