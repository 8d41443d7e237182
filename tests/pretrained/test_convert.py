"""scripts/convert.py, decode.py and training with MarianMT directories."""

import json
import shutil
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from seq2seq.config.tree import load_config
from seq2seq.data.batching.batches import Batches, DataPosition
from seq2seq.data.batching.packing import RowLayout
from seq2seq.data.tokenizers.marian_tokenizer import MarianTokenizer
from seq2seq.model.config import ModelConfig
from seq2seq.model.kinds import make_model
from seq2seq.pretrained.models import load_params, open_model
from seq2seq.runtime.errors import CHECKPOINT, CONFIGURATION, OUTPUT, UserError
from seq2seq.storage.run import Run
from seq2seq.train import prepare_data, resume_or_start
from seq2seq.training.evaluate import held_out_loss
from seq2seq.training.parallel import pmap_eval_step
from seq2seq.training.vocabulary import find_tokenizers
from tests.support.adapters import write_adapter
from tests.support.flax_weights import write_flax
from tests.support.in_process import call_in_process
from tests.support.models.tiny_marian import SENTENCES, write_marian
from tests.support.runs import run_training
from tests.support.tiny import StopAfter, tiny_config
from tests.support.torch_archive import write_tensors
from tests.support.traced import shared_steps

ROOT = Path(__file__).parents[2]


def call(script, *arguments, stdin=""):
    module = import_module("seq2seq." + script.removesuffix(".py").replace("/", "."))
    code, out, err, _ = call_in_process(module, *arguments, stdin=stdin.encode())
    return code, out, "".join(f"{line}\n" for line in err)


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """A MarianMT directory and the run that convert.py writes."""
    path = tmp_path_factory.mktemp("convert")
    write_marian(path / "marian")
    code, out, err = call(
        "scripts/convert.py", f"--from_model={path / 'marian'}", f"--to={path / 'run'}"
    )
    assert (code, out) == (0, "") and "init_from" in err
    return path / "marian", path / "run"


@pytest.mark.slow
def test_a_directory_with_any_weights_and_its_converted_run_decode_to_the_same_bytes(
    converted, tmp_path
):
    lines = "".join(json.dumps({"text": line}) + "\n" for line in [*SENTENCES[:5], "", "犬 🐕"])
    others = [tmp_path / name for name in ("torch", "flax", "adapter")]
    for path in others[:2]:
        shutil.copytree(converted[0], path)
        (path / "model.safetensors").unlink()
    weights = load_file(converted[0] / "model.safetensors")
    write_tensors(others[0] / "pytorch_model.bin", weights)
    write_flax(others[1] / "flax_model.msgpack", weights)
    modules = [f"model.encoder.layers.0.fc{number}" for number in (1, 2)]
    write_adapter(others[2], converted[0], modules, lora_alpha=1e-30)  # adds nothing
    results = [
        call("decode.py", f"--workdir={path}", "--format=jsonl", "--nbest=2", stdin=lines)
        for path in (*converted, *others)
    ]
    assert results[0][0] == 0, results[0][2]
    assert len({out for _, out, _ in results}) == 1 and results[0][1].count('"score"') > 10
    assert open_model(converted[0], "best")[0] == open_model(converted[1], "best")[0]


def test_a_run_is_exported_and_existing_directories_are_not_overwritten(converted, tmp_path):
    arguments = f"--from_run={converted[1]}", f"--to_model={tmp_path / 'out'}"
    code, out, err = call("scripts/convert.py", *arguments)
    assert (code, out, err) == (0, "", "")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (
        converted[0] / "model.safetensors"
    ).read_bytes()
    for flags, expected, message in (
        (arguments, OUTPUT, "exists already"),
        ((f"--from_run={converted[1]}", "--to=x"), CONFIGURATION, "--to_model=DIR"),
        (("--from_model=x", "--to=y", "--checkpoint=7"), CONFIGURATION, "--checkpoint has no"),
        ((f"--from_model={converted[1]}", f"--to={tmp_path / 'x'}"), CHECKPOINT, "model_type"),
    ):
        code, out, err = call("scripts/convert.py", *flags)
        assert (code, out, err.count("\n")) == (expected, "", 1) and message in err


