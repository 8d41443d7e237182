"""ModelConfig: the architecture under the papers' names, and the rules it must satisfy."""

from dataclasses import dataclass, fields

from .options import Options, option
from .position_rules import POSITION_RULES

# Bounds far above any published model, so that the config of an untrusted directory is refused
# before anything of its sizes is allocated.
MAX_VOCABULARY = 2**24
MAX_WIDTH = 2**18
MAX_LAYERS = 1000
MAX_POSITIONS = 2**20


@dataclass(unsafe_hash=True)
class ModelConfig(Options):
    """Sizes and choices of an encoder-decoder Transformer (Vaswani et al. 2017, section 3), or of
    an RNN.

    The defaults are the paper's base model (table 3). The two vocabulary sizes and the four token
    ids are properties of the vocabulary. Training sets a size of 0 to that of the vocabulary.
    """

    section = "model"

    kind: str = option(
        "transformer",
        "transformer; rnn_attention: GRU with additive attention (Bahdanau et al. 2015); rnn: GRU "
        "with one context vector (Cho et al. 2014, Sutskever et al. 2014)",
        choices=("transformer", "rnn_attention", "rnn"),
    )
    source_vocab_size: int = option(
        0,
        "size of the source vocabulary; 0: set by training",
        unit="entries",
        minimum=0,
        maximum=MAX_VOCABULARY,
    )
    target_vocab_size: int = option(
        0,
        "size of the target vocabulary; 0: set by training",
        unit="entries",
        minimum=0,
        maximum=MAX_VOCABULARY,
    )
    d_model: int = option(
        512,
        "width of the input and output of every layer",
        unit="dimensions",
        minimum=1,
        maximum=MAX_WIDTH,
    )
    d_ff: int = option(
        2048,
        "inner width of the feed-forward sub-layer",
        unit="dimensions",
        minimum=1,
        maximum=MAX_WIDTH,
    )
    num_heads: int = option(
        8, "attention heads, of d_k dimensions each", unit="heads", minimum=1, maximum=MAX_WIDTH
    )
    d_k: int = option(
        0,
        "width of a head; 0: d_model / num_heads",
        unit="dimensions",
        minimum=0,
        maximum=MAX_WIDTH,
    )
    num_layers: int = option(6, "encoder layers", unit="layers", minimum=1, maximum=MAX_LAYERS)
    num_decoder_layers: int = option(
        0,
        "decoder layers; 0: as many as the encoder",
        unit="layers",
        minimum=0,
        maximum=MAX_LAYERS,
    )
    dropout: float = option(
        0.1,
        "dropout rate of sub-layer outputs and of embeddings + positions (section 5.4)",
        unit="probability",
        minimum=0,
        below=1,
    )
    attention_dropout: float = option(
        0.0, "dropout rate of the attention weights", minimum=0, below=1
    )
    activation_dropout: float = option(
        0.0, "dropout rate of the activations inside the feed-forward sub-layer", minimum=0, below=1
    )
    norm: str = option(
        "post",
        "post: norm(x + f(x)), as in the paper; pre: x + f(norm(x)) and a final norm",
        choices=("post", "pre"),
    )
    norm_function: str = option(
        "layer",
        "layer: layer normalisation, as in the paper; rms: division by the root mean square, and "
        "a scale (Zhang and Sennrich 2019)",
        choices=("layer", "rms"),
    )
    positions: str = option(
        "sinusoidal",
        "sinusoidal, learned: a table that is added to embeddings; rotary: rotation of queries and "
        "keys; relative: a learned bias on scores for each range of distances (Raffel et al. "
        "2020); alibi: a fixed bias that grows with the distance (Press et al. 2022); none",
        choices=tuple(POSITION_RULES),
    )
    sinusoid_layout: str = option(
        "interleaved",
        "interleaved: sin, cos, sin, …, as in the paper; halves: all sines first; fairseq: halves "
        "with slightly other frequencies, from position 2",
        choices=("interleaved", "halves", "fairseq"),
    )
    relative_buckets: int = option(
        32,
        "ranges of distances of relative positions; the encoder has half of them for each "
        "direction",
        unit="rows",
        minimum=4,
        maximum=MAX_POSITIONS,
    )
    relative_distance: int = option(
        128,
        "the distance from which relative positions are not distinguished",
        unit="tokens",
        minimum=3,
        maximum=MAX_POSITIONS,
    )
    relative_tables: str = option(
        "stack",
        "stack: the layers of a stack share the table of relative positions; layer: each has one",
        choices=("stack", "layer"),
    )
    max_length: int = option(
        1024,
        "number of rows of a table of positions; longer inputs must be dropped or truncated, "
        "because JAX clamps indices that are out of range. No limit for positions without a table",
        unit="tokens",
        minimum=1,
        maximum=MAX_POSITIONS,
    )
    activation: str = option(
        "relu",
        "of the feed-forward sub-layer; gelu is exact, gelu_tanh its approximation by tanh",
        choices=("relu", "gelu", "gelu_tanh", "silu"),
    )
    gated_feed_forward: bool = option(
        False, "multiply the inner values by an activated projection (Shazeer 2020)"
    )
    feed_forward_bias: bool = option(True, "biases in the feed-forward sub-layer")
    scale_scores: bool = option(True, "divide attention scores by √d_k (equation 1)")
    attention_bias: bool = option(False, "biases on query, key, value and output projections")
    layer_norm_epsilon: float = option(1e-6, "epsilon of the norms", above=0)
    tied_embeddings: str = option(
        "three-way",
        "three-way: source = target = output (section 3.4); two-way: target = output; inputs: "
        "source = target; none",
        choices=("three-way", "two-way", "inputs", "none"),
    )
    scale_embeddings: bool = option(True, "multiply embeddings by √d_model (section 3.4)")
    embedding_norm: bool = option(False, "a norm after embeddings + positions, before dropout")
    scale_logits: bool = option(False, "divide logits by √d_model, before the bias")
    output_bias: bool = option(False, "a bias on the logits")
    remat: bool = option(
        False, "recompute activations in the backward pass, layer by layer: less memory"
    )
    attention_kernels: bool = option(
        True,
        "on a TPU, attention over 128, 256, 384, … 1,024 positions (bfloat16: 2,048) runs as "
        "kernels (model/fused_attention.py)",
    )
    dtype: str = option(
        "float32",
        "precision of the computation: float32; mixed (matmuls with weights in bfloat16, the rest "
        "in float32); bfloat16. Parameters, softmax, norms and loss are float32 in all three",
        choices=("float32", "mixed", "bfloat16"),
    )
    pad_id: int = option(0, "id of the padding token", minimum=0)
    start_id: int = option(1, "id of the start token", minimum=0)
    end_id: int = option(2, "id of the end token", minimum=0)
    unknown_id: int = option(3, "id of the unknown token", minimum=0)

    @property
    def head_size(self) -> int:
        """d_k = d_v of the paper."""
        return self.d_k or self.d_model // self.num_heads

    @property
    def longest(self) -> int:
        """The most tokens of a source or a target: `max_length` if it is the number of rows of a
        table of positions, and for an RNN; otherwise more than memory suffices for."""
        return self.max_length if POSITION_RULES[self.positions].has_table else MAX_POSITIONS

    @property
    def values_dtype(self) -> str:
        """The dtype of activations between the matmuls."""
        return "bfloat16" if self.dtype == "bfloat16" else "float32"

    @property
    def attends(self) -> bool:
        """Whether the decoder attends to the source."""
        return self.kind != "rnn"

    @property
    def weights_dtype(self) -> str:
        """The dtype of both operands of matmuls with weights."""
        return "float32" if self.dtype == "float32" else "bfloat16"

    @property
    def shares_inputs(self) -> bool:
        """Whether source and target have the same embeddings."""
        return self.tied_embeddings in ("three-way", "inputs")

    @property
    def has_output_table(self) -> bool:
        """Whether the logits have a table of their own."""
        return self.tied_embeddings in ("inputs", "none")

    @property
    def decoder_layers(self) -> int:
        """The number of decoder layers."""
        return self.num_decoder_layers or self.num_layers

    def check_rules(self) -> None:
        """The rules that concern several fields. Raises ValueError."""
        if self.kind == "transformer":
            self._check_transformer()
        else:
            self._check_rnn()
        sizes = self.source_vocab_size, self.target_vocab_size
        if self.shares_inputs and sizes[0] != sizes[1]:
            raise ValueError(
                f"model.tied_embeddings={self.tied_embeddings} needs one vocabulary for both "
                f"sides, got source_vocab_size={sizes[0]}, target_vocab_size={sizes[1]}"
            )
        for name in ("pad_id", "start_id", "end_id", "unknown_id"):
            got = getattr(self, name)
            if 0 < sizes[1] <= got:
                raise ValueError(f"model.{name} must be an id of the vocabulary, got {got}")

    def _check_transformer(self) -> None:
        if not self.d_k and self.d_model % self.num_heads:
            raise ValueError(
                "d_model must be a multiple of num_heads without model.d_k, got "
                f"d_model={self.d_model}, num_heads={self.num_heads}"
            )
        if self.num_heads * self.head_size > MAX_WIDTH:
            raise ValueError(
                f"num_heads × d_k must be at most {MAX_WIDTH}, got num_heads={self.num_heads}, "
                f"d_k={self.d_k}"
            )
        for kind, rules in POSITION_RULES.items():
            if kind == self.positions:
                rules.check(self)
            else:
                self._refuse(rules.fields, f"positions={self.positions}")

    def _refuse(self, names: tuple[str, ...], reason: str) -> None:
        """Raise ValueError for a field of these that is set although it has no effect."""
        for field in fields(self):
            got = getattr(self, field.name)
            if field.name in names and got != field.default:
                raise ValueError(
                    f"model.{field.name} has no effect with model.{reason}: expected the default "
                    f"{field.default!r}, got {got!r}; remove it"
                )

    def _check_rnn(self) -> None:
        self._refuse(TRANSFORMER_ONLY, f"kind={self.kind}")
        if self.kind == "rnn_attention" and self.d_model % 2:
            raise ValueError(
                "model.kind=rnn_attention needs an even d_model (half for each direction of the "
                f"encoder), got {self.d_model}"
            )


