"""decode.Translator's bookkeeping, with a search that echoes: order, windows, buckets, cuts."""

import random

import jax
import numpy as np
import pytest
from tiny import WORDS

import decode
from data.tokenizer import ListTokenizer
from decode import Translator
from model.beam_search import Hypotheses
from model.config import ModelConfig
from training.config import DecodingConfig


@pytest.fixture
def echo(monkeypatch):
    """A Translator whose every search returns the source, in windows of two batches."""
    monkeypatch.setattr(decode, "WINDOW", 2)
    words = ListTokenizer("words", "\n".join(WORDS).encode())
    translator = Translator(
        ModelConfig(d_model=8, num_heads=2, max_length=70), (words, words),
        DecodingConfig(batch_size=3, max_extra_length=5),
    )
    translator.use({})
    seen = []

    def search(bucket):
        def echoed(_, source, lengths, limits):
            assert source.shape == (jax.local_device_count(), 3, bucket)
            seen.append((bucket, np.asarray(lengths)))
            np.testing.assert_array_equal(limits, lengths + 5)
            shape = (*lengths.shape, 1)
            zeros = np.zeros(shape, np.float32)
            return Hypotheses(source[:, :, None], lengths.reshape(shape), zeros, zeros)

        return echoed

    translator._search = search
    return translator, seen


def test_every_line_keeps_its_place_whatever_its_length_and_window(echo):
    translator, seen = echo
    choose = random.Random(0)
    lines = [" ".join(choose.choices(WORDS, k=choose.choice([0, 0, 1, 2, 15, 16, 31, 60])))
             for _ in range(101)]
    assert translator.translate(lines) == lines
    assert {bucket for bucket, _ in seen} == {16, 32, 64}
    for bucket, lengths in seen:  # each sentence in the smallest bucket that holds it and its end
        assert lengths.max() <= bucket
        smaller = max(b for b in (0, 16, 32, 64) if b < bucket)
        assert (lengths[lengths > 0] > smaller).all()


def test_lines_are_read_only_as_they_are_needed(echo):
    translator, _ = echo
    read = []

    def lines():
        for i in range(1000):
            read.append(i)
            yield WORDS[i % len(WORDS)]

    stream = translator.stream(lines())
    first = [next(stream).text for _ in range(3)]
    assert first == WORDS[:3]
    assert len(read) <= 3 * jax.local_device_count() * decode.WINDOW


def test_over_long_lines_are_cut_and_say_so(echo):
    translator, _ = echo
    result = list(translator.stream([" ".join(WORDS * 10), "eins"]))
    assert (result[0].tokens, result[0].kept) == (111, 65)
    assert result[0].text == " ".join((WORDS * 10)[:64])
    assert (result[1].tokens, result[1].kept) == (2, 2)
