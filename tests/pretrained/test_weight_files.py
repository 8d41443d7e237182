"""Every form of the weights that transformers reads alike is read, every other one is refused."""

import json

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from seq2seq.decoding.command.resumable_output import model_files
from seq2seq.decoding.stated_settings import directory_notes
from seq2seq.pretrained.models import find_params, load_params, open_model
from seq2seq.runtime.errors import CHECKPOINT, UserError
from tests.support.flax_weights import flax_keys, write_flax
from tests.support.models.tiny_marian import write_marian
from tests.support.models.tiny_pretrained import change_json, write_fairseq, write_t5
from tests.support.torch_archive import write_tensors

SHARED, OUTPUT = "model.shared.weight", "lm_head.weight"
ENCODER, DECODER = (f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder"))
NOISE = np.float32(0.001)
OLD_BIAS = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
POSITIONS = "model.decoder.embed_positions.weight"

WITHOUT_EFFECT = "encoder.version", "model.encoder.embed_positions.weights"


def model_fixture(name, write, *arguments, **options):
    """A fixture: the directory that a function writes, once for all tests."""

    @pytest.fixture(scope="module", name=name)
    def directory(tmp_path_factory):
        path = tmp_path_factory.mktemp(name)
        write(path, *arguments, **options)
        return path

    return directory


nllb = model_fixture("nllb", write_fairseq, "m2m_100")
mbart = model_fixture("mbart", write_fairseq, "mbart")
pegasus = model_fixture("pegasus", write_fairseq, "pegasus")
marian = model_fixture("marian", write_marian)
two = model_fixture("two", write_marian, share_encoder_decoder_embeddings=False)
# Gated, with an output matrix.
t5 = model_fixture("t5", write_t5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)


def changed(source, target, change):
    """A copy of a directory with other weights: `change` takes and returns the tensors."""
    target.mkdir()
    for file in source.glob("*"):
        (target / file.name).write_bytes(file.read_bytes())
    weights = change(load_file(source / "model.safetensors"))
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    return target


def check_equal(path, original):
    open_model(path, "best")
    jax.tree.map(
        np.testing.assert_array_equal, load_params(path, "best"), load_params(original, "best")
    )


def renamed(**names):
    """The tensors with other names, in which `__` stands for a dot."""
    names = {old.replace("__", "."): new.replace("__", ".") for old, new in names.items()}
    return lambda weights: {names.get(name, name): x for name, x in weights.items()}


def without_prefix(weights):
    """As the model without its output layer is saved."""
    return {
        name.removeprefix("model."): x for name, x in weights.items() if name != "final_logits_bias"
    }


def with_copies(*names):
    return lambda weights: weights | {name: next(
        weights[table].copy() for table in (SHARED, "shared.weight") if table in weights
    ) for name in names}  # fmt: skip


def test_a_table_under_any_of_its_names_is_read(marian, two, nllb, t5, tmp_path):
    forms = [
        (marian, lambda w: {DECODER if n == SHARED else n: x for n, x in w.items()}),
        (marian, with_copies(ENCODER, DECODER, OUTPUT)),
        (two, lambda w: w | {SHARED: w[ENCODER].copy(), OUTPUT: w[DECODER].copy()}),
        (nllb, lambda w: {ENCODER if n == SHARED else n: x for n, x in w.items()}),
        (nllb, lambda w: {DECODER if n == SHARED else n: x for n, x in w.items()}),
        (nllb, lambda w: {OUTPUT if n == SHARED else n: x for n, x in w.items()}),
        (nllb, with_copies(ENCODER, DECODER, OUTPUT)),
        (nllb, without_prefix),
        (nllb, lambda w: w | {name: np.ones((9, 16), np.float32) for name in WITHOUT_EFFECT}),
        (nllb, lambda w: w | {"final_logits_bias": np.zeros((1, len(w[SHARED])), np.float32)}),
        (t5, with_copies("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")),
        (t5, renamed(shared__weight="decoder__embed_tokens__weight")),
        (t5, renamed(shared__weight="encoder__embed_tokens__weight")),
        (t5, lambda w: w | {OLD_BIAS: np.ones((32, 2), np.float32)}),
    ]  # fmt: skip
    for number, (source, change) in enumerate(forms):
        check_equal(changed(source, tmp_path / str(number), change), source)
    only = changed(
        t5, tmp_path / "only", lambda w: {n: x for n, x in w.items() if "shared" not in n}
    )
    tables = [x for name, x in load_params(only, "best").items() if name.endswith("embedding")]
    assert len(tables) == 2 and tables[0]["table"] is tables[1]["table"]


def test_a_missing_output_bias_is_zero(mbart, tmp_path):
    for number, change in enumerate(
        (without_prefix, lambda w: {n: x for n, x in w.items() if n != "final_logits_bias"})
    ):
        params = load_params(changed(mbart, tmp_path / str(number), change), "best")
        original = load_params(mbart, "best")
        assert not params["output_bias"].any() and original["output_bias"].any()
        np.testing.assert_array_equal(
            params["encoder"]["positions"]["table"], original["encoder"]["positions"]["table"]
        )


def test_without_tying_an_old_file_has_the_shared_table_for_both_sides(nllb, tmp_path):
    path = changed(nllb, tmp_path / "old", lambda w: w | {OUTPUT: w[SHARED] * 2})
    change_json(path / "config.json", tie_word_embeddings=False)
    params = load_params(path, "best")
    source, target, output = (
        params[f"{n}_embedding"]["table"] for n in ("source", "target", "output")
    )
    np.testing.assert_array_equal(source, target)
    np.testing.assert_array_equal(output, 2 * target)
    assert source is target  # one array in memory


def test_an_output_matrix_with_other_values_is_used_in_any_case(mbart, nllb, tmp_path):
    """As in transformers 5; older versions ignore it if config.json ties the embeddings."""
    for directory in (mbart, nllb):
        paths = [tmp_path / f"{directory.name} {stated}" for stated in (True, False)]
        for path, stated in zip(paths, (True, False), strict=True):
            changed(directory, path, lambda w: w | {OUTPUT: w[SHARED] + NOISE})
            change_json(path / "config.json", tie_word_embeddings=stated)
        check_equal(*paths)
        configs = [open_model(path, "best")[0] for path in paths]
        assert configs[0] == configs[1] and configs[0].model.tied_embeddings == "none"
        (line,) = directory_notes(paths[0], configs[0])
        assert f"{OUTPUT} has other values than the embeddings: it is used" in line
        assert not [*directory_notes(paths[1], configs[1])]
        assert not [*directory_notes(directory, open_model(directory, "best")[0])]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_precisions_are_read_as_float32(t5, tmp_path, dtype):
    path = changed(t5, tmp_path / "other", lambda w: {n: x.astype(dtype) for n, x in w.items()})
    expected = jax.tree.map(lambda x: x.astype(dtype).astype(np.float32), load_params(t5, "best"))
    jax.tree.map(np.testing.assert_array_equal, load_params(path, "best"), expected)


def sharded(source, path, parts=3):
    """A copy of a directory with its weights in several files; returns their index."""
    changed(source, path, lambda weights: weights)
    weights, places = load_file(path / "model.safetensors"), {}
    (path / "model.safetensors").unlink()
    for part in range(parts):
        file = f"model-{part + 1:05}-of-{parts:05}.safetensors"
        names = sorted(weights)[part::parts]
        save_file({name: weights[name] for name in names}, path / file, {"format": "pt"})
        places |= dict.fromkeys(names, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return places


def test_shards_are_read_and_checked_against_their_index(t5, tmp_path):
    places = sharded(t5, tmp_path / "t5")
    index = tmp_path / "t5" / "model.safetensors.index.json"
    check_equal(tmp_path / "t5", t5)
    assert find_params(tmp_path / "t5", "best") == index
    first = min(places)
    for content, message in (
        (places | {first: "../t5/model-00001.safetensors"}, "expected weight_map"),
        (places | {first: "model-00002-of-00003.safetensors"}, f"expected {first} in"),
        (places | {"x": "model-00002-of-00003.safetensors"}, "expected x in .* no shard"),
        ({n: f for n, f in places.items() if n != first}, f"expected {first} in no shard"),
        (places | {first: "model-00009.safetensors"}, "model-00009.safetensors is missing"),
        ([], "is malformed"),
    ):  # fmt: skip
        index.write_text(json.dumps({"weight_map": content}))
        with pytest.raises(UserError, match=message) as caught:
            open_model(tmp_path / "t5", "best")
        assert caught.value.code == CHECKPOINT
    single = t5 / "model.safetensors"
    (tmp_path / "t5" / single.name).write_bytes(single.read_bytes())
    check_equal(tmp_path / "t5", t5)  # the index is ignored, as in transformers


@pytest.mark.parametrize("stem, suffix, write_file", [
    ("pytorch_model", ".bin", write_tensors), ("flax_model", ".msgpack", write_flax),
])  # fmt: skip
def test_files_of_torch_or_flax_have_the_parameters_of_the_safetensors(
    stem, suffix, write_file, t5, mbart, marian, tmp_path
):
    for original in (t5, mbart, marian):
        path = changed(original, tmp_path / original.name, lambda weights: weights)
        safetensors, file = path / "model.safetensors", path / f"{stem}{suffix}"
        weights = load_file(safetensors)
        file.write_bytes(b"never opened while there are safetensors")
        assert find_params(path, "best") == safetensors
        safetensors.unlink()
        write_file(file, weights)
        assert find_params(path, "best") == file
        assert open_model(path, "best")[0] == open_model(original, "best")[0]
        check_equal(path, original)
        file.unlink()
        places = {}
        for part in range(2):
            names, shard = sorted(weights)[part::2], f"{stem}-{part + 1:05}-of-00002{suffix}"
            write_file(path / shard, {name: weights[name] for name in names})
            keys = ["/".join(flax_keys(n)) for n in names] if suffix == ".msgpack" else names
            places |= dict.fromkeys(keys, shard)
        index = path / f"{file.name}.index.json"
        index.write_text(json.dumps({"weight_map": places}))
        assert find_params(path, "best") == index
        assert {index, *path.glob(f"{stem}-*")} < {*model_files(path, "best")}
        check_equal(path, original)
    index.write_text(json.dumps({"weight_map": places | {min(places): f"../a{suffix}"}}))
    with pytest.raises(UserError, match="weight_map") as caught:
        load_params(path, "best")
    assert caught.value.code == CHECKPOINT


REFUSED = {  # family, change, message
    "a differing copy": ("nllb", lambda w: w | {ENCODER: w[SHARED] + NOISE}, ENCODER),
    "a differing copy in T5": (
        "t5",
        lambda w: w | {"encoder.embed_tokens.weight": w["shared.weight"] + NOISE},
        "encoder.embed_tokens.weight has other values",
    ),
    "a bias of the logits in M2M-100": (
        "nllb",
        lambda w: w | {"final_logits_bias": np.ones((1, len(w[SHARED])), np.float32)},
        "final_logits_bias has other values",
    ),
    "a differing copy in MarianMT": (
        "marian", lambda w: w | {ENCODER: w[SHARED] + 1}, f"{ENCODER} has other values",
    ),
    "a differing output matrix in MarianMT": (
        "marian", lambda w: w | {OUTPUT: w[SHARED] + 1}, f"{OUTPUT} has other values",
    ),
    "a differing output matrix in MarianMT with two tables": (
        "two", lambda w: w | {OUTPUT: w[ENCODER].copy()}, f"{OUTPUT} has other values",
    ),
    "a trained table of positions in MarianMT": (
        "marian", lambda w: w | {POSITIONS: np.ones((31, 26), np.float32)}, POSITIONS,
    ),
    "a trained table of positions in Pegasus": (
        "pegasus", lambda w: w | {POSITIONS: np.ones((40, 16), np.float32)}, POSITIONS,
    ),
    "a left-over tensor": (
        "nllb",
        lambda w: w | {"classification_head.dense.weight": NOISE * np.ones((2, 2), np.float32)},
        "classification_head.dense.weight is unexpected",
    ),
    "a missing tensor": (
        "t5",
        lambda w: {n: x for n, x in w.items() if n != "decoder.final_layer_norm.weight"},
        "decoder.final_layer_norm.weight is missing",
    ),
    "the encoder of T5 alone": (
        "t5", lambda w: {n: x for n, x in w.items() if not n.startswith("decoder")},
        "decoder.block.0.* is missing",
    ),
    "a misshapen tensor": (
        "t5", lambda w: w | {"shared.weight": w["shared.weight"][:-1]}, "shared.weight has shape",
    ),
    "integers": (
        "t5", lambda w: w | {"shared.weight": w["shared.weight"].astype(np.int8)}, "dtype I8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", REFUSED)
def test_other_forms_are_refused_by_the_name_of_the_tensor(form, request, tmp_path):
    family, change, message = REFUSED[form]
    path = changed(request.getfixturevalue(family), tmp_path / "changed", change)
    with pytest.raises(UserError, match=message) as caught:
        open_model(path, "best")
        load_params(path, "best")
    assert caught.value.code == CHECKPOINT
