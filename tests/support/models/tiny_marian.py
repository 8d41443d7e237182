"""Random MarianMT models and directories for tests."""

import io
import json
from pathlib import Path

import pytest

CONFIG = dict(
    vocab_size=43, d_model=26, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
    decoder_attention_heads=2, encoder_ffn_dim=37, decoder_ffn_dim=37, max_position_embeddings=31,
    pad_token_id=42, eos_token_id=0, bos_token_id=0, decoder_start_token_id=42,
    forced_eos_token_id=0, activation_function="swish", scale_embedding=True,
)  # fmt: skip
SHARING = {
    "three-way": dict(share_encoder_decoder_embeddings=True, tie_word_embeddings=True),
    "two-way": dict(share_encoder_decoder_embeddings=False, tie_word_embeddings=True),
    "none": dict(share_encoder_decoder_embeddings=False, tie_word_embeddings=False),
}


def random_model(spread=0.2, **fields):
    """(torch, a MarianMTModel with random weights, biases and norms); the row of <pad> is zero."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.MarianMTModel(transformers.MarianConfig(**{**CONFIG, **fields})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.add_(torch.randn_like(parameter) * spread)
            if name.endswith(("shared.weight", "embed_tokens.weight", "lm_head.weight")):
                parameter[model.config.pad_token_id] = 0.0
        model.final_logits_bias.normal_()
    return torch, model


SENTENCES = [
    "Zwei Hunde spielen im Schnee.", "Ein Mann fährt Fahrrad auf der Straße.",
    "A woman reads a book in the park.", "Two children run along the beach.",
    "Der Junge wirft einen roten Ball.", "The dog jumps over a fence.",
] * 3  # fmt: skip
TAGS = [">>deu<<", ">>fra<<"]


def sentencepiece(sentences, size, **options) -> bytes:
    """A small SentencePiece model, by default with its own ids of <unk>, <s> and </s>."""
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        vocab_size=size,
        minloglevel=2,
        hard_vocab_limit=False,
        **options,
    )
    return model.getvalue()


def write_vocabularies(path: Path, separate: bool = False) -> tuple[int, int]:
    """The five files of Marian's tokenizer; returns the numbers of ids of source and target.

    </s> is 0, <unk> 1, <pad> the last; the order of the pieces differs from the .spm files.
    """
    from sentencepiece import SentencePieceProcessor

    sides = []
    for side, sentences, size in (("source", SENTENCES[:4], 60), ("target", SENTENCES[2:], 70)):
        model = sentencepiece(sentences, size)
        (path / f"{side}.spm").write_bytes(model)
        processor = SentencePieceProcessor()
        processor.LoadFromSerializedProto(model)
        pieces = map(processor.id_to_piece, range(3, processor.get_piece_size()))
        sides.append(sorted(pieces, reverse=True))
    lists = sides if separate else [[*dict.fromkeys(sides[0] + sides[1])]]
    sizes = []
    for name, pieces in zip(("vocab.json", "target_vocab.json"), lists, strict=False):
        pieces = ["</s>", "<unk>", *pieces, *TAGS, "<pad>"]
        (path / name).write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
        sizes.append(len(pieces))
    (path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate})
    )
    return sizes[0], sizes[-1]


def write_marian(path: Path, **fields) -> None:
    """Writes a complete directory of a random model, without transformers."""
    import numpy as np
    from safetensors.numpy import save_file

    from seq2seq.pretrained.marian import marian_config
    from seq2seq.pretrained.marian_tensors import tensors

    path.mkdir(parents=True, exist_ok=True)
    size, _ = write_vocabularies(path)
    ids = {"pad_token_id": size - 1, "decoder_start_token_id": size - 1}
    config = {"model_type": "marian", **CONFIG, "vocab_size": size, **ids, **fields}
    (path / "config.json").write_text(json.dumps(config))
    (path / "generation_config.json").write_text(
        json.dumps(
            {
                "num_beams": 2,
                "max_length": 13,
                "bad_words_ids": [[size - 1]],
                "eos_token_id": 0,
                **ids,
            }
        )
    )
    choose, weights = np.random.default_rng(0), {}
    for name, _, shape, *_ in tensors(marian_config(path)[0]):
        weights[name] = choose.normal(0, 0.4, shape).astype(np.float32)
        if name.endswith("norm.weight"):
            weights[name] += 1.0
        if name.endswith(("shared.weight", "embed_tokens.weight")):
            weights[name][-1] = 0.0
    weights["final_logits_bias"][0, 0] += 1.0
    save_file(weights, path / "model.safetensors", {"format": "pt"})
