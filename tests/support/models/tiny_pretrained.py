"""Random models of the families of transformers and directories of them, for tests."""

import json
from functools import cache
from pathlib import Path

import pytest

from tests.support.models.tiny_tokenizers import CODES, T5, model, write

D, F, H, POSITIONS = 16, 23, 2, 40
FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>"]


def fairseq_options(size: int) -> dict:
    parts = {"layers": 1, "attention_heads": H, "ffn_dim": F}
    sides = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in parts.items()}
    sides["decoder_layers"] = 2
    return dict(vocab_size=size, d_model=D, max_position_embeddings=POSITIONS, **sides)


def t5_options(size: int) -> dict:
    return dict(
        vocab_size=size, d_model=D, d_kv=5, d_ff=F, num_layers=2, num_decoder_layers=1,
        num_heads=H, decoder_start_token_id=0,
    )  # fmt: skip


def write_tokenizer(path: Path, family: str) -> int:
    """The tokenizer of a family; returns the rows of the embedding, two more than it has ids."""
    from sentencepiece import SentencePieceProcessor

    ids = T5 if "t5" in family or family in ("pegasus", "madlad") else {}
    content, processor = model(**ids), SentencePieceProcessor()
    processor.LoadFromSerializedProto(content)
    pieces = processor.get_piece_size()
    if family in ("m2m_100", "mbart", "mbart_50"):
        from seq2seq.pretrained.language_codes import MBART_50

        codes = [*(MBART_50 if family == "mbart_50" else CODES), "<mask>"]
        numbers = {**{p: i for i, p in enumerate(FAIRSEQ)},
                   **{code: pieces + 1 + i for i, code in enumerate(codes)}}  # fmt: skip
        added = {str(i): {"content": p, "special": True} for p, i in numbers.items()}
        kind = {"mbart": "MBart", "mbart_50": "MBart50"}.get(family, "Nllb")
        config = {"tokenizer_class": f"{kind}Tokenizer", "added_tokens_decoder": added}
        write(path, sentencepiece__bpe__model=content, tokenizer_config__json=config)
        return pieces + 1 + len(codes) + 2
    if family == "bart":
        pytest.importorskip("tokenizers")
        vocabulary = {p: i for i, p in enumerate([*FAIRSEQ, *map(chr, range(97, 123)), "<mask>"])}
        write(path, vocab__json=vocabulary, merges__txt="#version: 0.2\n")
        return len(vocabulary) + 2
    write(path, spiece__model=content, tokenizer_config__json={"extra_ids": 0})
    return pieces + (103 if family == "pegasus" else 0) + 2


@cache
def libraries():
    """(torch, transformers), with one thread: more only wait for each other in small models."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.set_num_threads(1)
    return torch, transformers


def write_pretrained(path: Path, family: str, end: float = 0.0, inputs: float = 1.0, **fields):
    """Writes a directory of a random model and its tokenizer; returns the model of transformers
    that it loads. All parameters are random. `end` is added to the logit of the end token;
    embeddings and learned positions are multiplied by `inputs`."""
    from safetensors.numpy import load_file, save_file

    torch, transformers = libraries()
    size = write_tokenizer(path, family)
    kinds = {
        "m2m_100": ("M2M100", fairseq_options), "mbart": ("MBart", fairseq_options),
        "mbart_50": ("MBart", fairseq_options), "bart": ("Bart", fairseq_options),
        "pegasus": ("Pegasus", fairseq_options),
        "mt5": ("MT5", t5_options), "umt5": ("UMT5", t5_options),
    }  # fmt: skip
    prefix, options = kinds.get(family, ("T5", t5_options))
    torch.manual_seed(0)
    config = getattr(transformers, f"{prefix}Config")(**options(size) | fields)
    reference = getattr(transformers, f"{prefix}ForConditionalGeneration")(config)
    with torch.no_grad():
        for name, values in [*reference.named_parameters(), *reference.named_buffers()]:
            is_sinusoidal = "embed_positions" in name and family in ("m2m_100", "pegasus")
            if values.is_floating_point() and not is_sinusoidal:
                is_input = name.endswith(
                    ("shared.weight", "embed_tokens.weight", "positions.weight")
                )
                is_scale = "norm" in name and name.endswith("weight")
                values.normal_(float(is_scale), 0.3 * (inputs if is_input else 1))
        if family in ("mbart", "mbart_50", "bart", "pegasus"):
            reference.final_logits_bias[0, config.eos_token_id] += end
        elif family == "m2m_100":  # through the last norm, towards the embedding of the end token
            row = reference.model.shared.weight[config.eos_token_id]
            reference.model.decoder.layer_norm.bias += end * row / row.square().sum()
    reference.save_pretrained(path)
    file = path / "model.safetensors"
    if family in ("t5_gated", "mt5", "madlad"):  # with an output matrix, as published
        weights = load_file(file)
        weights["lm_head.weight"] = torch.randn(size, D).numpy() * 0.3
        if family == "madlad":
            weights["decoder.embed_tokens.weight"] = weights.pop("shared.weight")
        save_file(weights, file, {"format": "pt"})
        change_json(path / "config.json", tie_word_embeddings=False)
        dropped = json.loads((path / "config.json").read_text())
        dropped.pop("scale_decoder_outputs", None)
        (path / "config.json").write_text(json.dumps(dropped))
    return loaded(path)


def loaded(path: Path):
    """The model of transformers that a directory holds."""
    _, transformers = libraries()
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(path, dtype="float32").eval()


def write_fairseq(path: Path, family: str, **fields) -> None:
    """A directory of M2M-100, mBART, BART or Pegasus with random weights, without transformers."""
    write_directory(path, family, fairseq_options(write_tokenizer(path, family)) | fields)


def write_t5(path: Path, **fields) -> None:
    """A directory of T5 with random weights, without transformers."""
    write_directory(path, "t5", t5_options(write_tokenizer(path, "t5")) | fields)


def write_directory(path: Path, family: str, fields: dict) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    from seq2seq.pretrained.json_fields import JsonFields
    from seq2seq.pretrained.models import TRANSFORMERS_FAMILIES

    row = next(row for row in TRANSFORMERS_FAMILIES if row.model_type == family)
    (path / "config.json").write_text(json.dumps({"model_type": family} | fields))
    names = [] if fields.get("tie_word_embeddings", True) else ["lm_head.weight"]
    config = row.config(JsonFields(path, row.defaults | fields), names)
    choose = np.random.default_rng(0)
    weights = {
        tensor.name: choose.normal(0, 0.3, tensor.shape).astype(np.float32)
        for tensor in row.tensors(config)
    }
    save_file(weights, path / "model.safetensors", {"format": "pt"})


def change_json(path: Path, **fields) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | fields))
