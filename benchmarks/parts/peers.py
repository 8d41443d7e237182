"""The programs that ours is compared with, with the sizes of a ModelConfig and random weights.

PyTorch's nn.Transformer, MarianMT of transformers, and CTranslate2. PyTorch is imported inside the
functions: it is optional.
"""

from importlib.util import find_spec
from typing import Any

from seq2seq.model.config import ModelConfig

PACKAGES = {
    "PyTorch": ("torch",),
    "HF generate": ("torch", "transformers"),
    "CTranslate2": ("torch", "transformers", "ctranslate2"),
}


def missing_packages(peer: str) -> list[str]:
    """The packages that a peer needs and that are not installed; nothing is imported."""
    return [name for name in PACKAGES.get(peer, ()) if find_spec(name) is None]


def peer_device(has_cuda: bool, platform: str) -> str:
    """cuda, or cpu where JAX uses the CPU too. RuntimeError if the peer cannot use the
    accelerator: its times on the CPU would be compared with those of another device."""
    if not has_cuda and platform != "cpu":
        raise RuntimeError(f"the installed package cannot use this {platform}")
    return "cuda" if has_cuda else "cpu"


def torch_transformer(config: ModelConfig, length: int, device: str = "cpu"):
    """(module, function of source and target [B, T] that gives logits) of nn.Transformer.

    By default its `dropout` is also the rate of the attention weights and of the activations inside
    the feed-forward sub-layers, which have rates of their own in ModelConfig.
    """
    import torch
    from torch import nn

    width = config.d_model
    transformer = nn.Transformer(
        width, config.num_heads, config.num_layers, config.decoder_layers, config.d_ff,
        dropout=config.dropout, batch_first=True, device=device,
    )  # fmt: skip
    for layer in (*transformer.encoder.layers, *transformer.decoder.layers):
        layer.dropout.p = config.activation_dropout
    for module in transformer.modules():
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = config.attention_dropout
    embedding = nn.Embedding(config.target_vocab_size, width, device=device)
    model = nn.ModuleDict({"embedding": embedding, "transformer": transformer})
    dropout = nn.Dropout(config.dropout)
    causal = nn.Transformer.generate_square_subsequent_mask(length, device=device)
    positions = torch.randn(length, width, device=device)

    def logits(source, target):
        embedded = [
            dropout(model["embedding"](x) * width**0.5 + positions) for x in (source, target)
        ]
        x = transformer(*embedded, tgt_mask=causal, tgt_is_causal=True)
        return x @ model["embedding"].weight.T

    return model, logits


def marian_model(config: ModelConfig, **options: Any):
    """MarianMT of transformers."""
    from transformers import MarianConfig, MarianMTModel

    sizes = dict(
        vocab_size=config.target_vocab_size,
        d_model=config.d_model,
        encoder_layers=config.num_layers,
        decoder_layers=config.decoder_layers,
        encoder_attention_heads=config.num_heads,
        decoder_attention_heads=config.num_heads,
        encoder_ffn_dim=config.d_ff,
        decoder_ffn_dim=config.d_ff,
        dropout=config.dropout,
        activation_function="swish" if config.activation == "silu" else config.activation,
        pad_token_id=config.pad_id,
        decoder_start_token_id=config.start_id,
        eos_token_id=config.end_id,
        max_position_embeddings=config.max_length,
        scale_embedding=config.scale_embeddings,
    )
    return MarianMTModel(MarianConfig(**sizes, **options))


def ctranslate2_translator(config: ModelConfig, directory: str, device: str):
    """(Translator, function of token ids that gives the tokens of its vocabulary), with random
    weights, in float16 on cuda and float32 elsewhere. `directory` receives the converted model."""
    import ctranslate2
    from ctranslate2.converters.transformers import BartLoader

    network = marian_model(config)
    network.config.normalize_before = network.config.normalize_embedding = False
    spec = BartLoader().get_model_spec(network)
    tokens = [f"t{i}" for i in range(config.target_vocab_size)]
    tokens[config.end_id], tokens[config.start_id] = "</s>", "<s>"
    tokens[config.unknown_id] = "<unk>"
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.decoder_start_token = "<s>"
    spec.validate()
    kind = "float16" if device == "cuda" else "float32"
    spec.optimize(quantization=kind)
    spec.save(directory)
    translator = ctranslate2.Translator(directory, device=device, compute_type=kind)
    return translator, lambda ids: [[tokens[i] for i in sentence] for sentence in ids]
