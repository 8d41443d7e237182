"""The tokenizers of directories of transformers, one function for each layout of files.

`rows` is the number of rows of the embedding. A tokenizer may have fewer ids, which the model must
not generate; ids that the model does not have are dropped. A SentencePiece model is preferred to a
tokenizer.json.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from seq2seq.data.tokenizers.byte_tokenizer import SENTINELS, ByteTokenizer
from seq2seq.data.tokenizers.json_tokenizer import JsonTokenizer, byte_level_document, with_rows
from seq2seq.data.tokenizers.languages import IN_MODEL, languages_of
from seq2seq.data.tokenizers.marian_tokenizer import M2MTokenizer
from seq2seq.data.tokenizers.offset_tokenizer import OffsetTokenizer
from seq2seq.data.tokenizers.sentencepiece_model import USER_DEFINED, read_pieces
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.pretrained.json_fields import JsonFields, read_bytes, read_json
from seq2seq.pretrained.language_codes import M2M_CODES, MBART_25, MBART_50
from seq2seq.runtime.errors import CHECKPOINT, UserError

T5_MODEL, FAIRSEQ_MODEL = "spiece.model", "sentencepiece.bpe.model"
CONFIG, JSON, SPECIAL_MAP = "tokenizer_config.json", "tokenizer.json", "special_tokens_map.json"
ADDED = "added_tokens.json"  # of transformers before 4.34: only the tokens that were appended
FILES = CONFIG, JSON, SPECIAL_MAP, ADDED  # that any family may have, beside its vocabulary
FAIRSEQ = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
T5_SENTINELS, MOST_SENTINELS = 100, 1000
PEGASUS_OFFSET = 103
PEGASUS = {"<pad>": 0, "</s>": 1, "<mask_1>": 2, "<mask_2>": 3} | {
    f"<unk_{k}>": k + 2 for k in range(2, PEGASUS_OFFSET)
}
BART_SPECIAL = (*FAIRSEQ, "<mask>")
ANY_FAMILY = "PreTrainedTokenizer", "TokenizersBackend"  # classes that name no family


def load_t5_tokenizer(directory: Path, rows: int) -> Tokenizer:
    """T5, mT5, umT5, FLAN-T5 and MADLAD: the ids of spiece.model, then T5's sentinels.

    <extra_id_0> is the last id. In a text, a sentinel and a language (<2de>) are text, also if
    the model has them as pieces; `id_of` finds both.
    """
    if _only_json(directory, T5_MODEL):
        return load_json_tokenizer(directory, rows)
    model, pieces, unknown = _read_model(directory / T5_MODEL, rows)
    special = {p: i for i, (p, text) in enumerate(pieces) if not text or IN_MODEL.fullmatch(p)}
    special["<unk>"] = unknown
    count = tokenizer_fields(directory).get("extra_ids", T5_SENTINELS)
    if type(count) is not int or not 0 <= count <= MOST_SENTINELS:
        tokenizer_fields(directory).refuse("extra_ids", f"an integer from 0 to {MOST_SENTINELS}")
    declared = _declared(directory, model)
    listed = declared if _lists_all(directory) else ()
    if not any(map(IN_MODEL.fullmatch, (*special, *listed))):
        last = len(pieces) + count - 1
        special |= {f"<extra_id_{k}>": last - k for k in range(count)}
    return _offset_tokenizer(directory / T5_MODEL, model, 0, special | declared, rows)


def load_nllb_tokenizer(directory: Path, rows: int) -> Tokenizer:
    """NLLB: fairseq's ids, then the codes that a file lists. Refused without the list."""
    return _load_fairseq(directory, rows, ())


def load_mbart_tokenizer(directory: Path, rows: int) -> Tokenizer:
    """mBART and mBART-50: fairseq's ids, then 25 or 52 codes, then <mask>."""
    fifty = "MBart50" in str(tokenizer_fields(directory).get("tokenizer_class", ""))
    return _load_fairseq(directory, rows, MBART_50 if fifty else MBART_25, MBART_50)


def load_pegasus_tokenizer(directory: Path, rows: int) -> Tokenizer:
    """Pegasus: two special tokens, two masks, 101 reserved pieces, then those of spiece.model."""
    if _only_json(directory, T5_MODEL):
        return load_json_tokenizer(directory, rows)
    tokenizer_fields(directory).require("offset", PEGASUS_OFFSET)
    model, _, unknown = _read_model(directory / T5_MODEL, rows, PEGASUS_OFFSET)
    declared = _declared(directory, model, PEGASUS_OFFSET)
    special = PEGASUS | {"<unk>": unknown + PEGASUS_OFFSET} | declared
    return _offset_tokenizer(directory / T5_MODEL, model, PEGASUS_OFFSET, special, rows)


