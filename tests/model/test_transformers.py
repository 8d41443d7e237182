"""Models of transformers with the same weights, all of them random, give the same logits.

Axes: B batch · S source · T target · V vocabulary · D model width · H heads · K head width.
"""

import jax
import numpy as np
import pytest

from seq2seq.model.config import ModelConfig, num_parameters
from seq2seq.model.transformer import Transformer
from seq2seq.training.parameters import parameter_shapes

V, D, H, F = 37, 16, 2, 23
LENGTHS = (150, 4), (131, 7)
T5 = ModelConfig(
    source_vocab_size=V, target_vocab_size=V, d_model=D, d_ff=F, num_heads=H, d_k=5, num_layers=2,
    num_decoder_layers=1, norm="pre", norm_function="rms", positions="relative",
    activation="gelu_tanh", gated_feed_forward=True, feed_forward_bias=False, scale_scores=False,
    scale_embeddings=False, tied_embeddings="none",
)  # fmt: skip
M2M = ModelConfig(
    source_vocab_size=V, target_vocab_size=V, d_model=D, d_ff=F, num_heads=H, num_layers=1,
    norm="pre", sinusoid_layout="fairseq", attention_bias=True, layer_norm_epsilon=1e-5,
)  # fmt: skip
BART = ModelConfig(
    source_vocab_size=V, target_vocab_size=V, d_model=D, d_ff=F, num_heads=H, num_layers=1,
    positions="learned", max_length=150, activation="gelu", attention_bias=True, output_bias=True,
    embedding_norm=True, scale_embeddings=False, layer_norm_epsilon=1e-5,
)  # fmt: skip


def t5_model(transformers):
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=V, d_model=D, d_kv=5, d_ff=F, num_layers=2, num_decoder_layers=1,
            num_heads=H, feed_forward_proj="gated-gelu", tie_word_embeddings=False,
            decoder_start_token_id=0,
        )
    )  # fmt: skip


def fairseq_options():
    sizes = {"layers": 1, "attention_heads": H, "ffn_dim": F}
    sides = {f"{side}_{n}": sizes[n] for side in ("encoder", "decoder") for n in sizes}
    return dict(vocab_size=V, d_model=D, max_position_embeddings=150, **sides)


def m2m_model(transformers):
    config = transformers.M2M100Config(**fairseq_options(), activation_function="relu")
    return transformers.M2M100ForConditionalGeneration(config)


def bart_model(transformers):
    config = transformers.BartConfig(**fairseq_options(), activation_function="gelu")
    return transformers.BartForConditionalGeneration(config)


def t5_place(path):
    """The name in a T5 model of our parameter at `path`."""
    side, *rest = path
    if not rest[1:]:
        tables = {"output_embedding": "lm_head", "encoder": "", "decoder": ""}
        return f"{tables.get(side, 'shared')}.weight"
    if rest == ["norm", "scale"]:
        return f"{side}.final_layer_norm.weight"
    if rest[0] == "relative_bias":
        return f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    block, (part, *names) = f"{side}.block.{rest[0][7:]}.layer", rest[1:]
    feed = 2 if side == "decoder" else 1
    if part.startswith("around"):
        place = {"around_self": 0, "around_cross": 1, "around_feed_forward": feed}[part]
        return f"{block}.{place}.layer_norm.weight"
    if part == "feed_forward":
        name = {"gate": "wi_0", "inner": "wi_1", "outer": "wo"}[names[0]]
        return f"{block}.{feed}.DenseReluDense.{name}.weight"
    place = {"self_attention": "0.SelfAttention", "cross_attention": "1.EncDecAttention"}[part]
    return f"{block}.{place}.{names[0][0]}.weight"


def fairseq_place(path):
    """The name in a model of M2M-100 or BART of our parameter at `path`."""
    side, *rest = path
    if not rest:
        return "final_logits_bias"
    if side == "target_embedding":
        return "model.shared.weight"
    kind = "bias" if rest[-1].endswith("bias") else "weight"
    others = {"norm": "layer_norm", "embedding_norm": "layernorm_embedding",
              "positions": "embed_positions"}  # fmt: skip
    if rest[0] in others:
        return f"model.{side}.{others[rest[0]]}.{kind}"
    part = rest[1]
    norms = {"around_self": "self_attn_layer_norm", "around_cross": "encoder_attn_layer_norm",
             "around_feed_forward": "final_layer_norm"}  # fmt: skip
    if part == "feed_forward":
        name = {"inner": "fc1", "outer": "fc2"}[rest[2].removesuffix("_bias")]
    elif part in norms:
        name = norms[part]
    else:
        attention = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}[part]
        short = rest[2].removesuffix("_bias")
        name = f"{attention}.{'out' if short == 'output' else short[0]}_proj"
    return f"model.{side}.layers.{rest[0][7:]}.{name}.{kind}"


def our_params(config, state, place):
    """The parameters of `config` from arrays by the names that `place` gives, each used."""
    used = set()

    def value(path, leaf):
        names = [key.key for key in path]
        used.add(name := place(names))
        array = state[name]
        if names[-2:] == ["positions", "table"]:
            array = array[2:]  # fairseq's first position is 2
        if array.ndim == 2 and names[-1] not in ("table", "output_bias"):
            array = array.T
        return array.reshape(leaf.shape)

    params = jax.tree_util.tree_map_with_path(value, parameter_shapes(config))
    copies = {name for name in state if "embed_tokens" in name}
    copies |= set() if "output_embedding" in params else {"lm_head.weight"}
    assert set(state) - used <= copies
    return params


@pytest.mark.slow
@pytest.mark.parametrize(
    "config, make, place",
    [
        (T5, t5_model, t5_place),
        (M2M, m2m_model, fairseq_place),
        (BART, bart_model, fairseq_place),
    ],
    ids=["T5", "M2M-100", "BART"],
)
def test_logits_equal_those_of_transformers(config, make, place):
    torch, transformers = map(pytest.importorskip, ("torch", "transformers"))
    model = make(transformers).eval()
    with torch.no_grad():
        torch.manual_seed(0)
        for parameter in [*model.parameters(), *model.buffers()]:
            parameter.normal_(0, 0.3)
        if config is M2M:  # its positions are a buffer
            for stack in (model.get_encoder(), model.get_decoder()):
                stack.embed_positions.make_weights(152, D, 1)
    random = np.random.default_rng(0)
    source, target = (random.integers(3, V, (2, max(n))).astype(np.int32) for n in LENGTHS)
    masks = [(np.arange(max(n)) < np.array(n)[:, None]).astype(np.int32) for n in LENGTHS]
    with torch.no_grad():
        expected = model(
            input_ids=torch.from_numpy(source).long(), attention_mask=torch.from_numpy(masks[0]),
            decoder_input_ids=torch.from_numpy(target).long(),
        ).logits.numpy()  # fmt: skip
    state = {name: x.numpy() for name, x in model.state_dict().items()}
    params = our_params(config, state, place)
    assert sum(x.size for x in jax.tree.leaves(params)) == num_parameters(config)
    logits = jax.jit(Transformer(config).apply)({"params": params}, source, target, *masks)
    assert expected.std() > 0.3
    for row, length in enumerate(LENGTHS[1]):
        np.testing.assert_allclose(logits[row, :length], expected[row, :length], atol=1e-4)
