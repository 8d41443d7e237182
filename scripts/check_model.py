"""Check a model of transformers: what is read from it, and that it computes the same.

    python scripts/check_model.py DIR [--input=FILE]
DIR is a directory, a URL of object storage, or hf://OWNER/NAME[@REVISION].
A table shows files, fields, parameters and tokenizer, and, if transformers and torch are installed,
the token ids, logits in float32 and best hypotheses of ten sentences, compared with theirs. The
settings of the directory apply. Exit code 4 if a check fails. The comparison needs memory for about
three times the parameters in float32.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from absl import flags

if __name__ == "__main__":  # a clone need not be installed
    sys.path.insert(0, str(Path(__file__).parent.parent))

from seq2seq.cli.command import run_command
from seq2seq.cli.path_flags import define_path
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.decoding.stated_settings import stated_settings
from seq2seq.files.hub import check_model_name
from seq2seq.files.lines import text_lines
from seq2seq.pretrained.model_directory import model_directory
from seq2seq.pretrained.models import check_family, load_params, open_model
from seq2seq.runtime.devices import prepare_jax
from seq2seq.runtime.errors import CHECKPOINT, CONFIGURATION, DATA, UserError
from seq2seq.scripts.checks.reference import Comparison, Outcome, Unavailable
from seq2seq.storage.run_files import require_finite

SENTENCES = [
    "A woman reads a book in the park.", "Two dogs play in the snow.", "Where is the station?",
    "The committee has not yet published its report.", "It rained for 12 days in 1999.",
    "My brother, who lives in Rome, sent me a letter.", "Thank you very much!", "No.",
    "The price of bread rose by 3.5 % last year.", "She asked whether the shop was still open.",
]  # fmt: skip
PASSED, FAILED, SKIPPED = "ok", "failed", "not checked"
Row = tuple[str, str, str]  # a check, its verdict, its result


def rows(directory: Path, texts: list[str]) -> Iterator[Row]:
    """The rows of the table, each as soon as it is computed."""
    try:
        config, tokenizers = open_model(directory, "best")
        params = require_finite(load_params(directory, "best"), directory)
    except UserError as error:
        yield "files", FAILED, str(error)
        return
    import jax

    paths = [path for path in sorted(directory.iterdir()) if path.is_file()]
    sizes = (f"{path.name} ({path.stat().st_size / 1e6:,.1f} MB)" for path in paths)
    yield "files", PASSED, ", ".join(sizes)
    lines = stated_settings(directory, config, config.decoding, config.data)
    yield "fields", PASSED, "; ".join(lines)
    count = sum(array.size for array in jax.tree.leaves(params))
    yield "parameters", PASSED, f"{count:,}, all of them finite"
    comparison = Comparison(directory, config, tokenizers, params, texts)
    checks: dict[str, Callable[[], Outcome]] = {
        "tokenizer": partial(round_trips, tokenizers, texts),
        "token ids": comparison.token_ids,
        "logits": comparison.logits,
        "hypotheses": comparison.hypotheses,
    }
    for name, check in checks.items():
        try:
            passed, result = check()
            yield name, PASSED if passed else FAILED, result
        except Unavailable as error:
            yield name, SKIPPED, " ".join(str(error).split())[:200]


def round_trips(tokenizers: tuple[Tokenizer, Tokenizer], texts: list[str]) -> Outcome:
    """Whether the text of token ids has these ids again. A text may be normalised."""
    source, target = tokenizers
    sides = [source] if source is target else [source, target]
    pairs = [(tokenizer, text, tokenizer.encode(text)) for tokenizer in sides for text in texts]
    decoded = [tokenizer.decode(ids) for tokenizer, _, ids in pairs]
    changed = [
        text
        for (tokenizer, text, ids), again in zip(pairs, decoded, strict=True)
        if "⁇" not in again and tokenizer.encode(again) != ids
    ]
    unchanged = sum(text == again for (_, text, _), again in zip(pairs, decoded, strict=True))
    unknown = sum("⁇" in again for again in decoded)
    result = f"{unchanged} of {len(pairs)} texts unchanged, {unknown} with unknown tokens"
    return not changed, result + "".join(f"; other ids again: {text!r}" for text in changed[:1])


def main(name: str = "") -> None:
    if not name:
        raise UserError(CONFIGURATION, "the directory is missing: expected check_model.py DIR")
    check_model_name("the model", name)
    directory = model_directory(name).absolute()
    check_family(directory, "; scripts/checkpoints.py verify checks a run")
    path = flags.FLAGS.input
    texts = [line.strip() for line in text_lines(path)] if path else SENTENCES
    texts = [*islice(filter(None, texts), len(SENTENCES))]
    if not texts:
        raise UserError(DATA, f"{path} has no text: expected one sentence per line")
    prepare_jax(flags.FLAGS.compilation_cache, 1, decoding_only=True)
    verdicts = []
    for check, verdict, result in rows(directory, texts):
        verdicts.append(verdict)
        print(f"{check:<10}  {verdict}: {result}", flush=True)
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in (PASSED, FAILED, SKIPPED))
    print(f"verdict: {FAILED if FAILED in verdicts else PASSED} ({counts})")
    if FAILED in verdicts:
        raise UserError(CHECKPOINT, f"{directory}: {verdicts.count(FAILED)} checks failed")


def define_flags() -> None:
    define_path("input", "", "A file whose first ten lines replace the built-in sentences.")


def run() -> None:
    """The command line."""
    run_command(define_flags, main, arguments=1)


if __name__ == "__main__":
    run()
