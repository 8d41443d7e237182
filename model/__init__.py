"""The Transformer, two RNNs, and the beam search. Imports jax, flax and jaxtyping only."""
