"""A decoding job: what one command line of decode.py does, and the checks of it."""

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from seq2seq.config.tree import DecodingConfig
from seq2seq.decoding.command.formats import Formats, names_with
from seq2seq.decoding.command.inputs import (
    Input,
    check_input,
    shard_lines,
    shard_of,
)
from seq2seq.decoding.command.references import References
from seq2seq.decoding.search_options import BEAM, check_effect
from seq2seq.decoding.translator import Translator
from seq2seq.files.locks import check_nothing, locked_output
from seq2seq.files.output_files import check_outputs
from seq2seq.runtime import processes
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError
from seq2seq.runtime.paths import expand_path, is_replaceable
from seq2seq.runtime.streams import note


@dataclass(frozen=True)
class Job:
    """The flags of a job; `job_of` (seq2seq/decoding/command/flags.py) makes it."""

    runs: tuple[str, ...]
    local_dir: str  # of downloaded runs
    checkpoint: str
    weights: str | None  # of an ensemble
    options: Mapping[str, Any]  # the fields of config.decoding that are set by flags
    source_pieces: bool
    target_pieces: bool
    mode: str
    input: Input
    source_language: str  # of lines that name none; empty: that of the run
    target_language: str
    source_prefix: str  # of lines that have none
    output: str  # "-" is stdout
    overwrite: bool
    formats: Formats
    output_flag: str  # the flag that sets the output format, with its value
    annotate: bool
    reference: str  # a file, or ""
    metric: str | None
    baseline: str  # a file, or ""
    shard: str  # PART/PARTS, or ""
    interactive: bool  # sentences are read from a terminal
    several_processes: bool

    @property
    def resumable(self) -> bool:
        """Whether the job saves its results, to resume after a kill: the input consists of files,
        which can be read twice, the output is a file, which appears complete, and no
        translations are kept in memory for --reference."""
        return (
            self.input.rereadable
            and self.output != "-"
            and is_replaceable(expand_path(self.output))
            and not self.reference
        )

    def check(self) -> None:
        """UserError for flags that are invalid for any run; nothing is loaded yet."""
        if self.runs == ("",):
            raise UserError(
                CONFIGURATION, "--workdir=RUN is required: the directory that train.py wrote"
            )
        files = (self.input.path, self.reference, self.baseline, self.input.target)
        for path in (self.input.path, *filter(None, files[1:])):
            check_input(path)
        if files.count("-") > 1:
            raise UserError(DATA, "only one input can be stdin; give the name of the other file")
        if self.output == "-":
            sys.stdout.write("")  # UserError if it is closed
        else:
            check_outputs([self.output], self.overwrite, files)
        self._check_pieces()
        if self.mode == "translate":  # the options are checked with those of the run
            check_effect(self._flags, BEAM)
        else:
            check_effect([*self.options, *self._flags], f"--mode={self.mode}")
        self._check_formats()
        if self.shard:
            shard_of(self.shard)
            if not self.input.rereadable or self.reference:
                raise UserError(CONFIGURATION, "--shard needs an --input file and no --reference")
        if self.several_processes and not self.resumable:
            raise UserError(
                CONFIGURATION,
                "several processes need an --input file and an --output file "
                "that all of them can access, and no --reference",
            )

    def _check_pieces(self) -> None:
        if self.target_pieces and self.reference:
            raise UserError(
                CONFIGURATION,
                "--target_pieces is not supported with --reference: expected text to score, got "
                "pieces; remove one of them",
            )

    def _check_formats(self) -> None:
        """UserError(CONFIGURATION) for formats that the mode or --annotate does not support."""
        if self.mode == "translate":
            if self.annotate and not self.formats.output.has_fields:
                raise UserError(
                    CONFIGURATION,
                    f"--annotate is not supported with {self.output_flag}; give "
                    f"--output_format={names_with('has_fields')}",
                )
            return
        if not self.formats.output.can_score:
            raise UserError(
                CONFIGURATION,
                f"{self.output_flag} is not supported with --mode={self.mode}; give "
                f"--output_format={names_with('can_score')}",
            )
        if not self.input.target and not self.formats.input.has_target:
            raise UserError(
                CONFIGURATION,
                f"--mode={self.mode} needs translations; give --target=FILE, or an input that "
                f"holds both sides and --input_format={names_with('has_target')}",
            )

    @property
    def _flags(self) -> list[str]:
        """The flags in the table of seq2seq.decoding.search_options.py that are set."""
        flags = {
            "annotate": self.annotate,
            "reference": self.reference,
            "metric": self.metric,
            "baseline": self.baseline,
            "prefix": self.input.prefix,
            "target": self.input.target,
        }
        return [name for name, value in flags.items() if value]

    def check_with_run(self, translator: Translator) -> None:
        """UserError(CONFIGURATION) for flags that are invalid with the options or models of a
        run, and for a missing or unknown language."""
        if not self.formats.input.has_languages:
            translator.affixes_of_line.of_job()
        if self.mode == "translate":
            self._check_translations(translator.decoding)
        if self.mode == "align" and not translator.can_align:
            raise UserError(
                CONFIGURATION,
                "--mode=align is not supported by model.kind=rnn, which has no attention: expected "
                "transformer or rnn_attention; use --mode=score",
            )

    def _check_translations(self, decoding: DecodingConfig) -> None:
        if decoding.hypotheses > 1 and not self.formats.output.has_nbest:
            raise UserError(
                CONFIGURATION,
                f"{self.output_flag} does not support several translations of a line; give "
                f"--output_format={names_with('has_nbest')}",
            )

    def lines(self, references: References | None) -> range | None:
        """The lines of the job; None if the input can be read only once. Reads and checks all of
        the input. UserError(DATA) if the references are not parallel to it."""
        if not self.input.rereadable:
            return None
        count = self.input.count()
        if references is not None:
            references.check_parallel(count, "give one reference for each input line")
        return shard_lines(count, *shard_of(self.shard)) if self.shard else range(count)

    def output_lock(self) -> AbstractContextManager[Callable[[], None]]:
        """Holds the lock of the output file, in the first process; see `locked_output`."""
        if self.output == "-" or not processes.is_first():
            return nullcontext(check_nothing)
        return locked_output(self.output, note)
