"""LoRA adapters of peft: the merged parameters, and by name what cannot be merged."""

import math
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from seq2seq.decoding.command.resumable_output import model_files
from seq2seq.decoding.stated_settings import directory_notes
from seq2seq.pretrained.adapters import base_directory
from seq2seq.pretrained.models import find_params, load_params, open_model
from seq2seq.runtime.errors import CHECKPOINT, UserError
from tests.support.adapters import ALPHA, RANK, matrix_names, write_adapter
from tests.support.models.tiny_marian import write_marian
from tests.support.models.tiny_pretrained import (
    change_json,
    libraries,
    write_pretrained,
    write_t5,
)
from tests.support.tiny import write_run
from tests.support.torch_archive import write_tensors

T5 = "decoder.block.0.layer.1.EncDecAttention.q", "encoder.block.1.layer.1.DenseReluDense.wi"
MARIAN = "model.encoder.layers.0.self_attn.q_proj", "model.decoder.layers.1.fc1"


@pytest.fixture(scope="module", params=["t5", "marian"])
def base(request, tmp_path_factory):
    """(a base model, names of two of its modules)"""
    path = tmp_path_factory.mktemp(request.param) / "base"
    path.mkdir()
    (write_t5 if request.param == "t5" else write_marian)(path)
    return path, T5 if request.param == "t5" else MARIAN


def check_merged(adapter, base, matrices, scales, merged):
    """Compares an adapter with a directory whose weights are merged in float64."""
    merged.mkdir()
    for file in base.iterdir():
        (merged / file.name).write_bytes(file.read_bytes())
    weights = load_file(base / "model.safetensors")
    for (module, (a, b)), scale in zip(matrices.items(), scales, strict=True):
        update = scale * (b.astype(np.float64) @ a.astype(np.float64))
        weights[f"{module}.weight"] = (weights[f"{module}.weight"] + update).astype(np.float32)
    save_file(weights, merged / "model.safetensors", {"format": "pt"})
    (config, tokenizers), (expected, originals) = (
        open_model(path, "best") for path in (adapter, merged)
    )
    assert config == expected
    assert tokenizers[1].serialized() == originals[1].serialized()
    params = load_params(adapter, "best")
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-5),
        params, load_params(merged, "best"),
    )  # fmt: skip
    original = load_params(base, "best")
    changed = jax.tree.map(lambda x, y: not np.array_equal(x, y), params, original)
    assert sum(jax.tree.leaves(changed)) == len(matrices)


def test_the_parameters_are_those_of_the_base_model_with_the_products_added(base, tmp_path):
    base, (first, second) = base
    adapter, last = tmp_path / "adapter", second.rpartition(".")[2]
    matrices = write_adapter(adapter, base, (first, second))
    check_merged(adapter, base, matrices, [ALPHA / RANK] * 2, tmp_path / "plain")
    files = {file.name for file in model_files(adapter, "best")}
    assert files > {"adapter_model.safetensors", "adapter_config.json", "model.safetensors"}
    assert not [*directory_notes(adapter, open_model(adapter, "best")[0])]
    change_json(base / "config.json", prefix="a: ")
    assert "prefix" in [*directory_notes(adapter, open_model(adapter, "best")[0])][0]
    change_json(base / "config.json", prefix=None)
    write_tensors(adapter / "adapter_model.bin", load_file(adapter / "adapter_model.safetensors"))
    (adapter / "adapter_model.safetensors").unlink()
    assert find_params(adapter, "best") == adapter / "adapter_model.bin"
    check_merged(adapter, base, matrices, [ALPHA / RANK] * 2, tmp_path / "torch")
    patterns = {"rank_pattern": {last: 2, second: 9}, "alpha_pattern": {first: 7, last[1:]: 9}}
    matrices = write_adapter(
        adapter, base, (first, second), (RANK, 2), use_rslora=True,
        base_model_name_or_path=str(base), **patterns,
    )  # fmt: skip
    scales = 7 / math.sqrt(RANK), ALPHA / math.sqrt(2)
    check_merged(adapter, base, matrices, scales, tmp_path / "patterns")


REFUSED = {  # fields, message
    "another kind": ({"peft_type": "PREFIX_TUNING"}, "peft_type='PREFIX_TUNING'.* merge"),
    "DoRA": ({"use_dora": True}, "use_dora=True is not supported: expected no value; merge"),
    "a bias": ({"bias": "lora_only"}, "bias='lora_only'"),
    "trained modules": ({"modules_to_save": ["lm_head"]}, "modules_to_save="),
    "transposed weights": ({"fan_in_fan_out": True}, "fan_in_fan_out=True"),
    "trained tokens": ({"trainable_token_indices": [3]}, "trainable_token_indices="),
    "another base": ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa'"),
    "copied layers": ({"layer_replication": [[0, 2]]}, "layer_replication="),
    "a field of a later version": ({"use_new": 1}, "use_new=1"),
    "no rank": ({"r": None}, "r=None .* positive integers"),
    "another rank": ({"r": 4}, r"lora_A.weight does not fit .* expected \(4, 16\), got \(3, 16\)"),
    "no factor": ({"lora_alpha": "8"}, "lora_alpha='8' .* positive numbers"),
    "a huge factor": ({"lora_alpha": 10**400}, "lora_alpha=1000.* below 1000000"),
    "an infinite factor": ({"alpha_pattern": {"q": 1e999}}, "alpha_pattern|malformed"),
    "a pattern": ({"rank_pattern": {".*q": 3}}, "rank_pattern=.* without wildcards"),
    "patterns in a list": ({"rank_pattern": [3]}, "rank_pattern=.* an object"),
    "a name of the Hub": (
        {"base_model_name_or_path": "org/base"}, "base_model_name_or_path='org/base' .* download",
    ),
    "no base model": ({"base_model_name_or_path": None}, "base_model_name_or_path=None"),
    "a long name": ({"base_model_name_or_path": "x" * 5000}, "base_model_name_or_path='xxx"),
    "itself": ({"base_model_name_or_path": "."}, "the base model .* is not supported"),
    "an adapter with its model": (
        {"base_model_name_or_path": "../both"}, "the base model .* is not supported",
    ),
    "a run": ({"base_model_name_or_path": "../run"}, "the base model .* is not supported"),
}  # fmt: skip


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    path = tmp_path_factory.mktemp("adapters")
    (path / "base").mkdir()
    write_t5(path / "base")
    write_adapter(path / "adapter", path / "base", T5)
    shutil.copytree(path / "base", path / "both")
    write_adapter(path / "both", path / "base", T5)
    write_run(path / "run")
    open_model(path / "adapter", "best")
    return path / "adapter"


