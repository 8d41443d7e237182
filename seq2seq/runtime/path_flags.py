"""Flags of local paths: a flag declares itself as a path where it is defined."""

from absl import flags

from seq2seq.runtime.paths import check_local_path

# --help lists the flags of the main module. Flags count as defined by the caller of `define_path`.
flags.disclaim_key_flags()


def define_path(name: str, default: str | None, help: str, required: bool = False) -> None:
    """Define a flag of a local path, or of several separated by commas.

    Parsing a URL raises UserError(CONFIGURATION).
    """
    serializer: flags.ArgumentSerializer[str] = flags.ArgumentSerializer()
    flags.DEFINE(PathParser(name), name, default, help, serializer=serializer, required=required)


class PathParser(flags.ArgumentParser):
    """Parses the value of a flag of `define_path`."""

    def __init__(self, flag: str):
        super().__init__()
        self._flag = flag

    def parse(self, argument: str) -> str:
        for path in argument.split(","):
            check_local_path(f"--{self._flag}", path)
        return argument

    def flag_type(self) -> str:
        return "string"
