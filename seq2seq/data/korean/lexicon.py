"""The word classes of the built-in corpus, its nouns and pronouns, and English spelling rules.

A row is `Korean English/irregular-plural counter`. Regular plurals and Korean particles are derived
from the spelling. Verbs, adjectives and adverbs are in predicates.py.
"""

from typing import NamedTuple

VOWELS = "aeiou"


class Noun(NamedTuple):
    ko: str
    en: str
    plural: str  # "" for a mass noun, which has no article and no plural
    kind: str
    counter: str = ""  # 사과 세 개, 책 두 권
    measure: str = ""  # two *glasses* of water; only for mass nouns
    preposition: str = "in"  # of places: *at* the market, *in* the room


class Pronoun(NamedTuple):
    ko: str
    polite: str  # the polite form: 저 for 나
    en: str
    accusative: str
    possessive: str
    kind: str = "pronoun"


class Verb(NamedTuple):
    ko: str
    irregular: str
    en: str
    past: str
    preposition: str = ""  # wait *for*, go *to*
    takes: tuple[str, ...] = ()  # kinds of nouns, or single nouns, that are plausible objects
    state: bool = False  # stative verbs have no progressive
    negative: str = ""  # a suppletive negative verb: 모르다 for 알다


class Adjective(NamedTuple):
    ko: str
    irregular: str
    en: str
    comparative: str
    describes: tuple[str, ...]


class Adverb(NamedTuple):
    ko: str
    en: str


def plural(noun: str) -> str:
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in VOWELS:
        return noun[:-1] + "ies"
    return noun + "s"


def third_person(verb: str) -> str:
    """He *goes*, *washes*, *has*: spelled as a plural, except for have and a final o."""
    if verb == "have":
        return "has"
    return verb + "es" if verb.endswith("o") else plural(verb)


def doubled(verb: str) -> str:
    """run → runn(ing): doubles the final consonant of a short verb that ends in CVC."""
    short = sum(letter in VOWELS for letter in verb) == 1 and len(verb) > 2
    closed = short and verb[-2] in VOWELS and verb[-1] not in VOWELS + "wxy"
    return verb + verb[-1] if closed else verb


def ing(verb: str) -> str:
    silent = verb.endswith("e") and not verb.endswith("ee")
    return (verb[:-1] if silent else doubled(verb)) + "ing"


def regular_past(verb: str) -> str:
    if verb.endswith("y") and verb[-2] not in VOWELS:
        return verb[:-1] + "ied"
    return verb + "d" if verb.endswith("e") else doubled(verb) + "ed"


def parse_table(table: str) -> list[list[str]]:
    """The cells of each row; commas and line ends separate rows, `_` is a space in a cell."""
    rows = [row.split() for row in table.replace("\n", ",").split(",") if row.strip()]
    return [[cell.replace("_", " ") for cell in row] for row in rows]


def _nouns(kind: str, table: str, counter: str = "", preposition: str = "in") -> list[Noun]:
    """Rows `사과 apple`, `아이 child/children`, `책 book 권`, mass nouns `물 water 잔=glass`."""
    nouns = []
    for ko, en, *rest in parse_table(table):
        en, _, irregular = en.partition("/")
        own_counter, _, measure = (rest or [counter])[0].partition("=")
        many = "" if measure else irregular or plural(en)
        nouns.append(Noun(ko, en, many, kind, own_counter, measure, preposition))
    return nouns


NOUNS = [
    *_nouns(
        "person",
        """
        남자 man/men, 여자 woman/women, 아이 child/children, 학생 student, 선생님 teacher
        의사 doctor, 가수 singer, 요리사 chef, 화가 artist, 농부 farmer, 기자 reporter, 왕 king
    """,
        "명",
    ),
    # A relative always has an owner: Minsu's mother.
    *_nouns("relative", "어머니 mother, 아버지 father, 아들 son, 딸 daughter, 친구 friend", "명"),
    *_nouns(
        "animal",
        """
        개 dog, 고양이 cat, 새 bird, 말 horse, 소 cow, 토끼 rabbit, 곰 bear, 코끼리 elephant
        쥐 mouse/mice
    """,
        "마리",
    ),
    *_nouns(
        "food",
        """
        사과 apple, 오렌지 orange, 계란 egg, 감자 potato/potatoes, 케이크 cake, 생선 fish/fish 마리
        밥 rice 그릇=bowl, 국 soup 그릇=bowl, 빵 bread 조각=piece, 고기 meat 조각=piece
    """,
        "개",
    ),
    *_nouns("drink", "물 water 잔=glass, 우유 milk 잔=glass, 커피 coffee 잔=cup, 차 tea 잔=cup"),
    *_nouns("text", "책 book 권, 소설 novel 권, 신문 newspaper 부, 편지 letter 통"),
    *_nouns("art", "그림 picture 장, 사진 photo 장, 영화 movie 편, 노래 song 곡"),
    *_nouns(
        "thing",
        """
        가방 bag, 상자 box, 의자 chair, 책상 desk, 컵 cup, 접시 plate, 칼 knife/knives, 열쇠 key
        시계 clock, 우산 umbrella, 펜 pen 자루, 라디오 radio 대, 카메라 camera 대, 꽃 flower 송이
        나무 tree 그루, 문 door, 종이 paper 장=sheet
    """,
        "개",
    ),
    *_nouns("clothes", "코트 coat, 치마 skirt, 모자 hat 개", "벌"),
    *_nouns("vehicle", "버스 bus, 기차 train, 자동차 car, 자전거 bicycle", "대"),
    *_nouns("building", "학교 school, 은행 bank, 식당 restaurant, 시장 market", preposition="at"),
    *_nouns("building", "도서관 library, 병원 hospital, 집 house"),
    *_nouns("area", "공원 park, 방 room, 부엌 kitchen, 사무실 office, 정원 garden"),
    *_nouns("weather", "날씨 weather"),
]
NAMES = [
    Noun(ko, en, "", "name")
    for ko, en in parse_table(
        "민수 Minsu, 유나 Yuna, 준호 Junho, 민지 Minji, 지훈 Jihun, 수진 Sujin, 서연 Seoyeon"
    )
]
CITIES = [
    Noun(ko, en, "", "city")
    for ko, en in parse_table("서울 Seoul, 부산 Busan, 제주 Jeju, 런던 London")
]
STUDIES = [
    Noun(ko, en, "", "study")
    for ko, en in parse_table("한국어 Korean, 영어 English, 수학 math, 역사 history, 음악 music")
]
PRONOUNS = [
    Pronoun(*row)
    for row in parse_table("""
    나 저 I me my, 너 너 you you your, 우리 우리 we us our
    그 그 he him his, 그녀 그녀 she her her, 그들 그들 they them their""")
]
YOU = PRONOUNS[1]
WHO, WHAT, WHERE = (
    Noun(ko, en, "", "question")
    for ko, en in (("누구", "who"), ("무엇", "what"), ("어디", "where"))
)
