"""The data of a run: corpora → token ids, with a report of what was dropped."""

import os
from typing import NamedTuple

from seq2seq.config.tree import Config
from seq2seq.data.batching.batches import Batches
from seq2seq.data.batching.packing import row_layout
from seq2seq.data.corpora.corpus import Corpus
from seq2seq.data.corpora.counts import Counts, Note
from seq2seq.data.corpora.held_out import held_out_specs, qualified
from seq2seq.data.corpora.part_reader import PartReader
from seq2seq.data.corpora.registry import open_parts, read_corpus
from seq2seq.data.tokenizers.tokenizer import Tokenizer
from seq2seq.data.tokens.corpus_cache import CorpusCache
from seq2seq.data.tokens.encoded_corpus import encode_parts
from seq2seq.data.tokens.encoding import check_pairs_left, dropped_counts, encode_pairs
from seq2seq.data.tokens.pairs import Pairs
from seq2seq.data.tokens.training_pairs import TrainingPairs
from seq2seq.runtime.errors import DATA, UserError
from seq2seq.runtime.logs import throttled
from seq2seq.storage.run import Run
from seq2seq.storage.run_json import intact_facts


class Corpora(NamedTuple):
    """The corpora of a run: the training data block by block, the text of held-out data.

    Held-out corpora have names; the name of a single one is "".
    """

    train: list[PartReader]
    valid: dict[str, Corpus]
    test: dict[str, Corpus]


class Data(NamedTuple):
    """The data of a run: token ids of the training pairs, text and token ids of held-out pairs."""

    tokenizers: tuple[Tokenizer, Tokenizer]
    train: TrainingPairs
    valid: dict[str, tuple[Corpus, Pairs]]  # by name; the first one decides
    test: dict[str, Corpus]  # by name; the validation data if there is no test data
    files: dict[str, dict[str, str]]  # split → file → sha256; without splits that have no corpus

    @property
    def file_hashes(self) -> dict[str, str]:
        """File → sha256, of all splits."""
        return {name: sha for files in self.files.values() for name, sha in files.items()}


def open_corpora(config: Config, run: Run) -> Corpora:
    """The training data, of which only the files are checked, and the text of held-out data.

    UserError(DATA) if they cannot be read; it names the directory in which the run was started, if
    that is another one, because relative paths in its config may depend on it.
    """
    try:
        return _open_corpora(config, run)
    except UserError as error:
        facts = intact_facts(run.path / "run.json") if run.resumed else {}
        started = facts.get("directory", os.getcwd())
        if error.code != DATA or started == os.getcwd():
            raise
        raise UserError(DATA, f"{error}; the run was started in {started}") from None


def _open_corpora(config: Config, run: Run) -> Corpora:
    log, data = throttled(run.log), config.data
    specs = {split: held_out_specs(data, split) for split in ("valid", "test")}
    train = open_parts(data.corpus, "train", data)
    held_out = {
        split: {name: read_corpus(spec, split, data, log) for name, spec in named.items()}
        for split, named in specs.items()
    }
    return Corpora(train, **held_out)


def encode_corpora(
    config: Config,
    run: Run,
    corpora: Corpora,
    tokenizers: tuple[Tokenizer, Tokenizer],
    cache: CorpusCache | None,
) -> Data:
    """Encode the corpora as token ids, and log how many pairs were kept and dropped.

    The test data is not encoded: its sentences are truncated at translation, never dropped.
    """
    train = encode_parts(corpora.train, config.data, tokenizers, cache, run.log)
    report_training_data(run, train)
    valid = {}
    for name, corpus in corpora.valid.items():
        notes: dict[str, Note] = {}
        pairs, _, dropped = encode_pairs(corpus, *tokenizers, config.data, notes)
        counts = corpus.counts.merged(dropped_counts(dropped, corpus.where)._replace(notes=notes))
        check_pairs_left(corpus.names, counts.kept, counts.dropped)
        report_counts(run, qualified("valid", name), counts)
        valid[name] = corpus, pairs
    for name, corpus in corpora.test.items():
        report_counts(run, qualified("test", name), corpus.counts)
    if len(valid) > 1:
        run.log(f"valid: {next(iter(valid))} decides which checkpoint is the best")
    elif not valid:
        run.log("valid: no data, so no step is evaluated and training.patience has no effect")
    report_vocabulary(run, tokenizers)
    files = {"train": train.hashes}
    for split, named in (("valid", corpora.valid), ("test", corpora.test)):
        if named:
            files[split] = {
                file: sha for corpus in named.values() for file, sha in corpus.fingerprints.items()
            }
    return Data(tokenizers, train, valid, corpora.test or corpora.valid, files)


def training_batches(config: Config, data: Data, rows: slice | None = None) -> Batches:
    """The batches of training, of which only `rows` are made (None: all)."""
    layout = row_layout(config.data, config.special)
    return Batches(data.train, config.rows_per_batch, layout, config.training.seed, rows)


def report_training_data(run: Run, pairs: TrainingPairs) -> None:
    """Log the numbers of kept and dropped pairs, and those of each part of a mixture."""
    report_counts(run, "train", pairs.counts)
    if len(pairs.encoded) > 1:
        for part in pairs.encoded:
            names = " ".join(dict.fromkeys(part.names))
            run.log(f"  {names}: {len(part.store):,} pairs × {part.weight:g}")


def report_counts(run: Run, title: str, counts: Counts) -> None:
    """Log the numbers of kept and dropped pairs, with examples for each reason."""
    for line in counts.report(title):
        run.log(line)


def report_vocabulary(run: Run, tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
    """Log the sizes of the vocabulary."""
    source, target = tokenizers
    run.log(
        f"vocabulary: {source.size:,} source, {target.size:,} target, "
        f"{'joint' if source is target else 'separate'}"
    )
