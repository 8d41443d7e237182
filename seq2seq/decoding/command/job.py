"""A decoding job: what one command line of decode.py does, and the checks of it."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from absl import flags

from seq2seq.decoding.command.flags import options_of
from seq2seq.decoding.command.formats import FORMATS, Formats, formats_of
from seq2seq.decoding.command.inputs import Input, check_input, shard_lines, shard_of
from seq2seq.decoding.command.interactive import Terminal
from seq2seq.decoding.command.references import References
from seq2seq.decoding.search_options import BEAM, FLAGS, check_effect
from seq2seq.decoding.translator import Translator
from seq2seq.files.locks import check_nothing, locked_output
from seq2seq.files.output_files import check_outputs
from seq2seq.runtime import processes
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError
from seq2seq.runtime.paths import expand_path, is_replaceable
from seq2seq.runtime.streams import note


class Job:
    """The flags of a command line of decode.py, and what follows from several of them."""

    def __init__(self, f: flags.FlagValues):
        """UserError(CONFIGURATION) for an input format that cannot be read."""
        self.flags = f
        self.interactive, self.formats = is_interactive(f), chosen_formats(f)
        self.input = Input(f.input, f.target, self.formats.input, f.mode != "translate", f.prefix)
        self.options = options_of(f)  # fields of config.decoding
        if self.interactive:
            self.options["batch_size"] = 1

    @property
    def resumable(self) -> bool:
        """Whether the job saves its results, to resume after a kill: the input consists of files,
        which can be read twice, the output is a file, which appears complete, and no
        translations are kept in memory for --reference."""
        f = self.flags
        return (
            self.input.rereadable
            and f.output != "-"
            and is_replaceable(expand_path(f.output))
            and not f.reference
        )

    def check(self) -> None:
        """UserError for flags that are invalid for any run; nothing is loaded yet."""
        f = self.flags
        if not f.workdir:
            raise UserError(
                CONFIGURATION, "--workdir=RUN is required: the directory that train.py wrote"
            )
        references = f.reference.split(",") if f.reference else []
        files = [f.input, *references, *filter(None, (f.baseline, f.target))]
        for path in files:
            check_input(path)
        if files.count("-") > 1:
            raise UserError(DATA, "only one input can be stdin; give the name of the other file")
        if f.output == "-":
            sys.stdout.write("")  # UserError if it is closed
        else:
            check_outputs([f.output], f.overwrite, files)
        if f.target_pieces and f.reference:
            raise UserError(
                CONFIGURATION,
                "--target_pieces is not supported with --reference: expected text to score, got "
                "pieces; remove one of them",
            )
        self._check_effects()
        self._check_formats()
        if f.shard:
            shard_of(f.shard)
            if not self.input.rereadable or f.reference:
                raise UserError(CONFIGURATION, "--shard needs an --input file and no --reference")
        if (f.distributed or f.coordinator) and not self.resumable:
            raise UserError(
                CONFIGURATION,
                "several processes need an --input file and an --output file "
                "that all of them can access, and no --reference",
            )

    def _check_effects(self) -> None:
        """UserError(CONFIGURATION) for a flag without effect in the mode."""
        mode, present = self.flags.mode, [name for name in FLAGS if self.flags[name].value]
        if mode == "translate":  # the options are checked with those of the run
            check_effect(present, BEAM)
        else:
            check_effect([*self.options, *present], f"--mode={mode}")

    def _check_formats(self) -> None:
        """UserError(CONFIGURATION) for formats that the mode or --annotate does not support."""
        f, formats = self.flags, self.formats
        if f.mode == "translate":
            if f.annotate and not formats.output.has_fields:
                raise UserError(
                    CONFIGURATION,
                    f"--annotate is not supported with --format={f.format}; give "
                    f"{formats.advice(output='has_fields')}",
                )
            return
        if not formats.output.can_score:
            raise UserError(
                CONFIGURATION,
                f"--format={f.format} is not supported with --mode={f.mode}; give "
                f"{formats.advice(output='can_score')}",
            )
        if not f.target and not formats.input.has_target:
            raise UserError(
                CONFIGURATION,
                f"--mode={f.mode} needs translations; give --target=FILE, or an input that holds "
                f"both sides and {formats.advice(input='has_target')}",
            )

    def check_with_run(self, translator: Translator) -> None:
        """UserError(CONFIGURATION) for flags that are invalid with the options or models of a
        run, and for a missing or unknown language."""
        if not self.formats.input.has_languages:
            translator.affixes_of_line.of_job()
        mode, several = self.flags.mode, translator.decoding.hypotheses > 1
        if mode == "translate" and several and not self.formats.output.has_nbest:
            raise UserError(
                CONFIGURATION,
                f"--format={self.flags.format} does not support several translations of a line; "
                f"give {self.formats.advice(output='has_nbest')}",
            )
        if mode == "align" and not translator.can_align:
            raise UserError(
                CONFIGURATION,
                "--mode=align is not supported by model.kind=rnn, which has no attention: expected "
                "transformer or rnn_attention; use --mode=score",
            )

    def lines(self, references: References | None) -> range | None:
        """The lines of the job; None if the input can be read only once. Reads and checks all of
        the input. UserError(DATA) if the references are not parallel to it."""
        if not self.input.rereadable:
            return None
        count, shard = self.input.count(), self.flags.shard
        if references is not None:
            references.check_parallel(count, "give one reference for each input line")
        return shard_lines(count, *shard_of(shard)) if shard else range(count)

    def output_lock(self) -> AbstractContextManager[Callable[[], None]]:
        """Holds the lock of the output file, in the first process; see `locked_output`."""
        if self.flags.output == "-" or not processes.is_first():
            return nullcontext(check_nothing)
        return locked_output(self.flags.output, note)


def is_interactive(f: flags.FlagValues) -> bool:
    """Whether sentences are read from a terminal."""
    return f.input == "-" and sys.stdin.isatty() and not f.compile_for


def chosen_formats(f: flags.FlagValues) -> Formats:
    """The formats of --format; an interactive session shows n-best lists as text."""
    formats = formats_of(f.format)
    if is_interactive(f) and f.output == "-" and formats.output is FORMATS["text"]:
        return formats._replace(output=Terminal())
    return formats
