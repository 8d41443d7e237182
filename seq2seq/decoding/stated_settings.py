"""The generation settings that a directory of another project brings along, as lines of a log."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from seq2seq.config.data_config import LANGUAGES, TEMPLATES, DataConfig
from seq2seq.config.tree import Config, DecodingConfig
from seq2seq.files.hub import name_of_snapshot
from seq2seq.pretrained.generation import unknown_settings
from seq2seq.pretrained.json_fields import read_json
from seq2seq.pretrained.models import family_of, whole_model
from seq2seq.pretrained.transformers_family import separate_output

DATA_FIELDS = (*TEMPLATES, *(f"{side}_language" for side in LANGUAGES))


def stated_settings(
    directory: Path,
    stored: Config,
    decoding: DecodingConfig,
    data: DataConfig,
    source_prefix: str = "",
) -> Iterator[str]:
    """A line with the settings of `stored`, the config of the directory, that differ from the
    defaults of this project, one with those that `decoding` or `data` override, and what
    `directory_notes` says. None for a run, whose settings its user has chosen."""
    if (family := family_of(directory)) is None:
        return
    default, settings, overridden = Config(), [], []
    for section, used, names in (
        ("decoding", decoding, [field.name for field in fields(DecodingConfig)]),
        ("data", data, DATA_FIELDS),
    ):
        for name in names:
            value, new = getattr(getattr(stored, section), name), getattr(used, name)
            if value != getattr(getattr(default, section), name):
                settings.append(f"{name}={value!r}")
                if new != value:
                    overridden.append(f"{name}={new!r}")
    name = name_of_snapshot(directory) or str(directory)
    yield f"settings of {name} ({family.name}): {', '.join(settings) or 'the defaults'}"
    if overridden:
        yield f"settings that are overridden: {', '.join(overridden)}"
    yield from directory_notes(directory, stored, source_prefix)


def directory_notes(directory: Path, stored: Config, source_prefix: str = "") -> Iterator[str]:
    """Lines about what a directory of another project states and this project does not follow: for
    the prefix of config.json, unless it is `source_prefix`."""
    directory = whole_model(directory)
    yield from unknown_settings(directory)
    yield from separate_output(directory, stored.model)
    prefix = read_json(directory / "config.json").get("prefix")
    if prefix and isinstance(prefix, str) and prefix != source_prefix:
        yield f"the prefix {prefix!r} of config.json is not added to sources: set source_prefix"