DROPOUT_RATES = ("dropout", "attention_dropout", "activation_dropout")
# An RNN has neither positions, nor norms, nor heads, nor feed-forward sub-layers.
TRANSFORMER_ONLY = (
    "d_ff",
    "num_heads",
    "attention_dropout",
    "activation_dropout",
    "d_k",
    "norm",
    "norm_function",
    "positions",
    *(name for rules in POSITION_RULES.values() for name in rules.fields),
    "activation",
    "gated_feed_forward",
    "feed_forward_bias",
    "scale_scores",
    "attention_bias",
    "layer_norm_epsilon",
    "embedding_norm",
    "attention_kernels",
)
CHOICES: dict[str, tuple[str, ...]] = {
    field.name: field.metadata["choices"]
    for field in fields(ModelConfig)
    if "choices" in field.metadata
}


def num_parameters(config: ModelConfig) -> int:
    """The number of parameters, in closed form."""
    layers = num_transformer_parameters if config.kind == "transformer" else num_rnn_parameters
    rows = config.target_vocab_size
    if config.has_output_table:
        rows += config.target_vocab_size
    if not config.shares_inputs:
        rows += config.source_vocab_size
    output_bias = config.target_vocab_size if config.output_bias else 0
    return layers(config) + rows * config.d_model + output_bias


