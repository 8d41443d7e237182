"""Decoding defaults as generation settings of transformers: the inverse of generation.py."""

from typing import Any

from seq2seq.config.decoding_config import DecodingConfig
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.model.config import ModelConfig
from seq2seq.pretrained.generation import STOPS

# `exact` has no equal there; "never" is the nearest.
EARLY_STOPPING = {"exact": "never"} | {stop: value for value, stop in STOPS.items()}
# Fields that do not change what is the best hypothesis, or that follow from others.
ENGINE = {"batch_size", "nbest", "horizon", "max_extra_length"}


def generation_settings(
    decoding: DecodingConfig, model: ModelConfig, target: Tokenizer
) -> dict[str, Any]:
    """The fields of generation_config.json without those of a forced beginning.

    The length penalty ((5 + length) / 6)^alpha becomes length^1, and no limit that of the model.
    """
    alpha = decoding.alpha if decoding.power_penalty else float(decoding.alpha > 0)
    suppressed = [*ids_of(decoding.suppress, target), model.pad_id]
    settings: dict[str, Any] = {
        "pad_token_id": model.pad_id,
        "eos_token_id": model.end_id,
        "decoder_start_token_id": model.start_id,
        "num_beams": decoding.beam_size,
        "length_penalty": alpha,
        # Counts the start token, unlike ours.
        "max_length": decoding.max_length + 1 if decoding.max_length else model.max_length,
        "early_stopping": EARLY_STOPPING[decoding.stop],
        "renormalize_logits": decoding.renormalize,
        "bad_words_ids": [[token] for token in dict.fromkeys(suppressed)],
    }
    if decoding.forced_end:
        settings["forced_eos_token_id"] = model.end_id
    if first := ids_of(decoding.suppress_first, target):
        settings["begin_suppress_tokens"] = first
    if decoding.min_length:
        settings["min_length"] = decoding.min_length  # the same number, see `_lengths`
    if decoding.no_repeat_ngram > 1:
        settings["no_repeat_ngram_size"] = decoding.no_repeat_ngram
    return settings


def forced_beginning(pieces: str, target: Tokenizer) -> dict[str, int]:
    """The field for the pieces with which every translation begins: none for several."""
    ids = ids_of(pieces, target)
    return {"forced_bos_token_id": ids[0]} if len(ids) == 1 else {}


def ids_of(pieces: str, tokenizer: Tokenizer) -> list[int]:
    """The ids of pieces that are separated by spaces, without those that do not exist."""
    ids = map(tokenizer.id_of, pieces.split())
    return [token for token in ids if token is not None]
