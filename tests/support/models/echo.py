"""A Translator whose search returns the source, and a time limit for calls that might block."""

import queue
import threading
from dataclasses import replace

import jax
import numpy as np

from seq2seq.config.tree import DecodingConfig
from seq2seq.data.tokenizers.list_tokenizer import ListTokenizer
from seq2seq.decoding.translator import Translator
from seq2seq.model.config import ModelConfig
from seq2seq.model.search.hypotheses import Hypotheses
from seq2seq.runtime.control import Control
from tests.support.tiny import WORDS


def echoing_translator(control=Control()):  # noqa: B008 – immutable
    """(translator, list of the (bucket, lengths) of its calls). Windows and queues: two batches."""
    words = ListTokenizer("words", "\n".join(WORDS).encode())
    translator = Translator(
        [ModelConfig(d_model=8, num_heads=2, max_length=70)],
        (words, words),
        DecodingConfig(batch_size=3, max_extra_length=5),
        control=control,
    )
    translator.engine.variables = []  # `search` below reads none
    window = 2 * 3 * jax.local_device_count()
    translator.engine.sizes = replace(translator.engine.sizes, queue=2, window=window)
    seen = []

    def search(program):
        bucket = program.bucket

        def echoed(_, request):
            source, lengths, limits = request[:3]
            assert request.min_lengths is request.prefix is None
            rows = {16: 3, 32: 3, 64: 1, 70: 1}[bucket]  # fewer for long sentences
            assert source.shape == (jax.local_device_count(), 2 * rows, bucket)
            seen.append((bucket, np.asarray(lengths)))
            expected = np.where(lengths > 0, np.minimum(lengths + 5, 70), 0)
            np.testing.assert_array_equal(limits, expected)
            assert (np.diff(lengths, axis=1) <= 0).all()  # longest first, empty rows last
            assert np.ptp((lengths > 0).sum(axis=1)) <= 1  # equal work for all devices
            shape = (*lengths.shape, 1)
            zeros = np.zeros(shape, np.float32)
            return Hypotheses(source[:, :, None], lengths.reshape(shape), zeros, zeros)

        return echoed

    translator.engine._search = search
    return translator, seen


def in_time(function):
    """The result of a function; fails if it blocks."""
    results = queue.SimpleQueue()
    threading.Thread(target=lambda: results.put(function()), daemon=True).start()
    return results.get(timeout=60)