def load_m2m_tokenizer(directory: Path, rows: int) -> M2MTokenizer:
    """M2M-100 and WMT21: vocab.json, then the codes."""
    path = directory / "vocab.json"
    vocabulary = read_json(path)
    declared = _declared(directory)
    if not languages_of(declared) or not _lists_all(directory):
        fields = tokenizer_fields(directory)
        name = fields.get("language_codes", "m2m100")
        if not isinstance(name, str) or name not in M2M_CODES:
            fields.refuse("language_codes", " or ".join(M2M_CODES))
        codes = [f"__{code}__" for code in M2M_CODES[name]]
        declared = {code: len(vocabulary) + i for i, code in enumerate(codes)} | declared
    with _damage(path):
        ids = {p: i for p, i in (vocabulary | declared).items() if type(i) is not int or i < rows}
        return M2MTokenizer(read_bytes(directory / FAIRSEQ_MODEL), ids)


def load_byte_tokenizer(directory: Path, rows: int) -> ByteTokenizer:
    """ByT5, which has no file of a vocabulary."""
    fields = tokenizer_fields(directory)
    if fields.get("extra_ids", 0) not in (0, SENTINELS):  # transformers writes 0 for its 125
        fields.refuse("extra_ids", f"0 or {SENTINELS}")
    tokenizer = ByteTokenizer()
    if rows < tokenizer.size:
        raise _too_small(directory, tokenizer.size, rows)
    return tokenizer


def load_byte_level_tokenizer(directory: Path, rows: int) -> JsonTokenizer:
    """BART: byte-level BPE from vocab.json and merges.txt, otherwise from tokenizer.json."""
    path = directory / "vocab.json"
    if _only_json(directory, "vocab.json"):
        return load_json_tokenizer(directory, rows)
    vocabulary = read_json(path)
    merges = read_bytes(directory / "merges.txt")
    prefix_space = tokenizer_fields(directory).boolean("add_prefix_space", False)
    declared = _declared(directory)
    with _damage(path):
        text = merges.decode("utf-8")
        special = {*BART_SPECIAL, *declared}
        document = byte_level_document(vocabulary | declared, text, special, prefix_space)
        return JsonTokenizer(with_rows(document, rows))


def load_json_tokenizer(directory: Path, rows: int) -> JsonTokenizer:
    """A directory whose only vocabulary is tokenizer.json."""
    path = directory / JSON
    document = read_json(path)
    byte_level = "ByteLevel" in repr(document.get("pre_tokenizer"))
    if document.get("normalizer") is None and not byte_level:
        raise UserError(
            CHECKPOINT,
            f"{path}: normalizer=null is not supported: expected the normalisation of the "
            "SentencePiece model, got none, so that characters such as … are unknown; add the "
            "original model (*.model) to the directory",
        )
    with _damage(path):
        return JsonTokenizer(with_rows(document, rows))


def _load_fairseq(
    directory: Path, rows: int, codes: Sequence[str], longer: Sequence[str] = ()
) -> Tokenizer:
    """NLLB and mBART. Where no file has the ids of codes, `codes` begin the languages, or `longer`
    if they fit the rows; without `codes` those of a file without ids."""
    if _only_json(directory, FAIRSEQ_MODEL):
        tokenizer: Tokenizer = load_json_tokenizer(directory, rows)
        languages = tokenizer.languages
    else:
        path = directory / FAIRSEQ_MODEL
        model, pieces, _ = _read_model(path, rows, 1)
        declared = _declared(directory, model, 1)
        appended = {} if _lists_all(directory) else declared
        if appended or not languages_of(declared):
            end = min(appended.values(), default=rows)  # the first id behind <mask>
            fits = end == len(pieces) + len(longer) + 2
            named = [name for name in _named(directory) if languages_of({name: 0})]
            codes = longer if fits or (longer and set(longer) <= set(named)) else codes
            # Codes that a family does not have were added to it, behind <mask>.
            named = [name for name in named if name not in appended]
            names = [*(codes or named), "<mask>"] if codes or named else []
            names += [name for name in named if name not in names]
            declared = {code: len(pieces) + 1 + i for i, code in enumerate(names)} | declared
        languages = languages_of(declared)
        if appended and min(languages.values(), default=0) > len(pieces) + 2:  # not the first ones
            languages = {}
        tokenizer = _offset_tokenizer(path, model, 1, FAIRSEQ | declared, rows)
    if not languages:
        raise UserError(
            CHECKPOINT,
            f"{directory} lists no language codes: expected them in {JSON}, {CONFIG} "
            f"(added_tokens_decoder) or {SPECIAL_MAP}; download these files of the model too",
        )
    return tokenizer


