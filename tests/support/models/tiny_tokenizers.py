"""Directories of transformers with small vocabularies, for tests of tokenizers."""

import json
import random
from functools import cache

from tests.support.models.tiny_marian import SENTENCES, sentencepiece
from tests.support.tiny import write_run

T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}  # also those of Pegasus
SPECIALS = ["</s>", "<pad>", "<unk>", "<s>", "<mask>", "<mask_1>", "<unk_7>", "<extra_id_3>"]
CODES = ["pes_Arab", "eng_Latn", "kor_Hang", "ace_Latn"]  # not sorted


@cache
def model(kind="unigram", **options) -> bytes:
    return sentencepiece(SENTENCES, 60, model_type=kind, **options)


def texts(count=200, seed=0):
    """Sentences, words that the models do not have, and strings of random characters."""
    choose = random.Random(seed)
    characters = " abcdehinsEZW.äé나밥犬🐕👍🏽\u200d\u0301ﬁ…Ａ½\u00a0\t\u202e"
    drawn = ["".join(choose.choices(characters, k=choose.randrange(30))) for _ in range(count)]
    return [*SENTENCES[:6], "", "  two   spaces ", *map(str.strip, drawn)]


def spelled():
    """Texts that spell special tokens, languages and sentinels."""
    return [f"Zwei {s}Hunde {s}" for s in (*SPECIALS, *CODES, "__de__", "<2ko>", "en_XX")]


def write(directory, **files):
    """Writes files; `__` in a name stands for a dot, values are bytes, text or JSON."""
    directory.mkdir(exist_ok=True, parents=True)
    for name, content in files.items():
        if not isinstance(content, bytes | str):
            content = json.dumps(content)
        content = content if isinstance(content, bytes) else content.encode()
        (directory / name.replace("__", ".")).write_bytes(content)
    return directory


@cache
def multilingual():
    """A vocabulary with the special ids of ours and codes of three languages, cc written <2cc>."""
    from seq2seq.data.tokenizers.offset_tokenizer import OffsetTokenizer

    names = ["eng_Latn", "kor_Hang", "<2cc>"]
    special = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3}
    return OffsetTokenizer(model(), 1, special | {name: 61 + i for i, name in enumerate(names)})


def write_multilingual_run(path, **data):
    """A run directory with the vocabulary `multilingual` and these fields of config.data."""
    write_run(path, tokenizer=multilingual())
    config = json.loads((path / "config.json").read_text())
    config["data"] |= data
    (path / "config.json").write_text(json.dumps(config))
    return path
