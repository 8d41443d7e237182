"""Languages of a multilingual tokenizer: codes in the texts of its pieces, and ids of codes."""

import re
from collections.abc import Mapping

from seq2seq.model.options import closest_names, letter_similarity
from seq2seq.runtime.errors import CONFIGURATION, UserError

# __de__ of M2M-100, <2de> of MADLAD, deu_Latn or de_DE of NLLB and mBART; <mask> is no language.
PIECE = re.compile(r"__(?P<m2m>.+)__|<2(?P<madlad>[\w-]+)>|(?P<plain>[^<>\[\]]+)", re.DOTALL)
# The pieces of a SentencePiece model that stand for a language or a sentinel, of any type.
IN_MODEL = re.compile(r"<2[\w-]+>|<extra_id_\d+>")


def languages_of(special: Mapping[str, int]) -> dict[str, int]:
    """The ids of the special pieces that name a language, by its code."""
    matches = [(PIECE.fullmatch(piece), i) for piece, i in special.items()]
    return {match[match.lastgroup or 0]: i for match, i in matches if match}


def language_id(
    languages: Mapping[str, int], code: str, option: str, error_code: int = CONFIGURATION
) -> int:
    """The id of a language's code. UserError(error_code) that names `option` and the nearest codes
    if it is unknown."""
    if code in languages:
        return languages[code]
    if not languages:
        raise UserError(
            error_code,
            f"{option}={code!r} is not supported: expected a multilingual model, got one without "
            f"language codes; remove {option}",
        )
    closest = " or ".join(closest_names(code, languages, _similarity))
    hint = f"did you mean {closest}?" if closest else f"codes: {', '.join(languages)}"
    raise UserError(
        error_code,
        f"{option} is unknown: expected one of the {len(languages)} language codes of the model, "
        f"got {code!r}; {hint}",
    )


def _similarity(typed: str, code: str) -> float:
    """That of the letters; 1 for the beginning of a code: kor and kor_Hang."""
    begins = typed and code.lower().startswith(typed.lower())
    return 1.0 if begins else letter_similarity(typed, code)
