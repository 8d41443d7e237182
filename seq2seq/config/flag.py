"""The flag --config: a config file, by default the config of the run in --workdir."""

import atexit
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from absl import flags
from ml_collections import config_flags

from seq2seq.cli.path_flags import check_no_comma
from seq2seq.config.tree import Config, has_config, load_config
from seq2seq.files import remote
from seq2seq.files.hub import check_model_name
from seq2seq.files.remote import is_remote
from seq2seq.runtime.errors import CONFIGURATION, OUTPUT, UserError
from seq2seq.runtime.paths import expand_path, working_copy

FLAG = ("--config", "-config")
ROOT = Path(__file__).parent.parent
CONFIGS = ROOT / "configs"
BUILT_IN = str(CONFIGS / "korean_english.py")  # without --config and without a run
RUN_CONFIG = ROOT / "config" / "run_config.py"

flags.disclaim_key_flags()  # --help attributes --config to the caller


def define_config(argv: list[str], values: flags.FlagValues = flags.FLAGS) -> None:
    """Define --config and a flag for each of its fields that `argv` sets.

    The name of an installed config, --config=small or --config small, is replaced in `argv` by its
    path, which ml_collections reads.
    """
    for place in reversed(range(1, len(argv) - 1)):
        if argv[place] in FLAG:
            argv[place : place + 2] = [f"{argv[place]}={argv[place + 1]}"]
    argv[:] = map(with_path_of_config, argv)
    config_flags.DEFINE_config_file(
        "config",
        default_config(argv),
        "A Python file with a function get_config(), which is executed, or the name of a file of "
        "configs/, such as small. Without --config an existing run in --workdir is resumed with "
        "its own config.",
        flag_values=values,
        sys_argv=list(argv),
    )


def with_path_of_config(argument: str) -> str:
    """--config=NAME with the path of the installed config NAME, and --config=FILE with ~ and
    environment variables expanded; any other argument unchanged."""
    flag, _, name = argument.partition("=")
    if flag not in FLAG:
        return argument
    path = CONFIGS / f"{name}.py"
    known = name.isidentifier() and path.exists()
    return f"{flag}={path if known else expand_path(name)}"


def default_config(argv: Sequence[str]) -> str:
    """The value of --config if it is not given: the config of the run in --workdir, if any.

    ml_collections reads the config while it parses --config, so both flags are parsed before.
    UserError(CONFIGURATION) for a --config that does not exist.
    """
    early = flags.FlagValues()
    flags.DEFINE_string("workdir", "", "", flag_values=early)
    flags.DEFINE_string("local_dir", "", "", flag_values=early)
    flags.DEFINE_string("config", BUILT_IN, "", flag_values=early)
    early(argv, known_only=True)
    workdir = expand_path(early.workdir)
    if not Path(early.config.partition(":")[0]).is_file():  # FILE:ARGUMENT of get_config
        raise UserError(
            CONFIGURATION,
            f"--config={early.config} does not exist: expected a Python file or a name in configs/",
        )
    if not early["config"].using_default_value:  # a default has no effect then
        return BUILT_IN
    if is_remote(workdir):
        run = directory_of_remote_config(workdir, expand_path(early.local_dir))
    else:
        run = Path(workdir).absolute()
    if workdir and has_config(run):
        return f"{RUN_CONFIG}:{run}"
    return BUILT_IN


def directory_of_remote_config(url: str, local_dir: str) -> Path:
    """A directory with the config.json of a run in object storage; without one, its working copy.

    UserError(CONFIGURATION) for a URL that is not supported, UserError(OUTPUT) if the storage
    cannot be read, and UserError(CHECKPOINT) for a damaged file.
    """
    remote.check_url("--workdir", url)
    try:
        content = remote.read(f"{url.rstrip('/')}/config.json")
    except FileNotFoundError:
        return working_copy(url, local_dir)
    except OSError as error:
        raise UserError(OUTPUT, f"{url} cannot be read: {error}") from error
    directory = tempfile.mkdtemp()  # ml_collections reads a file
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    run = Path(directory)
    (run / "config.json").write_bytes(content)
    if has_config(run):
        try:
            load_config(run / "config.json")
        except UserError as error:
            raise UserError(error.code, str(error).replace(directory, url.rstrip("/"))) from None
    return run


def parsed_config(f: flags.FlagValues) -> Config:
    """The config of --config and its overrides, which does not change from here on.

    Raises UserError(CONFIGURATION) if it is invalid, or the package for the URL of a new run's
    training.init_from is not installed.
    """
    config, file = f.config, config_flags.get_config_filename(f["config"])
    if not isinstance(config, Config):
        raise UserError(
            CONFIGURATION,
            f"get_config() of --config={file} must return a seq2seq.config.tree.Config, "
            f"got {type(config).__name__}",
        )
    config.validate()
    resumed = file.startswith(str(RUN_CONFIG))  # init_from is not read again
    if not resumed:
        check_model_name("config.training.init_from", config.training.init_from)
    return config


def check_new_run(f: flags.FlagValues) -> None:
    """Raise UserError(CONFIGURATION) if --workdir has no run, and a comma or no flag that names a
    corpus. Otherwise a misspelled path of a run would start a new one on the built-in corpus.
    """
    if "," in f.workdir and not has_config(config_directory(f)):
        check_no_comma("--workdir", f.workdir)
    flag = f["config"]
    default = flag.using_default_value and config_flags.get_config_filename(flag) == BUILT_IN
    if f.workdir and default and "data.corpus" not in config_flags.get_override_values(flag):
        raise UserError(
            CONFIGURATION,
            f"--workdir={f.workdir} holds no run to resume: expected its config.json; correct "
            "--workdir, or start a new run with --config=FILE or --config.data.corpus=SPEC",
        )


def config_directory(f: flags.FlagValues) -> Path:
    """The directory with the config.json of the run in --workdir, if there is one: the run
    directory or working copy, or else that of `directory_of_remote_config`."""
    path = run_path(f)
    if is_remote(f.workdir) and not has_config(path):
        return directory_of_remote_config(f.workdir, f.local_dir)
    return path


def run_path(f: flags.FlagValues) -> Path:
    """The run directory: --workdir or its working copy, or runs/NAME of the config file."""
    if is_remote(f.workdir):
        return working_copy(f.workdir, f.local_dir)
    file, _, _ = config_flags.get_config_filename(f["config"]).partition(":")  # FILE:ARGUMENT
    return Path(f.workdir or f"runs/{Path(file).stem}").absolute()
