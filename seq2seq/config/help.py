"""All config fields as text for --help_config, and the closest fields to an unknown name."""

import re
import shlex
import sys
import textwrap
import traceback
from collections.abc import Iterator
from dataclasses import Field, fields
from typing import Any

from absl import flags

from seq2seq.config.tree import Config
from seq2seq.model.options import Options, closest_names, letter_similarity, rule_texts

WIDTH, INDENT = 100, " " * 6  # of the list
FROM_VOCABULARY = {"model.source_vocab_size", "model.target_vocab_size", "data.vocab_sha256"}
# Names of other toolkits and of everyday use that share no word with the field.
OTHER_NAMES = {
    "training.tokens_per_batch": "batch_size max_tokens batch",
    "training.num_steps": "updates max_update max_updates iterations",
    "training.max_epochs": "epochs epoch num_epochs num_train_epochs max_epoch",
    "training.max_hours": "stop_time_hours max_time time_limit",
    "training.best_metric": "best_checkpoint_metric early_stopping_metric optimized_metric",
    "training.freeze": "fixed_param_names",
    "training.learning_rate": "lr peak_lr",
    "training.accumulate": "update_freq grad_accum gradient_accumulation_steps",
    "training.clip_norm": "max_grad_norm grad_clip",
    "training.checkpoint_every": "save_steps save_interval save_every save_freq",
    "training.eval_every": "eval_steps valid_every validation_freq validate_interval",
    "training.patience": "early_stopping",
    "training.keep": "keep_last_epochs save_total_limit",
    "training.init_from": "finetune pretrained from_pretrained restore_file",
    "model.d_model": "hidden_size hidden_dim embed_dim emb_dim embedding_dim encoder_embed_dim dim "
    "width",
    "model.d_ff": "ffn_dim ffn_size ffn_embed_dim encoder_ffn_embed_dim intermediate_size",
    "model.num_layers": "depth",
    "model.d_k": "d_kv head_dim head_size",
    "model.norm_function": "rms_norm norm_type",
    "model.gated_feed_forward": "is_gated_act feed_forward_proj",
    "model.embedding_norm": "layernorm_embedding",
    "model.relative_buckets": "relative_attention_num_buckets",
    "model.relative_distance": "relative_attention_max_distance",
    "model.tied_embeddings": "share_embeddings share_all_embeddings",
    "model.dtype": "fp16 bf16 amp precision",
    "data.corpus": "train train_data dataset",
    "data.valid": "dev eval_data",
    "data.vocab": "spm sentencepiece spm_model sentencepiece_model",
    "data.source_length": "max_len max_source_positions max_seq_len",
    "data.target_length": "max_target_positions",
    "decoding.beam_size": "num_beams",
    "decoding.alpha": "length_penalty lenpen",
    "decoding.forced_prefix": "forced_bos_token_id",
    "decoding.forced_end": "forced_eos_token_id",
}


def field_list(config: Config) -> str:
    """Every config field as the flag that sets its value in `config`, with type, unit and help."""
    lines = []
    for part in fields(config):
        section = getattr(config, part.name)
        lines += ["", f"config.{part.name}", ""]
        for field in fields(section):
            value = shlex.quote(str(getattr(section, field.name)))
            facts = [
                class_of(field).__name__,
                field.metadata.get("unit", ""),
                *rule_texts(field.metadata).values(),
            ]
            lines.append(f"  --config.{part.name}.{field.name}={value}")
            for paragraph in (", ".join(filter(None, facts)), field.metadata["help"]):
                wrapped = textwrap.wrap(paragraph, WIDTH - len(INDENT))
                lines += [INDENT + line for line in wrapped]
    return "\n".join(lines[1:])


def class_of(field: Field[Any]) -> Any:
    """The type of a field, which is a class: no annotation of a config is a string."""
    return field.type


