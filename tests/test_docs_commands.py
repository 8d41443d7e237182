"""The commands of README.md and the guides run, with a tiny model; those of the guides are slow.

They run in this process. tests/test_commands.py starts train.py and decode.py as processes.
"""

import json
import os
import re
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

import jax
import pytest

from seq2seq.config.tree import Config
from seq2seq.data.batching.batches import Batches, DataPosition
from seq2seq.files import remote
from seq2seq.model.kinds import make_model
from seq2seq.storage.run import Run
from seq2seq.storage.run_files import steps
from seq2seq.training import dry_run
from seq2seq.training.optimizer import make_optimizer
from seq2seq.training.parallel import pmap_train_step, split_rows
from seq2seq.training.step import init_state, make_train_step
from tests.support.documents import ROOT, TEXTS, Command, commands, fenced
from tests.support.forked import call_forked
from tests.support.hub_server import running_hub, use_endpoint
from tests.support.in_process import call_in_process
from tests.support.models.quick_search import quick_searches
from tests.support.models.tiny_marian import sentencepiece, write_marian
from tests.support.models.tiny_pretrained import write_fairseq, write_t5
from tests.support.models.tiny_tokenizers import model, write, write_multilingual_run
from tests.support.object_storage import object_storage
from tests.support.tiny import WORDS, tiny_flags


