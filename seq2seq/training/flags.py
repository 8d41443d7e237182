"""The flags of train.py, besides those of all commands."""

import sys

from absl import flags

from seq2seq.cli import connection
from seq2seq.cli.path_flags import define_local_dir, define_path
from seq2seq.compilation.targets import define_compile_for
from seq2seq.config.flag import define_config
from seq2seq.data.tokens.corpus_cache import define_cache_flag


def define_flags() -> None:
    """Define the flags of train.py."""
    define_config(sys.argv)
    define_path(
        "workdir",
        "",
        "The run directory, local or a URL such as gs://bucket/run; default: runs/NAME of the "
        "config file.",
        remote=True,
    )
    define_local_dir()
    flags.DEFINE_bool("help_config", False, "List all config fields with their values, and exit.")
    flags.DEFINE_bool("overwrite", False, "Delete the run in the run directory and start over.")
    flags.DEFINE_bool(
        "dry_run",
        False,
        "Read all data, report memory and disk space, do one step, and keep nothing but caches.",
    )
    define_cache_flag()
    define_compile_for()
    connection.define_flags()
