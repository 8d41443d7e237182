"""The Transformer: attention, layers, wiring and beam search. Needs jax, flax and jaxtyping only."""
