"""Tokenize a corpus in advance, so that training starts immediately.

    python scripts/prepare_corpus.py --config=base --config.data.corpus=text:train.de,train.en
    python train.py --config=base --config.data.corpus=text:train.de,train.en --workdir=runs/de-en
It trains the vocabulary, or loads that of data.vocab or training.init_from, and writes the token
ids to the corpus cache, where training with the same data.* fields finds them. It needs no
accelerator. An interrupted preparation resumes where it stopped.
"""

import sys
from pathlib import Path

from absl import flags

if __name__ == "__main__":  # a clone need not be installed
    sys.path.insert(0, str(Path(__file__).parent.parent))

from seq2seq.cli.command import run_command
from seq2seq.cli.interruption import ended_by_signals
from seq2seq.config.flag import define_config, parsed_config
from seq2seq.config.help import explain_config_error
from seq2seq.config.tree import Config
from seq2seq.data.corpora.registry import open_parts
from seq2seq.data.tokens.corpus_cache import CorpusCache, corpus_cache, define_cache_flag
from seq2seq.data.tokens.encoded_corpus import encode_parts
from seq2seq.runtime.errors import CONFIGURATION, UserError
from seq2seq.runtime.streams import note
from seq2seq.training.vocabulary import first_tokenizers, initial_directory


def main() -> None:
    f = flags.FLAGS
    cache = corpus_cache(f.corpus_cache)
    if cache is None:
        raise UserError(
            CONFIGURATION,
            "there is no directory for the corpus: expected a home directory or --corpus_cache, "
            f"got --corpus_cache={f.corpus_cache}; set --corpus_cache=DIR",
        )
    config = parsed_config(f)
    with ended_by_signals(note, "; run the same command to resume"):
        prepare_corpus(config, CorpusCache(cache.directory, smallest=0))


def prepare_corpus(config: Config, cache: CorpusCache) -> None:
    """Write the vocabulary and the token ids of the training corpus to the cache."""
    readers = open_parts(config.data.corpus, "train", config.data)
    for reader in readers:
        if reader.identity() is None:
            raise UserError(
                CONFIGURATION,
                f"{reader.title} is not a regular file: expected files that can be read "
                "again; write the lines to a file",
            )
    config, tokenizers = first_tokenizers(config, readers, cache, note, initial_directory(config))
    pairs = encode_parts(readers, config.data, tokenizers, cache, note)
    for line in pairs.counts.report("train"):
        note(line)
    for part in pairs.encoded:
        names = " ".join(dict.fromkeys(part.names))
        print(f"{names}: {len(part.store):,} pairs in {cache.corpora}")


def define_flags() -> None:
    define_config(sys.argv)
    define_cache_flag()


def run() -> None:
    """The command line."""
    run_command(define_flags, main, explain_config_error)


if __name__ == "__main__":
    run()