def num_transformer_parameters(config: ModelConfig) -> int:
    """The number of parameters without embeddings and output bias."""
    d, f, heads = config.d_model, config.d_ff, config.num_heads * config.head_size
    attention = 4 * d * heads + (3 * heads + d if config.attention_bias else 0)
    feed_forward = (3 if config.gated_feed_forward else 2) * d * f
    feed_forward += f + d if config.feed_forward_bias else 0
    norm = d if config.norm_function == "rms" else 2 * d
    encoder = config.num_layers * (attention + feed_forward + 2 * norm)
    decoder = config.decoder_layers * (2 * attention + feed_forward + 3 * norm)
    final_norm = norm if config.norm == "pre" else 0
    embedding_norm = norm if config.embedding_norm else 0
    positions = POSITION_RULES[config.positions].num_parameters(config)
    return encoder + decoder + 2 * (final_norm + embedding_norm) + positions


def num_rnn_parameters(config: ModelConfig) -> int:
    """The number of parameters without embeddings and output bias."""
    d, attention = config.d_model, config.kind == "rnn_attention"

    def gru(width: int) -> int:
        return 3 * width * (d + width) + 4 * width

    encoder = config.num_layers * (2 * gru(d // 2) if attention else gru(d))
    decoder = config.decoder_layers * (gru(d) + d * d + d)  # and the layer's initial state
    # Query, key and score; the context's part of the gates; the output.
    additive_attention = (2 * d * d + d) + 3 * d * d + (2 * d * d + d) if attention else 0
    return encoder + decoder + additive_attention
