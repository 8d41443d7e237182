"""The Transformer: attention, layers, wiring, beam search; needs jax, flax and jaxtyping only."""