def write_inputs(path: Path) -> None:
    """Write the files that the commands of the documents read."""
    lines = [" ".join(WORDS[i : i + 3]) for i in range(9)] * 8  # all words, as in `write_corpus`
    for name in ("train.de", "valid.de", "test.de", "news.de"):
        (path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name in ("train.en", "valid.en", "test.en"):
        (path / name).write_text("\n".join(lines).upper() + "\n", encoding="utf-8")
    objects = [json.dumps({"text": line}) for line in lines[:4]]
    for name in ("in.jsonl", "test.jsonl"):
        (path / name).write_text("\n".join(objects) + "\n", encoding="utf-8")
    for name in ("other", "seed0", "seed1", "old0", "old1"):
        (path / f"{name}.en").write_bytes((path / "test.en").read_bytes())
    for name in ("train.ko", "valid.ko"):
        (path / name).write_text("\n".join(lines).title() + "\n", encoding="utf-8")
    pairs = [f"{line}\t{line.upper()}" for line in lines]
    for name, columns in (("clean", ""), ("crawled", "\t0.5"), ("valid", "")):
        text = "".join(f"{pair}{columns}\n" for pair in pairs)
        (path / f"{name}.tsv").write_text(text, encoding="utf-8")
    for name in ("joint", "de", "en"):
        texts = [text for line in lines for text in (line, line.upper())]
        (path / f"{name}.model").write_bytes(sentencepiece(texts, 60))
    pieces = [" ".join(f"▁{word}" for word in line.split()) for line in lines]
    for name in ("news.pieces", "test.pieces"):
        (path / name).write_text("\n".join(pieces) + "\n", encoding="utf-8")
    (path / "DIRECTORY").mkdir()
    for split in ("train", "valid"):
        for side, language in (("source", "de"), ("target", "en")):
            file = path / "DIRECTORY" / f"{split}.{side}"
            file.write_bytes((path / f"{split}.{language}").read_bytes())


def run_command_in(
    path: Path, command: Command, tokenizer: str, is_dry: bool = False, flags: Sequence[str] = ()
) -> None:
    """Run a Python command in a directory, a training with the programs of other tests and these
    flags; with `is_dry`, a dry run of it, which traces a step."""
    script, *arguments = *command.words[1:], *["--dry_run"] * is_dry
    arguments = [word.replace("=configs/", f"={ROOT}/configs/") for word in arguments]
    if script == "train.py":
        if "init_from" not in str(command):
            arguments += [*tiny_flags("model"), "--config.model.norm=post"]
            arguments += ["--config.model.dropout=0.1"]
        arguments += tiny_flags("training", "decoding")
        arguments += ["--config.decoding.beam_size=4"]
    if script in ("train.py", "scripts/prepare_corpus.py"):
        arguments += tiny_flags("data")
        pieces = 600 if "korean" in str(command) else 400  # more than the characters
        arguments += [f"--config.data.tokenizer={tokenizer}", f"--config.data.vocab_size={pieces}"]
        arguments += [f"--corpus_cache={path / 'cache'}"]
    if script == "train.py":
        arguments += flags
    for documented in ("1000,2000,3000", "2000,2100"):
        if any(word.endswith(f"={documented}") for word in arguments):
            saved = ",".join(map(str, steps(path / "runs" / "mine")))
            arguments = [word.replace(documented, saved) for word in arguments]
    for word in arguments:
        if word.startswith("--output="):
            (path / word.removeprefix("--output=")).unlink(missing_ok=True)
    stdin = (path / command.stdin).read_bytes() if command.stdin else b""
    stdin = command.echoed.encode() if command.echoed else stdin
    if (ROOT / script).exists():
        module = import_module("seq2seq." + script.removesuffix(".py").replace("/", "."))
        step = trace_one_step if is_dry else dry_run.do_one_step
        with (
            patch.dict(os.environ, command.environment),
            patch.object(dry_run, "do_one_step", step),
        ):
            done = call_in_process(module, *arguments, stdin=stdin, cwd=path)
    else:
        place = path if (path / script).exists() else ROOT
        done = call_forked(
            [place / script, *arguments], stdin=stdin, cwd=path, environment=command.environment
        )
    assert done.code == 0, (str(command), done.err[-3:])
    if command.stdout:
        (path / command.stdout).write_text(done.out, encoding="utf-8")


def trace_one_step(config: Config, run: Run, batches: Batches, resumes: bool) -> None:
    """What a dry run does at its end, but the state and the step are traced, not compiled."""
    model = make_model(config.model)
    optimizer = make_optimizer(config.training, config.model.d_model)
    state = jax.eval_shape(partial(init_state, model, optimizer, config.training))
    batch = split_rows(
        batches[DataPosition()], jax.local_device_count(), config.training.accumulate
    )
    step = pmap_train_step(make_train_step(model, optimizer, config.training))
    jax.eval_shape(step, state, batch)


def is_quick(command: Command) -> bool:
    """Whether a command takes seconds with a tiny run: not the main job, not several processes, not
    the two RNN models, which decoding/test_rnn_runs.py trains."""
    program, *rest = command.words
    scripts = (
        "attention_page",
        "checkpoints",
        "convert",
        "export",
        "prepare_corpus",
        "report",
        "seeds",
    )
    several = any(word.startswith(("--distributed", "--coordinator")) for word in rest)
    known = ("train.py", "decode.py", "mine.zip", *(f"scripts/{name}.py" for name in scripts))
    quick = rest[:1] and rest[0] in known and "_rnn" not in str(command)
    return program == "python" and bool(quick) and rest != ["train.py"] and not several


def commands_of(name: str) -> list[Command]:
    """The quick commands in the code blocks of a document."""
    blocks = "".join(f"```\n{code}```\n" for code in fenced(TEXTS[name], ""))
    return [command for command in commands(blocks) if is_quick(command)]


def run_document(path: Path, name: str, tokenizer: str = "bpe") -> int:
    """Run the quick commands of a document, without the translations that are in README.md too, and
    return their number."""
    write_inputs(path)
    tested = set(map(str, commands_of("README.md"))) if name != "README.md" else set()
    run = [
        command
        for command in commands_of(name)
        if command.words[1] != "decode.py" or str(command) not in tested
    ]
    training = commands("```\n" + fenced(TEXTS["docs/TRAINING.md"], "")[0] + "```\n")
    if not any(
        command.words[1] == "train.py" and "init_from" not in str(command) for command in run
    ):
        run = training + run
    # The commands of runs/korean_english use runs/mine, which is made first.
    run.sort(key=lambda command: "korean_english" in str(command))
    for number, command in enumerate(run):
        for run_name in ("korean_english", "a", "b"):
            directory = path / "runs" / run_name
            if re.search(rf"runs/{run_name}\b", str(command)) and not directory.exists():
                directory.symlink_to(path / "runs" / "mine")
        other_commands = run[:number] + run[number + 1 :]
        is_dry = is_training_of_unused_run(command, other_commands)
        run_command_in(path, command, tokenizer, is_dry)
    return len(run)


def is_training_of_unused_run(command: Command, other_commands: list[Command]) -> bool:
    """Whether no other command needs the run."""
    directory = re.search(r"train\.py .*--workdir=(\S+)", str(command))
    if directory is None:
        return False
    name = re.compile(rf"\b{re.escape(directory[1])}\b")
    return not any(name.search(str(other_command)) for other_command in other_commands)


def test_the_commands_of_the_readme_run(tmp_path, monkeypatch, capsys):
    """tests/test_commands.py searches with the trained model."""
    with quick_searches():
        assert run_document(tmp_path, "README.md", "words") >= 7
    assert (tmp_path / "news.en").read_text(encoding="utf-8").count("\n") == 72
    assert len((tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()) == 4
    (code,) = (block for block in fenced(TEXTS["README.md"], "python") if "Translator" in block)
    monkeypatch.chdir(tmp_path)
    with quick_searches():
        exec(code + "print(translator.translate(['eins'], nbest=2))", {})
    assert capsys.readouterr().out.startswith("[[")


def write_models(path: Path) -> None:
    """Write the directories of other projects that the commands of docs/MODELS.md read."""
    pytest.importorskip("tokenizers")
    nllb = "nllb-200-distilled-600M"
    for name in ("opus-mt-en-de", nllb, "bart-large-cnn", "flan-t5-base", "madlad400-3b-mt"):
        (path / name).mkdir()
    write_marian(path / "opus-mt-en-de")
    write_fairseq(path / nllb, "m2m_100")
    write_fairseq(path / "bart-large-cnn", "bart")
    write_t5(path / "flan-t5-base")
    write_t5(path / "madlad400-3b-mt")
    tags = model(pad_id=0, eos_id=1, unk_id=2, bos_id=-1, user_defined_symbols="<2de>,<2ko>")
    write(path / "madlad400-3b-mt", spiece__model=tags)
    (path / "articles.txt").write_text("A dog and a cat.\n", encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["docs/TRAINING.md", "docs/DECODING.md", "docs/MODELS.md"])
def test_the_commands_of_the_guides_run(name, tmp_path, monkeypatch):
    if name == "docs/MODELS.md":
        write_models(tmp_path)
    else:
        nllb = {"source_begin": "{source}", "target_begin": "{target}"}
        write_multilingual_run(tmp_path / "nllb-200-distilled-600M", **nllb)
    with object_storage("gs"), object_storage("s3"), running_hub() as hub:
        if name == "docs/MODELS.md":
            use_endpoint(monkeypatch, hub.url)
            monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
            hub.add("Helsinki-NLP/opus-mt-en-de", tmp_path / "opus-mt-en-de")
            hub.add("google-t5/t5-small", tmp_path / "flan-t5-base")
        remote.write("gs://bucket/news.de", b"eins zwei\n\ndrei\n")
        assert run_document(tmp_path, name) >= 6
        if name == "docs/DECODING.md":
            assert remote.read("s3://bucket/news.en").count(b"\n") == 3
