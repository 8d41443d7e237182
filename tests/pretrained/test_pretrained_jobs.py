"""Directories of the BART and T5 families in scores, alignments, attention pages, fine-tuning."""

import json
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from seq2seq.decoding.command.formats import formats_of
from seq2seq.decoding.command.output_lines import OutputLines
from seq2seq.decoding.command.progress import DecodingProgress
from seq2seq.decoding.translator import Translator
from seq2seq.model.config import ModelConfig
from seq2seq.pretrained.models import open_model
from seq2seq.scripts import attention_page
from tests.support.in_process import call_in_process
from tests.support.models.tiny_pretrained import change_json, libraries, loaded, write_pretrained
from tests.support.oracles.fine_tuning import batches_of, losses_of_run, losses_of_transformers
from tests.support.runs import run_training
from tests.support.tiny import tiny_config

pytestmark = pytest.mark.slow
BEGIN = {"bart": [0], "t5_gated": []}  # tokens at the beginning of each text


@pytest.fixture(scope="module", params=["bart", "t5_gated"])
def model(request, tmp_path_factory):
    """(family, directory, the model of transformers); BART has forced tokens at both ends."""
    family = request.param
    path = tmp_path_factory.mktemp("jobs") / family
    fields = {"feed_forward_proj": "gated-gelu"} if family == "t5_gated" else {}
    path.mkdir()
    reference = write_pretrained(path, family, **fields)
    reference.set_attn_implementation("eager")  # the other one returns no weights
    settings = {"num_beams": 2, "length_penalty": 0.8, "max_length": 30}
    forced = {"forced_bos_token_id": 0, "forced_eos_token_id": 2} if family == "bart" else {}
    change_json(path / "generation_config.json", **settings, **forced)
    return family, path, reference


@pytest.fixture(scope="module")
def pairs():
    """Pairs of texts of different lengths. The last target with its end token has the maximum
    length of BART, at which its end token is forced."""
    random = np.random.default_rng(0)
    lengths = [*random.integers(1, 25, (7, 2)), (9, 27)]
    return [tuple("".join(random.choice([*"dehinrst"], n)) for n in pair) for pair in lengths]


def in_transformers(reference, family, tokenizer, source, target):
    """The labels of a pair, and the output of transformers for them."""
    torch, _ = libraries()
    begin, end = BEGIN[family], reference.config.eos_token_id
    labels = [*begin, *tokenizer.encode(target), end]
    with torch.no_grad():
        output = reference(
            input_ids=torch.tensor([[*begin, *tokenizer.encode(source), end]]),
            labels=torch.tensor([labels]),
            output_attentions=True,
        )
    return labels, output


def job(translator, mode, pairs):
    """The output objects of a job of decode.py with --format=jsonl."""
    formats, progress = formats_of("jsonl"), DecodingProgress(0, False, False)
    output_lines = OutputLines(translator, mode, formats, "in", progress)
    lines = [json.dumps({"text": source, "target": target}) for source, target in pairs]
    items = [formats.input.parse(line, "in:1", True) for line in lines]
    results = {}
    for group in output_lines(enumerate(items)):
        results |= group
    return [json.loads(results[i]) for i in range(len(pairs))]


def test_scores_and_alignments_are_those_of_the_outputs_of_transformers(model, pairs):
    family, path, reference = model
    translator = Translator.load(path)
    tokenizer, free = translator.source_tokenizer, len(BEGIN[family])
    scores, alignments = (job(translator, mode, pairs) for mode in ("score", "align"))
    at_limit = 0
    for (source, target), scored, aligned in zip(pairs, scores, alignments, strict=True):
        labels, output = in_transformers(reference, family, tokenizer, source, target)
        log_probs = output.logits[0].log_softmax(-1).numpy()[range(len(labels)), labels]
        log_probs[:free] = 0.0
        if family == "bart" and len(labels) == translator.decoding.max_length:
            log_probs[-1], at_limit = 0.0, at_limit + 1
        np.testing.assert_allclose(scored["log_probs"], log_probs, atol=2e-5)
        total = log_probs.sum()
        assert scored["log_prob"] == pytest.approx(total, abs=1e-4)
        assert scored["score"] == pytest.approx(total / len(labels) ** 0.8, abs=1e-4)
        attended = output.cross_attentions[0][0].mean(0)[:-1, :-1].argmax(-1).tolist()
        assert aligned["alignment"] == [[i, j] for j, i in enumerate(attended)]
    assert at_limit == (family == "bart")


def test_attention_weights_are_those_of_transformers(model, pairs, tmp_path):
    family, path, reference = model
    source, target = pairs[0]
    page, arrays = tmp_path / "page.html", tmp_path / "arrays.npz"
    done = call_in_process(
        attention_page, f"--workdir={path}", f"--source={source}", f"--target={target}",
        f"--output={page}", f"--npz={arrays}",
    )  # fmt: skip
    assert done.code == 0, done.err
    tokenizer = open_model(path, "best")[1][0]
    _, output = in_transformers(reference, family, tokenizer, source, target)
    with np.load(arrays) as stored:
        for name in ("encoder", "decoder", "cross"):
            theirs = output[f"{name}_attentions"]
            expected = np.concatenate([layer.numpy() for layer in theirs])
            np.testing.assert_allclose(stored[name], expected, atol=1e-5)
    assert source in page.read_text(encoding="utf-8")


def test_ten_steps_of_fine_tuning_have_the_losses_of_transformers(model, pairs, tmp_path):
    family, path, _ = model
    file, run = tmp_path / "pairs.tsv", tmp_path / "run"
    file.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    lengths = dict(data__source_length=31, data__target_length=31)

    def train(steps):
        config = tiny_config(
            f"tsv:{file}", f"tsv:{file}", **lengths, training__init_from=str(path),
            training__num_steps=steps, training__tokens_per_batch=31 * 2, training__log_every=1,
            training__schedule="constant", training__learning_rate=0.003, training__warmup_steps=1,
            training__freeze="output_bias" * (family == "bart"),  # constant in transformers
            training__label_smoothing=0.0, training__eval_every=10, training__checkpoint_every=10,
            training__eval_sentences=1, decoding__beam_size=1,
        )  # fmt: skip
        return run_training(run, replace(config, model=ModelConfig(dropout=0.0)))

    trained = train(10)
    ours, batches = losses_of_run(run), islice(batches_of(trained), 10)
    theirs = losses_of_transformers(loaded(path), batches, trained.config.training)
    assert min(ours) < ours[0] - 0.1
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3)
    stored = open_model(path, "best")[0]
    off = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
    assert trained.config.model == replace(stored.model, **off)
    assert trained.config.data.target_begin == stored.data.target_begin
    train(11)
    assert "resumed at step 10" in (run / "train.log").read_text()
