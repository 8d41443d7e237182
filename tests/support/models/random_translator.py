"""A Translator of a random model, so that hypotheses differ and every option has an effect.

Each set of options is a program to compile; tests use the same sets where they can.
"""

from seq2seq.config.tree import DecodingConfig
from seq2seq.data.tokenizers.list_tokenizer import ListTokenizer
from seq2seq.decoding.translator import Translator
from seq2seq.model.config import ModelConfig
from seq2seq.runtime.control import Control
from tests.support.models.random_parameters import random_params
from tests.support.tiny import WORDS

LINES = ["eins zwei drei", "", "vier", "elf zehn neun acht sieben", "fünf fünf", "sechs"]
OPTIONS = dict(beam_size=3, nbest=3, batch_size=3, max_extra_length=6, suppress="<pad> <s> <unk>")
# An ensemble with all rules that change scores, and some that restrict the choice of tokens.
ALL_RULES = dict(seeds=(1, 2), weights=(0.3, 0.7), repetition_penalty=1.6, renormalize=True,
                 no_repeat_ngram=3, min_length=4, suppress="<pad> <s> <unk> vier")  # fmt: skip


def translator_of(
    seeds=(0,),
    longest=16,
    weights=None,
    control=Control(),  # noqa: B008 – immutable
    layers=1,
    unused=0,
    **options,
):
    """An ensemble of a model for each seed, with OPTIONS and `options`; sources have at most
    `longest` tokens, and the vocabulary has so many `unused` ids."""
    words = ListTokenizer("words", "\n".join(WORDS).encode())
    config = ModelConfig(
        d_model=32,
        d_ff=64,
        num_heads=2,
        num_layers=layers,
        max_length=longest,
        source_vocab_size=words.size + unused,
        target_vocab_size=words.size + unused,
    )
    decoding = DecodingConfig(**(OPTIONS | options))
    models = [config] * len(seeds)
    translator = Translator(models, (words, words), decoding, weights, control=control)
    translator.use(*(random_params(config, seed) for seed in seeds))
    return translator


def texts_of(translations):
    """The texts of the best hypotheses."""
    return [translation.text for translation in translations]


def scored(translator, pairs):
    """The teacher-forced pass over each pair of texts; None if both are blank."""
    return [translation.hypotheses[0].scored for translation in translator.score(pairs)]