def check_refused(adapter, message):
    for read in (open_model, load_params):
        with pytest.raises(UserError, match=message) as caught:
            read(adapter, "best")
        assert caught.value.code == CHECKPOINT and "\n" not in str(caught.value)


def test_what_cannot_be_merged_is_refused_by_name(adapter):
    original = (adapter / "adapter_config.json").read_bytes()
    for fields, message in REFUSED.values():
        change_json(adapter / "adapter_config.json", **fields)
        check_refused(adapter, message)
        (adapter / "adapter_config.json").write_bytes(original)
    for content, message in (("[]", "is malformed"), (None, "adapter_config.json cannot be read")):
        (adapter / "adapter_config.json").unlink()
        if content:
            (adapter / "adapter_config.json").write_text(content)
        check_refused(adapter, message)
    (adapter / "adapter_config.json").write_bytes(original)
    assert base_directory(adapter).samefile(adapter.parent / "base")


def test_tensors_that_do_not_fit_the_base_model_are_refused_by_name(adapter):
    file, (a, b) = adapter / "adapter_model.safetensors", matrix_names(T5[0])
    weights, original = load_file(file), file.read_bytes()
    ones = np.ones((RANK, 16), np.float32)
    twice = dict(zip(matrix_names(f"model.{T5[0]}"), (weights[a], weights[b]), strict=True))
    for change, message in (
        ({a: None}, rf"{T5[0]}.lora_A.weight does not fit .* got no such tensor"),
        ({b: None}, rf"{T5[0]}.lora_B.weight does not fit .* got no such tensor"),
        ({b: weights[b].T.copy()}, r"lora_B.weight does not fit .* expected \(10, 3\)"),
        ({a: weights[a].astype(np.int8)}, "dtype I8"),
        (dict.fromkeys(weights), "expected tensors"),
        (twice, "at most one pair for each"),
        ({matrix_names("shared")[0]: ones}, "the module shared is not supported"),
        ({matrix_names("lm_head")[0]: ones}, "the module lm_head is not supported"),
        ({matrix_names("encoder.x")[0]: ones}, "the module encoder.x is not supported"),
        ({matrix_names("encoder.final_layer_norm")[0]: ones}, "final_layer_norm is not supported"),
        ({"base_model.model.shared.lora_embedding_A": ones}, "lora_embedding_A is not supported"),
        ({f"base_model.model.{T5[0]}.lora_magnitude_vector": ones}, "magnitude_vector is not"),
    ):
        changed = {name: x for name, x in (weights | change).items() if x is not None}
        save_file(changed, file)
        check_refused(adapter, message)
    file.write_bytes(original[:-1])
    check_refused(adapter, "adapter_model.safetensors cannot be read")
    file.unlink()
    check_refused(adapter, "adapter_model.safetensors is missing")
    file.write_bytes(original)


@pytest.mark.parametrize("family", ["marian", "bart", "t5"])
def test_the_parameters_are_those_that_peft_merges(family, tmp_path):
    torch, transformers = libraries()
    peft = pytest.importorskip("peft")
    base, adapter, merged = (tmp_path / name for name in ("base", "adapter", "merged"))
    base.mkdir()
    if family == "marian":
        write_marian(base)
    else:
        write_pretrained(base, family)
    targets = ["q", "v", "wi", "wo"] if family == "t5" else ["q_proj", "v_proj", "fc1", "fc2"]
    for number, settings in enumerate((
        {}, {"use_rslora": True, "rank_pattern": {targets[0]: 5}, "alpha_pattern": {targets[3]: 3},
             "layers_to_transform": [0], "layers_pattern": "block" if family == "t5" else "layers"},
    )):  # fmt: skip
        config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=targets, **settings)
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(base, dtype="float32")
        model = peft.get_peft_model(model, config)
        torch.manual_seed(number)
        with torch.no_grad():
            for name, values in model.named_parameters():
                if "lora_" in name:
                    values.normal_()
        model.save_pretrained(adapter)
        shutil.copytree(base, merged, dirs_exist_ok=True)
        model.merge_and_unload().save_pretrained(merged)
        assert open_model(adapter, "best")[0].model == open_model(merged, "best")[0].model
        params, expected = load_params(adapter, "best"), load_params(merged, "best")
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), params, expected)
