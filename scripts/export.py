"""Export a model as StableHLO programs, in one file that Python runs without this project.

    python scripts/export.py --workdir=RUN --to=FILE [--platforms=cpu,cuda,tpu] [--buckets=16,32]
    python FILE < source.txt > target.txt
RUN is a run or a directory of a MarianMT model. Every field of config.decoding is a flag, as in
decode.py; those of sampling are refused. Needs pip install -e '.[export]'.
FILE is a zip archive without compression:

    card.json               description of the run and of the files below, for the loader
    programs/BUCKET         jax.export: (parameters, source, lengths) → (tokens, lengths, scores);
                            encoder, beam search and length limits
    parameters/NAME.npy     shared by all programs
    source.model …          SentencePiece models; source.json … the vocabularies of MarianMT
    __main__.py             scripts/load_exported.py, which does not import this project
"""

import io
import json
import sys
import zipfile
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any

import jax
import numpy as np
from absl import flags

if __name__ == "__main__":  # a clone need not be installed
    sys.path.insert(0, str(Path(__file__).parent.parent))

from seq2seq.cli.command import run_command
from seq2seq.cli.path_flags import define_model, define_path
from seq2seq.config.data_config import TEMPLATES
from seq2seq.config.tree import Config
from seq2seq.data.tokenizers.characters import Characters
from seq2seq.data.tokenizers.marian_tokenizer import MarianTokenizer
from seq2seq.data.tokenizers.sentencepiece_tokenizer import BOUNDARY, SentencePieceTokenizer
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.decoding.command.flags import define_options, options_of
from seq2seq.decoding.engine.engine import Engine
from seq2seq.decoding.engine.export import export_program
from seq2seq.decoding.engine.sizes import Machine, sizes_of
from seq2seq.decoding.search_options import EXPORT, check_effect
from seq2seq.decoding.translator import Translator
from seq2seq.files.output_files import check_outputs, open_atomic
from seq2seq.model.inference import inference_variables
from seq2seq.model.platforms import choices_of
from seq2seq.pretrained.model_directory import model_directory
from seq2seq.pretrained.models import (
    current_checkpoint,
    find_params,
    load_params,
    open_model,
    read_current,
)
from seq2seq.runtime.devices import prepare_jax
from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.scripts.load_exported import FORMAT
from seq2seq.storage.run_files import require_finite

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def check_export_flags(
    f: flags.FlagValues, config: Config, tokenizers: tuple[Tokenizer, Tokenizer]
) -> None:
    """UserError for flags and runs that cannot be exported; no parameters are loaded yet."""
    check_effect(options_of(f), EXPORT)
    check_outputs([f.to], f.overwrite)
    unknown = [name for name in f.platforms if name not in PLATFORMS]
    if unknown or not f.platforms:
        raise UserError(
            CONFIGURATION,
            f"--platforms must be a list of {', '.join(PLATFORMS)}, got {','.join(f.platforms)!r}",
        )
    if config.model.kind != "transformer":
        raise UserError(
            CONFIGURATION,
            f"--workdir: model.kind={config.model.kind} cannot be exported: expected transformer; "
            "use decode.py",
        )
    for name in TEMPLATES:
        if getattr(config.data, name):
            raise UserError(
                CONFIGURATION,
                f"--workdir: data.{name}={getattr(config.data, name)!r} cannot be exported: "
                "expected a model without pieces and languages around its texts; use decode.py",
            )
    for tokenizer in tokenizers:
        if not isinstance(tokenizer, SentencePieceTokenizer | MarianTokenizer):
            raise UserError(
                CONFIGURATION,
                f"only SentencePiece vocabularies (unigram, bpe, marian) can be exported, got "
                f"{tokenizer.kind}; use decode.py",
            )
    if config.decoding.samples:
        raise UserError(CONFIGURATION, "sampling cannot be exported; give --samples=0")
    if config.decoding.mbr:
        raise UserError(CONFIGURATION, "decoding.mbr cannot be exported; give --mbr=")
    if not find_spec("flatbuffers"):
        raise UserError(CONFIGURATION, "export needs flatbuffers; pip install -e '.[export]'")


def chosen_buckets(numbers: list[str], engine: Engine) -> list[int]:
    """The buckets of --buckets, or those of the engine without it."""
    longest = engine.buckets[-1]
    if not all(number.isdecimal() and 2 <= int(number) <= longest for number in numbers):
        raise UserError(
            CONFIGURATION,
            f"--buckets must be numbers of source tokens from 2 to {longest}, got "
            f"{','.join(numbers)!r}",
        )
    buckets = sorted(set(map(int, numbers))) or engine.buckets
    if len(engine.forced) >= (limit := engine.limit(buckets[0], 0)):
        raise UserError(
            CONFIGURATION,
            f"--buckets={buckets[0]}: expected more than {len(engine.forced)} tokens of a "
            f"translation, for decoding.forced_prefix and the end, got {limit}; raise it, or "
            "--max_extra_length",
        )
    return buckets


