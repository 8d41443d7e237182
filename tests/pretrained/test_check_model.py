"""scripts/check_model.py: its table for directories read rightly, wrongly or not at all."""

from dataclasses import replace

import pytest
from safetensors.numpy import load_file

from seq2seq.pretrained.models import load_params, open_model
from seq2seq.runtime.errors import CHECKPOINT, CONFIGURATION, DATA
from seq2seq.scripts import check_model
from seq2seq.scripts.checks import reference
from tests.support.in_process import call_in_process
from tests.support.models.tiny_pretrained import (
    change_json,
    write_fairseq,
    write_pretrained,
    write_t5,
)
from tests.support.tiny import WORDS, write_run
from tests.support.torch_archive import write_tensors

NAMES = ["files", "fields", "parameters", "tokenizer", "token ids", "logits", "hypotheses"]


def verdicts(out):
    """The verdict of each row, and the last line."""
    *table, last = out.splitlines()
    assert [line[:10].strip() for line in table] == NAMES
    return [line[12:].partition(": ")[0] for line in table], last


def test_without_transformers_the_files_and_the_tokenizer_are_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(reference, "find_spec", lambda name: None)
    write_t5(tmp_path / "t5")
    write_fairseq(tmp_path / "mbart", "mbart")  # its start token needs a language
    weights = tmp_path / "t5" / "model.safetensors"
    write_tensors(tmp_path / "t5" / "pytorch_model.bin", load_file(weights))
    weights.unlink()
    for name in ("t5", "mbart"):
        done = call_in_process(check_model, tmp_path / name, "--compilation_cache=off")
        assert (done.code, done.err) == (0, [])
        expected = ["ok"] * 4 + ["not checked"] * 3
        assert verdicts(done.out) == (expected, "verdict: ok (4 ok, 0 failed, 3 not checked)")
        assert done.out.count("not checked: transformers is not installed\n") == 3


def test_what_cannot_be_read_is_a_failed_row_or_an_error(tmp_path):
    write_t5(tmp_path)
    (tmp_path / "blank.txt").write_text("\n \n")
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    write_run(tmp_path / "run")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text("{bad")
    for arguments, code, error in (
        ([tmp_path / "run"], CHECKPOINT, "is not a directory of transformers: expected a config"),
        ([tmp_path / "damaged"], CHECKPOINT, "config.json is malformed: Expecting property name"),
        ([], CONFIGURATION, "the directory is missing: expected check_model.py DIR"),
        ([tmp_path, f"--input={tmp_path / 'blank.txt'}"], DATA, "blank.txt has no text"),
        (["--debug", "--compilation_cache", "off", tmp_path], CHECKPOINT, "1 checks failed"),
        ([tmp_path, "--compilation_cache=off"], CHECKPOINT, "1 checks failed"),
    ):
        done = call_in_process(check_model, *arguments)
        assert done.code == code and len(done.err) == 1 and error in done.err[0]
    assert done.out.startswith("files       failed: ") and "pytorch_model.bin" in done.out
    assert done.out.endswith("\nverdict: failed (0 ok, 1 failed, 0 not checked)\n")


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bart", "t5"])
def test_a_directory_is_compared_with_transformers(tmp_path, family):
    """Another reading of a field than that of transformers is found."""
    write_pretrained(tmp_path, family)
    settings = {"num_beams": 3, "max_length": 9, "length_penalty": 2.0, "early_stopping": True,
                "num_return_sequences": 2, "return_dict_in_generate": True}  # fmt: skip
    change_json(tmp_path / "generation_config.json", **settings)
    (tmp_path / "lines.txt").write_text("".join(f"{word}\n" for word in WORDS))
    flags = f"--input={tmp_path / 'lines.txt'}", "--compilation_cache=off"
    done = call_in_process(check_model, tmp_path, *flags)
    assert done.code == 0, done.out
    expected = ["ok"] * len(NAMES), "verdict: ok (7 ok, 0 failed, 0 not checked)"
    assert verdicts(done.out) == expected and "10 of 10 equal" in done.out
    config, tokenizers = open_model(tmp_path, "best")
    wrong = {"scale_logits": False} if family == "t5" else {"layer_norm_epsilon": 1e-3}
    config = replace(config, model=replace(config.model, **wrong))
    params = load_params(tmp_path, "best")
    comparison = reference.Comparison(tmp_path, config, tokenizers, params, WORDS)
    assert not comparison.logits()[0] and comparison.token_ids()[0]