def _declared(directory: Path, model: bytes = b"", offset: int = 0) -> dict[str, int]:
    """The special tokens with the ids that the files state (`_lists_all`); empty without such a
    file.

    A token that is not special is refused unless it is a user-defined piece of the SentencePiece
    `model` with the same id, its own plus `offset`: the model splits a text at it, as transformers
    does.
    """
    path, entries = directory / CONFIG, tokenizer_fields(directory).get("added_tokens_decoder")
    if isinstance(entries, dict) and entries:
        tokens = [(i, token) for i, token in entries.items()]
    elif (path := directory / JSON).exists():
        entries = read_json(path).get("added_tokens") or []
        tokens = [(token.get("id"), token) for token in entries if isinstance(token, dict)]
    elif (path := directory / ADDED).exists():
        known = _named(directory)
        tokens = [(i, {"content": p, "special": p in known}) for p, i in read_json(path).items()]
    else:
        return {}
    special, plain = dict[str, int](), dict[str, int]()
    with _damage(path):
        for i, token in tokens:
            kind = special if token.get("special", True) else plain
            kind[str(token["content"])] = int(i)
        if min(special.values(), default=0) < 0:
            raise ValueError("an added token has a negative id")
    if plain:
        pieces = enumerate(read_pieces(model), offset)
        user_defined = {piece.text: i for i, piece in pieces if piece.type == USER_DEFINED}
        for text, i in plain.items():
            if user_defined.get(text) != i:
                advice = f"; delete these to use {JSON}" if (directory / JSON).exists() else ""
                raise UserError(
                    CHECKPOINT,
                    f"{path}: the added token {text!r} is not special, which is not supported with "
                    f"a SentencePiece model or vocab.json{advice}",
                )
    return special


def _lists_all(directory: Path) -> bool:
    """Whether a file states the ids of all special tokens; ADDED states those of the last ones."""
    entries = tokenizer_fields(directory).get("added_tokens_decoder")
    return bool(isinstance(entries, dict) and entries) or (directory / JSON).exists()


def _named(directory: Path) -> list[str]:
    """The special tokens that special_tokens_map.json names without ids, in their order."""
    path = directory / SPECIAL_MAP
    fields = read_json(path) if path.exists() else {}
    with _damage(path):
        values = [v for x in fields.values() for v in (x if isinstance(x, list) else [x])]
        return [str(v["content"]) if isinstance(v, dict) else str(v) for v in values]


def _offset_tokenizer(
    path: Path, model: bytes, offset: int, special: dict[str, int], rows: int
) -> OffsetTokenizer:
    with _damage(path):
        kept = {piece: i for piece, i in special.items() if i < rows}
        return OffsetTokenizer(model, offset, kept)


def _read_model(
    path: Path, rows: int, offset: int = 0
) -> tuple[bytes, list[tuple[str, bool]], int]:
    """A SentencePiece model, each of its pieces and whether it is text, and its unknown id."""
    from sentencepiece import SentencePieceProcessor

    model, processor = read_bytes(path), SentencePieceProcessor()
    with _damage(path):
        processor.LoadFromSerializedProto(model)
    own = range(processor.get_piece_size())
    if offset + len(own) > rows:
        raise _too_small(path, offset + len(own), rows)
    special = {i for i in own if processor.is_control(i) or processor.is_unknown(i)}
    pieces = [(processor.id_to_piece(i), i not in special) for i in own]
    return model, pieces, processor.unk_id()


def _only_json(directory: Path, name: str) -> bool:
    return not (directory / name).exists() and (directory / JSON).exists()


def tokenizer_fields(directory: Path) -> JsonFields:
    """tokenizer_config.json, which may be missing, with the tokenizer_class of config.json if it
    names none."""
    path, model = directory / CONFIG, directory / "config.json"
    fields = read_json(path) if path.exists() else {}
    if not fields.get("tokenizer_class") and model.exists():
        fields["tokenizer_class"] = read_json(model).get("tokenizer_class")
    return JsonFields(path, fields)


def check_tokenizer_class(directory: Path, classes: Sequence[str]) -> None:
    """UserError(CHECKPOINT) if tokenizer_config.json, or else config.json, names a class other than
    these of the family, without "Fast": it adds other pieces to a text."""
    name = str(tokenizer_fields(directory).get("tokenizer_class") or ANY_FAMILY[0])
    if name.removesuffix("Fast") not in (*classes, *ANY_FAMILY):
        raise UserError(
            CHECKPOINT,
            f"{directory}: tokenizer_class={name!r} is not supported: expected "
            f"{' or '.join(classes)}",
        )


def _too_small(path: Path, pieces: int, rows: int) -> UserError:
    return UserError(
        CHECKPOINT,
        f"{path} does not fit config.json: expected at most vocab_size={rows} ids, got {pieces}",
    )


@contextmanager
def _damage(path: Path) -> Iterator[Any]:
    """Errors of damaged content as UserError(CHECKPOINT) with the file."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise UserError(CHECKPOINT, f"{path} is malformed: {error}") from None
