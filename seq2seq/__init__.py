"""Train and decode sequence-to-sequence Transformers in JAX. `seq2seq.Translator` translates."""

__all__ = ["Translator"]


def __getattr__(name: str) -> object:  # importing the package alone imports no jax
    if name in __all__:
        from seq2seq.decoding.translator import Translator

        return Translator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