def tokenizer_files(side: str, tokenizer: Tokenizer) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The entry of a tokenizer in card.json, and its files by name in the archive."""
    if isinstance(tokenizer, MarianTokenizer):
        vocabulary = json.dumps(tokenizer.vocabulary, ensure_ascii=False).encode()
        files = {f"{side}.model": tokenizer.model, f"{side}.json": vocabulary}
        return {"model": f"{side}.model", "vocabulary": f"{side}.json"}, files
    assert isinstance(tokenizer, SentencePieceTokenizer)  # check_export_flags
    entry = {"boundary": tokenizer.id_of(BOUNDARY), "tags": sorted(tokenizer.tags)}
    return {"model": f"{side}.model", **entry}, {f"{side}.model": tokenizer.serialized()}


def cleaning(config: Config, source: Tokenizer) -> dict[str, Any]:
    """What is done to a source before it is split, for its entry in card.json."""
    replaced, removed = dict[str, str](), ""
    if config.decoding.clean_source:
        replaced, removed = Characters(source).all_replacements()
    return {"nfc": config.data.nfc, "replaced": replaced, "removed": removed}


def exported(engine: Engine, bucket: int, params: Any, platforms: list[str]) -> tuple[bytes, int]:
    """The serialized program of one bucket, and the number of sentences in a call of it.

    On the first platform its results are bit-identical to those of an engine.
    """
    program, sentences = export_program(engine, bucket)
    tree: Any
    leaves, tree = jax.tree.flatten(params)
    config, bias_in_table = engine.models[0].config, choices_of(platforms[0]).bias_in_table

    def translation(
        leaves: list[jax.Array], source: jax.Array, lengths: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        variables = inference_variables(config, tree.unflatten(leaves), bias_in_table)
        hypotheses = program([variables], source, lengths)
        return hypotheses.tokens, hypotheses.lengths, hypotheses.scores

    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    source = jax.ShapeDtypeStruct((sentences, bucket), np.int32)
    lengths = jax.ShapeDtypeStruct((sentences,), np.int32)
    export = jax.export.export(jax.jit(translation), platforms=platforms)
    return bytes(export(shapes, source, lengths).serialize()), sentences


def npy_bytes(array: np.ndarray) -> bytes:
    """The content of a .npy file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)
    return file.getvalue()


def zip_bytes(contents: dict[str, bytes]) -> bytes:
    """A zip archive without compression; equal contents give equal bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in contents.items():
            archive.writestr(zipfile.ZipInfo(name), content)  # ZipInfo's default date: 1980
    return file.getvalue()


def main() -> None:
    f = flags.FLAGS
    run = model_directory(f.workdir, f.checkpoint)
    choose = partial(current_checkpoint, run, f.checkpoint)  # the run may be still trained
    config, tokenizers = read_current(choose, partial(open_model, run))
    config = replace(config, decoding=replace(config.decoding, **options_of(f)))
    config.validate()
    check_export_flags(f, config, tokenizers)
    # A program of several platforms cannot contain kernels of one.
    config = replace(config, model=replace(config.model, attention_kernels=False))
    # The devices that will run the file are unknown here, and so is their memory.
    sizes = sizes_of([config.model], config.decoding, Machine(f.platforms[0]))
    engine = Translator([config.model], tokenizers, config.decoding).engine
    engine.sizes = sizes
    buckets = chosen_buckets(f.buckets, engine)
    prepare_jax("off", 1, decoding_only=True)
    path, params = read_current(
        choose, lambda name: (find_params(run, name), require_finite(load_params(run, name), run))
    )
    programs, table = {}, []
    for bucket in buckets:
        name = f"programs/{bucket}"
        programs[name], sentences = exported(engine, bucket, params, f.platforms)
        batch_size = engine.sizes.lanes(bucket)
        queue = sentences // batch_size
        table.append({"tokens": bucket, "batch_size": batch_size, "queue": queue, "program": name})
        print(
            f"{bucket} source tokens × {batch_size} sentences, {queue} batches in a call: "
            f"{len(programs[name]):,} bytes",
            file=sys.stderr,
        )
    arrays = {
        f"parameters/{jax.tree_util.keystr(path, simple=True, separator='/')}.npy": npy_bytes(leaf)
        for path, leaf in jax.tree.leaves_with_path(params)
    }
    sides = map(tokenizer_files, ("source", "target"), tokenizers)
    entries, models = zip(*sides, strict=True)
    entries[0].update(cleaning(config, tokenizers[0]))
    card = card_of(config, f.platforms, table, list(entries), list(arrays))
    card["checkpoint"] = str(path.relative_to(run))
    loader = Path(__file__).with_name("load_exported.py").read_bytes()
    files = {"card.json": json.dumps(card, indent=1).encode(), "__main__.py": loader}
    archive = zip_bytes({**files, **models[0], **models[1], **programs, **arrays})
    with open_atomic(f.to, f.overwrite) as file:
        file.write(archive)
    print(
        f"{f.to}: {len(archive):,} bytes; python {quote(f.to)} < source.txt > target.txt",
        file=sys.stderr,
    )


def card_of(
    config: Config,
    platforms: list[str],
    buckets: list[dict[str, Any]],
    tokenizers: list[dict[str, Any]],
    parameters: list[str],
) -> dict[str, Any]:
    """The content of card.json; `parameters` are names in the archive."""
    m = config.model
    return {
        "format": FORMAT, "jax": jax.__version__, "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "platforms": platforms,
        "vocab_sha256": config.data.vocab_sha256, "model": asdict(m),
        "decoding": asdict(config.decoding), "end": m.end_id,
        "special_ids": [m.pad_id, m.start_id, m.end_id], "tokenizers": tokenizers,
        "buckets": buckets, "parameters": parameters,
    }  # fmt: skip


def define_flags() -> None:
    define_model("workdir", None, "The run or model of another project.", required=True)
    flags.DEFINE_string("checkpoint", "best", "best | latest | average | a step | a named average.")
    define_path("to", None, "The output file.", required=True)
    flags.DEFINE_list("platforms", ["cpu"], f"Platforms to compile for: {', '.join(PLATFORMS)}.")
    flags.DEFINE_list("buckets", [], "Source tokens of each program; empty: those of decode.py.")
    flags.DEFINE_bool("overwrite", False, "Replace an existing file.")
    define_options()


def run() -> None:
    """The command line."""
    run_command(define_flags, main)


if __name__ == "__main__":
    run()
