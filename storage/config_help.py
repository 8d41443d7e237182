"""All config fields as text for --help_config, and the closest fields to an unknown name."""

import difflib
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import Field, fields
from typing import Any

from absl import flags

from runtime.options import rule_texts
from storage.config import Config

WIDTH, INDENT = 100, " " * 6  # of the list
FROM_VOCABULARY = {"model.source_vocab_size", "model.target_vocab_size", "data.vocab_sha256"}
SUGGESTIONS = 3  # most fields that a message suggests
CUTOFF = 0.5  # least similarity of a suggestion
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
    "model.tied_embeddings": "share_embeddings share_all_embeddings",
    "model.dtype": "fp16 bf16 amp precision",
    "data.corpus": "train train_data dataset",
    "data.valid": "dev eval_data",
    "data.vocab": "spm sentencepiece spm_model sentencepiece_model",
    "data.subword_sampling": "bpe_dropout",
    "data.source_length": "max_len max_source_positions max_seq_len",
    "data.target_length": "max_target_positions",
    "decoding.beam_size": "num_beams",
    "decoding.alpha": "length_penalty lenpen",
}


def field_list(config: Config) -> str:
    """Every config field as the flag that sets its value in `config`, with type, unit and help."""
    lines = []
    for part in fields(config):
        section = getattr(config, part.name)
        lines += ["", f"config.{part.name}", ""]
        for one in fields(section):
            value = shlex.quote(str(getattr(section, one.name)))
            facts = [
                one.type.__name__,
                one.metadata.get("unit", ""),
                *rule_texts(one.metadata).values(),
            ]
            lines.append(f"  --config.{part.name}.{one.name}={value}")
            for paragraph in (", ".join(filter(None, facts)), one.metadata["help"]):
                wrapped = textwrap.wrap(paragraph, WIDTH - len(INDENT))
                lines += [INDENT + line for line in wrapped]
    return "\n".join(lines[1:])


def unknown_field(error: Exception) -> str | None:
    """The message for an unknown config field or flag, with the closest fields; None for others."""
    if isinstance(error, flags.UnrecognizedFlagError):
        return _unknown_flag(error)
    found = re.search(r"(?:Field |\.)(\w+) (?:not found on|does not exist)", str(error))
    if not found:
        return None
    typed = next((a for a in sys.argv if found[1] in a and "config." in a), f"config.{found[1]}")
    typed = typed.lstrip("-").split("=")[0].removeprefix("no").removeprefix("config.")
    hint = " or ".join(f"config.{name}" for name in closest_fields(typed))
    hint = f"did you mean {hint}? " if hint else ""
    return f"unknown config field config.{typed}; {hint}--help_config lists all fields"


def _unknown_flag(error: flags.UnrecognizedFlagError) -> str | None:
    """The message for a config field without its prefix; None if a flag is closer."""
    names = closest_fields(error.flagname)
    if not names or "Did you mean" in str(error):
        return None
    hint = " or ".join(f"--config.{name}" for name in names)
    return f"unknown flag --{error.flagname}; did you mean {hint}?"


def closest_fields(typed: str) -> list[str]:
    """The fields, as PART.NAME, that are about as similar to `typed` as the most similar one."""
    part, _, name = typed.rpartition(".")
    scores = {
        path: similarity(name, path, one) + 0.1 * (part == path.split(".")[0])
        for path, one in _named_fields()
    }
    ranked = sorted(scores, key=scores.__getitem__, reverse=True)
    least = max(CUTOFF, 0.9 * scores[ranked[0]])
    return [path for path in ranked[:SUGGESTIONS] if scores[path] >= least]


def similarity(typed: str, path: str, one: Field[Any]) -> float:
    """From 0 to 1.01: how well a field fits a name, by letters, words and the words of its help."""
    if typed in OTHER_NAMES.get(path, "").split():
        return 1.01  # as the same name
    wanted, words = _words(typed), _words(one.name)
    letters = difflib.SequenceMatcher(None, typed.lower(), one.name).ratio()
    shared = 2 * len(wanted & words) / (len(wanted) + len(words))
    explained = len(wanted & (words | _words(one.metadata["help"]))) / len(wanted)
    explained *= 0.75 if wanted & words else 0.55
    return max(letters, shared, explained) + 0.01 * letters  # letters decide between equals


def _words(text: str) -> set[str]:
    """The words of a name or a text, without the plural s."""
    return {word.removesuffix("s") for word in re.findall(r"[^\W_]{2,}", text.lower())} or {text}


def _named_fields() -> Iterator[tuple[str, Field[Any]]]:
    """All fields of the config as PART.NAME, without those that training sets."""
    for part in fields(Config):
        for one in fields(part.type):
            path = f"{part.name}.{one.name}"
            if path not in FROM_VOCABULARY:
                yield path, one