def explain_config_error(error: Exception) -> str | None:
    """The message for an unknown config field or flag, with the closest fields, and for an error of
    a config file, with its line; None for others."""
    if isinstance(error, flags.UnrecognizedFlagError):
        return _unknown_flag(error)
    if isinstance(error, flags.Error):
        cause = config_file_error(error)
        if cause is None:
            return None
        return _place(cause) + (_unknown_argument(cause) or f"{type(cause).__name__}: {cause}")
    if isinstance(error, AttributeError) and isinstance(error.obj, Options):
        return _place(error) + _unknown_field(f"{error.obj.section}.{error.name}".lstrip("."))
    match = re.search(r"(?:Field |\.)(\w+) (?:not found on|does not exist)", str(error))
    if not match:
        return None
    name = match[1]
    typed = next((a for a in sys.argv if name in a and "config." in a), f"config.{name}")
    return _unknown_field(typed.lstrip("-").split("=")[0].removeprefix("no"))


def config_file_error(error: BaseException | None) -> BaseException | None:
    """The TypeError or ValueError of a config file in the place of which ml_collections raises one
    with its traceback as the text; None if there is none."""
    while error is not None and not str(error).startswith("Error whilst parsing config file"):
        error = error.__context__
    return error and error.__context__


def _place(error: BaseException) -> str:
    """FILE:LINE of a config file in which an error was raised, in front of its message."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [
        f"{frame.filename}:{frame.lineno}: "
        for frame in frames
        if frame.name in ("get_config", "<module>")
    ]
    # None if get_config cannot be called, or is a function of another name.
    return "--config: " + (places[-1] if places else "")


def _unknown_field(typed: str) -> str:
    """The message for the name of a config field or section that does not exist."""
    typed = typed.removeprefix("config.")
    hint = " or ".join(f"config.{name}" for name in closest_fields(typed))
    hint = f"did you mean {hint}? " if hint else ""
    return f"unknown config field config.{typed}; {hint}--help_config lists all fields"


def _unknown_argument(error: BaseException) -> str | None:
    """The message for an unknown argument of a config class; None for other errors."""
    pattern = r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'"
    if match := re.search(pattern, str(error)):
        class_name, argument = match.groups()
        for section in fields(Config):
            if class_name == class_of(section).__name__:
                return _unknown_field(f"{section.name}.{argument}")
    return None


def _unknown_flag(error: flags.UnrecognizedFlagError) -> str | None:
    """The message for a config field without its prefix; None if a flag is closer."""
    names = closest_fields(error.flagname)
    if not names or "Did you mean" in str(error):
        return None
    hint = " or ".join(f"--config.{name}" for name in names)
    return f"unknown flag --{error.flagname}; did you mean {hint}?"


def closest_fields(typed: str) -> list[str]:
    """The fields, as SECTION.NAME, that are about as similar to `typed` as the most similar one."""
    section, _, name = typed.rpartition(".")
    known = dict(_fields_by_path())

    def similarity(_: str, path: str) -> float:
        same_section = section == path.split(".")[0]
        return field_similarity(name, path, known[path]) + 0.1 * same_section

    return closest_names(typed, known, similarity)


def field_similarity(typed: str, path: str, field: Field[Any]) -> float:
    """From 0 to 1.01: how well a field fits a name, by letters, words and the words of its help."""
    if typed in OTHER_NAMES.get(path, "").split():
        return 1.01  # as the same name
    wanted, words = _words(typed), _words(field.name)
    letters = letter_similarity(typed, field.name)
    shared = 2 * len(wanted & words) / (len(wanted) + len(words))
    explained = len(wanted & (words | _words(field.metadata["help"]))) / len(wanted)
    explained *= 0.75 if wanted & words else 0.55
    return max(letters, shared, explained) + 0.01 * letters  # letters decide between equals


def _words(text: str) -> set[str]:
    """The words of a name or a text, without the plural s."""
    return {word.removesuffix("s") for word in re.findall(r"[^\W_]{2,}", text.lower())} or {text}


def _fields_by_path() -> Iterator[tuple[str, Field[Any]]]:
    """SECTION.NAME and field of the whole config, without the fields that training sets."""
    for section in fields(Config):
        for field in fields(class_of(section)):
            path = f"{section.name}.{field.name}"
            if path not in FROM_VOCABULARY:
                yield path, field
