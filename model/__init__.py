"""The Transformer: attention, layers, wiring, beam search. Imports jax, flax and jaxtyping only."""
