"""Generation settings of transformers as a DecodingConfig.

A field is applied (APPLIED), without influence on the best hypothesis (NO_INFLUENCE), or refused
unless it is off (OFF): UserError(CHECKPOINT) that names it. All others are listed in a warning.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from seq2seq.config.decoding_config import DecodingConfig
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.model.config import ModelConfig
from seq2seq.pretrained.json_fields import SHOWN, JsonFields, read_json

# Fields of generation_config.json (or config.json, where older versions of transformers put them).
APPLIED = {
    "num_beams", "early_stopping", "length_penalty", "renormalize_logits", "no_repeat_ngram_size",
    "max_length", "max_new_tokens", "min_length", "min_new_tokens", "bad_words_ids",
    "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id",
    "eos_token_id", "decoder_start_token_id", "pad_token_id", "bos_token_id",
}  # fmt: skip
NO_INFLUENCE = {
    "_from_model_config", "_commit_hash", "transformers_version", "use_model_defaults",
    # What is returned besides the best hypothesis.
    "num_return_sequences", "return_dict_in_generate", "output_scores", "output_logits",
    "output_attentions", "output_hidden_states",
    # Of sampling, which do_sample turns on.
    "temperature", "top_k", "top_p", "top_h", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff",
    # How the same values are computed.
    "use_cache", "cache_implementation", "cache_config", "return_legacy_cache", "low_memory",
    "max_cache_len", "prefill_chunk_size", "compile_config", "disable_compile",
    "remove_invalid_values", "continuous_batching_config",
    # Drafts by a smaller model or from the source, which the model verifies.
    "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "assistant_confidence_threshold", "assistant_early_exit", "assistant_lookbehind",
    "target_lookbehind", "prompt_lookup_num_tokens", "max_matching_ngram_size",
}  # fmt: skip
OFF = {  # expected: absent, null, or this value
    "do_sample": False, "num_beam_groups": 1, "diversity_penalty": 0.0, "penalty_alpha": 0.0,
    "repetition_penalty": 1.0, "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0, "guidance_scale": 1.0,
    "force_words_ids": [], "constraints": [],
    "sequence_bias": {}, "exponential_decay_length_penalty": None,
    "stop_strings": None, "watermarking_config": None, "token_healing": False,
}  # fmt: skip
# decoding.stop for each value of early_stopping.
STOPS: dict[str | bool, str] = {"never": "bound", False: "full", True: "now"}
NEW_TOKENS = 20  # of an output where no length is set


def generation_fields(directory: Path, config: JsonFields) -> JsonFields:
    """The generation settings: those of generation_config.json if it exists, otherwise those of
    config.json, never both."""
    path = directory / "generation_config.json"
    if path.exists():
        content = read_json(path)
        return JsonFields(path, {name: v for name, v in content.items() if v is not None})
    if config.boolean("force_bos_token_to_be_generated", False):
        return config.updated({"forced_bos_token_id": config.get("bos_token_id")})
    return config


def unknown_settings(directory: Path) -> Iterator[str]:
    """A warning that names the fields of generation_config.json that have no meaning here."""
    path = directory / "generation_config.json"
    content = read_json(path) if path.exists() else {}
    known = {*APPLIED, *NO_INFLUENCE, *OFF}
    unknown = [
        f"{name}={v!r}"[:SHOWN]
        for name, v in content.items()
        if name not in known and v is not None
    ]
    if unknown:
        yield (
            f"warning: {path}: {', '.join(unknown)} is unknown and not applied; translations can "
            "differ from those of transformers"
        )


def decoding_of(fields: JsonFields, model: ModelConfig, target: Tokenizer) -> DecodingConfig:
    """The decoding defaults, which give the best hypothesis of transformers.

    Except for padding, which is never generated here.
    """
    stop = fields.get("early_stopping") or False
    if not isinstance(stop, str | bool) or stop not in STOPS:
        fields.refuse("early_stopping", 'true, false or "never"')
    decoding = common_decoding(fields, model, target, 0)
    longest = decoding.max_length or NEW_TOKENS
    suppress = decoding.suppress.split()
    if target.id_of(pad := target.piece(model.pad_id)) == model.pad_id and pad not in suppress:
        suppress.append(pad)
    return replace(
        decoding,
        stop=STOPS[stop],
        forced_end=fields.get("forced_eos_token_id") is not None,
        max_length=longest,
        max_extra_length=longest,
        min_length=min(decoding.min_length, longest),
        suppress=" ".join(suppress),
    )


def common_decoding(
    fields: JsonFields, model: ModelConfig, target: Tokenizer, extra_length: int
) -> DecodingConfig:
    """The decoding defaults of generation settings, except for those whose meaning depends on the
    family: the rule that stops a search, the forced end and the default length."""
    for field, off in OFF.items():
        if fields.get(field) not in (None, off):
            fields.refuse(field, f"{off!r} or no such field")
    if fields.get("forced_eos_token_id") not in (None, model.end_id):
        fields.refuse("forced_eos_token_id", f"eos_token_id, {model.end_id}, or no such field")
    beam_size, penalty, ngram = 1, 1.0, 0
    if fields.get("num_beams") is not None:
        beam_size = fields.integer("num_beams", "decoding.beam_size")
    if fields.get("no_repeat_ngram_size") is not None:
        ngram = fields.integer("no_repeat_ngram_size", "decoding.no_repeat_ngram", 0)
    if ngram == 1:  # there the start token counts too, here it does not
        fields.refuse("no_repeat_ngram_size", "0, at least 2, or no such field")
    min_length, max_length = _lengths(fields)
    if fields.get("length_penalty") is not None:
        penalty = fields.number("length_penalty", "decoding.alpha", 1.0)
    return DecodingConfig(
        beam_size=beam_size,
        alpha=penalty,
        power_penalty=True,
        max_extra_length=extra_length,
        max_length=max_length,
        min_length=min_length,
        no_repeat_ngram=ngram,
        forced_prefix=_forced_piece(fields, target, model.end_id),
        suppress=" ".join(_suppressed_pieces(fields, target, model.end_id)),
        suppress_first=" ".join(_pieces(fields, "begin_suppress_tokens", target)),
        renormalize=fields.boolean("renormalize_logits", False),
    )


def _lengths(fields: JsonFields) -> tuple[int, int]:
    """The minimum and maximum length, 0 without one.

    Ours count the end token and not the start token. `max_length` counts both, `min_length` counts
    the start token only, and `min_new_tokens` neither.
    """
    shortest = longest = 0
    if fields.get("max_new_tokens") is not None:
        longest = fields.integer("max_new_tokens", "decoding.max_length")
    elif fields.get("max_length") is not None:
        longest = fields.integer("max_length", "decoding.max_length", minimum=2) - 1
    if fields.get("min_new_tokens") is not None:  # takes precedence
        fewest = fields.integer("min_new_tokens", "decoding.min_length", 0)
        shortest = fewest + 1 if fewest else 0
    elif fields.get("min_length") is not None:
        shortest = fields.integer("min_length", "decoding.min_length", 0)
    return min(shortest, longest or shortest), longest


def _forced_piece(fields: JsonFields, target: Tokenizer, end_id: int) -> str:
    """The piece of forced_bos_token_id, empty without one."""
    token = fields.get("forced_bos_token_id")
    if token is None:
        return ""
    if type(token) is not int or not 0 <= token < target.size or token == end_id:
        fields.refuse("forced_bos_token_id", f"an id below {target.size} other than eos_token_id")
    return _piece(fields, "forced_bos_token_id", target, token)


def _piece(fields: JsonFields, field: str, target: Tokenizer, token: int) -> str:
    """The piece of an id in a field; options list pieces by name, separated by spaces."""
    piece = target.piece(token)
    if target.id_of(piece) != token or piece != "".join(piece.split()):
        fields.refuse(field, "ids of pieces without spaces")
    return piece


def _pieces(fields: JsonFields, field: str, target: Tokenizer, never: int = -1) -> list[str]:
    """The pieces of a list of ids that the target vocabulary has; the id `never` is refused."""
    ids = fields.get(field) or []
    if not isinstance(ids, list) or not all(type(i) is int and i >= 0 and i != never for i in ids):
        without = "" if never < 0 else f" without eos_token_id, {never}"
        fields.refuse(field, f"a list of ids{without}")
    return [_piece(fields, field, target, token) for token in ids if token < target.size]


def _suppressed_pieces(fields: JsonFields, target: Tokenizer, end_id: int) -> Iterable[str]:
    """The pieces of bad_words_ids and suppress_tokens that the target vocabulary has. The end token
    as a bad word has no effect, as in transformers."""
    words = fields.get("bad_words_ids") or []
    if not isinstance(words, list) or not all(isinstance(ids, list) for ids in words):
        fields.refuse("bad_words_ids", "a list of lists of one id")
    for ids in words:
        if len(ids) != 1 or type(ids[0]) is not int or ids[0] < 0:
            fields.refuse("bad_words_ids", "lists of one id each, at least 0")
    tokens = [ids[0] for ids in words if ids[0] < target.size and ids[0] != end_id]
    pieces = [_piece(fields, "bad_words_ids", target, token) for token in tokens]
    return dict.fromkeys([*pieces, *_pieces(fields, "suppress_tokens", target, end_id)])
