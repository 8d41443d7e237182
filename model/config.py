"""ModelConfig: the architecture, with the paper's names, and its validation."""

from dataclasses import dataclass

CHOICES = {
    "norm": ("post", "pre"),
    "positions": ("sinusoidal", "learned", "rotary", "none"),
    "sinusoid_layout": ("interleaved", "halves"),
    "activation": ("relu", "gelu", "silu"),
    "tied_embeddings": ("three-way", "two-way", "none"),
    "dtype": ("float32", "mixed", "bfloat16"),
}


@dataclass(unsafe_hash=True)
class ModelConfig:
    """Sizes and choices of an encoder-decoder Transformer (Vaswani et al. 2017, section 3).

    The defaults are the paper's base model (table 3). The two vocabulary sizes and the four token
    ids are properties of the vocabulary. A size of 0 means the size of the vocabulary.
    """

    source_vocab_size: int = 0
    target_vocab_size: int = 0
    d_model: int = 512  # width of every layer's input and output
    d_ff: int = 2048  # inner width of the feed-forward sub-layer
    num_heads: int = 8  # of d_model / num_heads dimensions each
    num_layers: int = 6  # of the encoder, and of the decoder by default
    num_decoder_layers: int = 0  # 0: as many as the encoder
    dropout: float = 0.1  # on sub-layer outputs and on embeddings + positions (section 5.4)
    norm: str = "post"  # post: norm(x + f(x)), the paper's; pre: x + f(norm(x)) and a final norm
    positions: str = "sinusoidal"  # sinusoidal | learned | rotary | none
    sinusoid_layout: str = "interleaved"  # sin, cos, sin, … (the paper's) | halves: sines first
    max_length: int = 1024  # positions in the tables; indexing clamps, so limit the input
    activation: str = "relu"  # relu | gelu (exact) | silu
    attention_bias: bool = False  # biases on query, key, value and output projections
    layer_norm_epsilon: float = 1e-6
    # three-way: source = target = output (section 3.4) | two-way: target = output | none
    tied_embeddings: str = "three-way"
    scale_embeddings: bool = True  # embeddings × √d_model (section 3.4)
    output_bias: bool = False  # add a bias to the logits
    remat: bool = False  # recompute activations in the backward pass, layer by layer: less memory
    # Of the computation: float32 | mixed (matmuls with weights in bfloat16, the rest in float32) |
    # bfloat16. Parameters, softmax, norms and loss are always float32.
    dtype: str = "float32"
    pad_id: int = 0
    start_id: int = 1
    end_id: int = 2
    unknown_id: int = 3

    @property
    def head_size(self) -> int:
        """d_k = d_v of the paper."""
        return self.d_model // self.num_heads

    @property
    def values_dtype(self) -> str:
        """The dtype of activations, between the matmuls."""
        return "bfloat16" if self.dtype == "bfloat16" else "float32"

    @property
    def weights_dtype(self) -> str:
        """The dtype in which matmuls with weights multiply."""
        return "float32" if self.dtype == "float32" else "bfloat16"

    @property
    def decoder_layers(self) -> int:
        return self.num_decoder_layers or self.num_layers

    def validate(self) -> None:
        """Raises ValueError (field, expected, got) for a model that cannot be built."""
        for name, allowed in CHOICES.items():
            got = getattr(self, name)
            if got not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {got!r}")
        for name in ("d_model", "d_ff", "num_heads", "num_layers", "max_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("source_vocab_size", "target_vocab_size", "num_decoder_layers"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.d_model % self.num_heads:
            raise ValueError(
                f"d_model must be a multiple of num_heads, got d_model={self.d_model}, "
                f"num_heads={self.num_heads}"
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"sinusoidal positions need an even d_model, got {self.d_model}")
        if self.positions == "rotary" and self.head_size % 2:
            raise ValueError(f"rotary positions need an even head size, got {self.head_size}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        if not self.layer_norm_epsilon > 0.0:
            raise ValueError(f"layer_norm_epsilon must be positive, got {self.layer_norm_epsilon}")
        sizes = self.source_vocab_size, self.target_vocab_size
        if self.tied_embeddings == "three-way" and sizes[0] != sizes[1]:
            raise ValueError(
                "three-way tied embeddings need one vocabulary for both sides, got "
                f"source_vocab_size={sizes[0]}, target_vocab_size={sizes[1]}"
            )
        for name in ("pad_id", "start_id", "end_id", "unknown_id"):
            got = getattr(self, name)
            if got < 0 or 0 < sizes[1] <= got:
                raise ValueError(f"{name} must be an id of the vocabulary, got {got}")


def num_parameters(config: ModelConfig) -> int:
    """The number of parameters in closed form; a test compares it with an initialised model."""
    d, f, bias = config.d_model, config.d_ff, config.attention_bias
    attention = 4 * d * d + (4 * d if bias else 0)
    feed_forward = 2 * d * f + f + d
    norm = 2 * d
    encoder = config.num_layers * (attention + feed_forward + 2 * norm)
    decoder = config.decoder_layers * (2 * attention + feed_forward + 3 * norm)
    last_norms = 2 * norm if config.norm == "pre" else 0
    embeddings = {
        "three-way": config.source_vocab_size,
        "two-way": config.source_vocab_size + config.target_vocab_size,
        "none": config.source_vocab_size + 2 * config.target_vocab_size,
    }[config.tied_embeddings]
    tables = 2 * config.max_length * d if config.positions == "learned" else 0
    output_bias = config.target_vocab_size if config.output_bias else 0
    return encoder + decoder + last_norms + embeddings * d + tables + output_bias