def fine_tuning(path, start, **training):
    """The config of a training on a few pairs, in `path`, that starts from a model."""
    pairs = path.parent / "pairs.tsv"
    pairs.write_text(
        "".join(
            f"{source}\t{target}\n"
            for source, target in zip(SENTENCES[:6] * 3, SENTENCES[3:9] * 3, strict=True)
        ),
        encoding="utf-8",
    )
    settings = {"tokens_per_batch": 31 * 8, "init_from": str(start), **training}
    config = tiny_config(
        f"tsv:{pairs}",
        f"tsv:{pairs}",
        data__source_length=31,
        data__target_length=31,
        **{f"training__{name}": value for name, value in settings.items()},
    )
    return replace(config, model=ModelConfig(dropout=0.0))


def fine_tuned(path, start, **training):
    """Trains a few steps on a few pairs, as train.py does after parsing its flags."""
    run_training(path, fine_tuning(path, start, **training))


@pytest.mark.slow
def test_training_starts_from_the_parameters_and_ids_of_a_marian_model(converted, tmp_path):
    run = Run(tmp_path / "run")
    config, data = prepare_data(fine_tuning(run.path, converted[0]), run)
    with shared_steps():
        trainer = resume_or_start(config, run, data, StopAfter(None))
    run.close()
    jax.tree.map(
        np.testing.assert_array_equal, trainer.state.params, load_params(converted[1], "best")
    )
    model = open_model(converted[0], "best")[0].model
    assert config.special == (model.pad_id, model.pad_id, 0, 1)
    assert load_config(run.path / "config.json").model == config.model
    batch = Batches(data.train, 8, RowLayout(31, 31, config.special), 0)[DataPosition()]
    padding = batch.target_segments == 0
    assert (batch.decoder_input[padding] == model.pad_id).all()
    assert (batch.decoder_input[batch.target_positions == 0] == model.start_id).all()
    ends = np.diff(batch.target_segments, axis=1, append=0) != 0
    assert (batch.labels[ends & ~padding] == 0).all()


@pytest.mark.slow
def test_training_starts_from_the_converted_run_and_resumes(converted, tmp_path):
    fine_tuned(tmp_path / "run", converted[1], num_steps=8, learning_rate=0.01)
    assert isinstance(open_model(tmp_path / "run", "best")[1][0], MarianTokenizer)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    nll = [entry["valid_nll"] for entry in map(json.loads, lines) if "valid_nll" in entry]
    assert nll[-1] < nll[0]
    fine_tuned(tmp_path / "run", converted[1], num_steps=10, learning_rate=0.01)
    assert "resumed at step 8" in (tmp_path / "run" / "train.log").read_text()
    assert load_config(tmp_path / "run" / "config.json").decoding.suppress == "<pad>"


def test_the_loss_equals_that_of_transformers(converted, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    run = Run(tmp_path / "run")
    config, data = prepare_data(fine_tuning(run.path, converted[0]), run)
    run.close()
    eval_step = pmap_eval_step(make_model(config.model), config.training)
    params = load_params(converted[0], "best")
    nll = held_out_loss(eval_step, params, data.valid[""][1], config)["valid_nll"]
    source, target = open_model(converted[0], "best")[1]
    reference = transformers.MarianMTModel.from_pretrained(converted[0]).eval()
    total = tokens = 0
    for line, target_line in zip(SENTENCES[:6], SENTENCES[3:9], strict=True):
        labels = [*target.encode(target_line), 0]
        if max(len(labels), len(source.encode(line)) + 1) > 31:  # training drops it too
            continue
        with torch.no_grad():
            loss = reference(
                input_ids=torch.tensor([[*source.encode(line), 0]]), labels=torch.tensor([labels])
            ).loss.item()
        total, tokens = total + loss * len(labels), tokens + len(labels)
    assert tokens > 50
    assert nll == pytest.approx(total / tokens, abs=1e-4)


def test_a_model_config_that_differs_from_init_from_is_refused(converted, tmp_path):
    config = tiny_config("tsv:nowhere", training__init_from=str(converted[0]))
    run = Run(tmp_path / "run")
    with pytest.raises(UserError, match="another model: model.d_model 26 → 8"):
        find_tokenizers(config, run, [], None)
    run.close()
