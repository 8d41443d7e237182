"""The model card that convert.py writes, read by huggingface_hub."""

import contextlib
import io
import json
import re
from dataclasses import replace

import pytest

from seq2seq.config.tree import load_config
from seq2seq.pretrained.model_card import model_card
from seq2seq.runtime.errors import CHECKPOINT, UserError
from seq2seq.scripts.convert import export_run, import_model
from tests.support.models.tiny_marian import SENTENCES, write_marian

hub = pytest.importorskip("huggingface_hub")

SIGNATURE = "nrefs:1|tok:13a|version:2.6.0"
SCORES = {
    "": {"BLEU": 31.25, "chrF2": 55.5, "exact match": 12.0},
    "news: a": {"BLEU": 20.0, "lower-cased tokenised BLEU": 21.5},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that was made of a MarianMT directory."""
    path = tmp_path_factory.mktemp("card")
    write_marian(path / "marian")
    import_model(path / "marian", path / "run")
    return path / "run"


def write_scores(run, checkpoint="average", best="average"):
    sets = {
        name: {
            "sentences": 5,
            "scores": [{"name": n, "value": v, "signature": SIGNATURE} for n, v in scores.items()],
        }
        for name, scores in SCORES.items()
    }
    content = json.dumps({"checkpoint": checkpoint, "sets": sets})
    (run / "scores.json").write_text(content)
    (run / "best.json").write_text(
        json.dumps({"checkpoint": best, "bleu": 30.5, "loss": float("nan")})
    )


def card_of(run, checkpoint="average", **data):
    """(the card as huggingface_hub reads it, its text)."""
    config = load_config(run / "config.json")
    config = replace(config, data=replace(config.data, **data))
    text = model_card(run.parent / "marian", "mine", config, run, checkpoint)
    return hub.ModelCard(text, ignore_metadata_errors=False), text


def test_an_exported_directory_has_a_card_with_the_scores_of_its_checkpoint(run, tmp_path):
    write_scores(run)
    (run / "run.json").write_text(json.dumps({"init_from": f"hf://o/base.v1@{'a' * 40}"}))
    export_run(run, "best", tmp_path / "out")
    metadata = hub.metadata_load(tmp_path / "out" / "README.md")
    assert metadata.keys() == {"library_name", "tags", "base_model", "metrics", "model-index"}
    card = hub.ModelCard.load(tmp_path / "out" / "README.md")
    assert (card.data.library_name, card.data.base_model) == ("transformers", "o/base.v1")
    assert card.data.metrics == ["bleu", "chrf", "exact_match"]
    assert card.data.license is None and card.data.model_name == "out"
    read = [(r.dataset_name, r.metric_name, r.metric_value) for r in card.data.eval_results]
    expected = [
        (name or "held-out data", metric, value)
        for name, scores in SCORES.items()
        for metric, value in scores.items()
    ]
    assert read == [*expected, ("validation data", "bleu", 30.5)]
    assert f"| news: a | BLEU | 20 | {SIGNATURE.replace('|', ' ')} |" in card.text
    assert "nan" not in card.content and str(tmp_path) not in card.content
    (run / "run.json").unlink()


@pytest.mark.parametrize("checkpoint, best", [(7, 7), ("average", 7), (7, "average")])
def test_scores_of_another_checkpoint_are_left_out(run, checkpoint, best):
    write_scores(run, checkpoint, best)
    card, text = card_of(run)
    sets = {result.dataset_name for result in card.data.eval_results or ()}
    held_out = {"held-out data", "news: a"} if checkpoint == "average" else set()
    assert sets == held_out | ({"validation data"} if best == "average" else set())
    assert ("## Scores" in text) == bool(sets)


def test_a_card_names_languages_that_the_config_states(run):
    for code in ("", "deutsch"):  # a code that is none, and no text has it
        card, text = card_of(run, "none", source_language=code)
        assert "language" not in card.data.to_dict() and card.data.pipeline_tag is None
        assert "--workdir=DIRECTORY --input" in text
    card, text = card_of(
        run, "none", source_language="eng_Latn", target_language="kor_Hang",
        source_begin="{source}", target_begin="{target}",
    )  # fmt: skip
    assert card.data.language == ["eng", "kor"] and card.data.pipeline_tag == "translation"
    assert "DIRECTORY --source_language=eng_Latn --target_language=kor_Hang --input" in text


def test_malformed_scores_are_refused(run):
    write_scores(run)
    for content in ('{"checkpoint": "average", "sets": {"a": {"scores": [{}]}}}', '{"x": 1}', "["):
        (run / "scores.json").write_text(content)
        with pytest.raises(UserError, match=r"scores.json is malformed") as caught:
            card_of(run)
        assert caught.value.code == CHECKPOINT
    (run / "scores.json").unlink()


def test_the_commands_of_a_card_translate(run):
    pytest.importorskip("torch"), pytest.importorskip("transformers")
    _, text = card_of(run, "none")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    code = code.replace("DIRECTORY", str(run.parent / "marian")).replace("TEXT", SENTENCES[0])
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, {})
    assert out.getvalue().startswith("['")
