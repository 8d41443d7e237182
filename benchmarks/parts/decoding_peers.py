"""Parts: CTranslate2 and HF generate on the sentences of benchmarks/parts/decoding.py.

Both have random weights and outputs of the same forced length as ours.
"""

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.parts.decoding import sources_of
from benchmarks.parts.measuring import call_seconds, growing_batches
from benchmarks.parts.peers import ctranslate2_translator, marian_model, peer_device
from benchmarks.parts.sizes import Sizes


def ctranslate2_rows(
    sizes: Sizes, deadline: float, size: str, beams: int
) -> Iterator[dict[str, Any]]:
    """A row for each batch size."""
    import ctranslate2

    device = peer_device(ctranslate2.get_cuda_device_count() > 0, sizes.platform)
    forced = dict(min_decoding_length=sizes.output_length, max_decoding_length=sizes.output_length)
    with tempfile.TemporaryDirectory() as directory:
        config = sizes.decoding[size]
        translator, tokens_of = ctranslate2_translator(config, directory, device)

        def run(sources, batch):
            lines = tokens_of(sources)
            return lambda: translator.translate_batch(
                lines, beam_size=beams, max_batch_size=batch, **forced
            )

        facts = {"program": f"CTranslate2 ({device})", "size": size, "beams": beams}
        facts["dtype"] = translator.compute_type
        yield from _peer_rows(sizes, deadline, facts, run, lambda _: None)


def hf_rows(sizes: Sizes, deadline: float, size: str, beams: int) -> Iterator[dict[str, Any]]:
    """A row for each batch size."""
    import torch

    device = peer_device(torch.cuda.is_available(), sizes.platform)
    config = sizes.decoding[size]
    kind = torch.float16 if device == "cuda" else torch.float32
    network = marian_model(config).eval().to(device, kind)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    forced = dict(min_new_tokens=sizes.output_length, max_new_tokens=sizes.output_length)

    def run(sources, batch):
        ids = torch.from_numpy(sources).long().to(device)

        @torch.no_grad()
        def generate():
            parts = ids.split(batch)
            return [network.generate(input_ids=part, num_beams=beams, **forced) for part in parts]

        return generate

    facts = {"program": f"HF generate ({device})", "size": size, "beams": beams}
    facts["dtype"] = str(kind).removeprefix("torch.")
    yield from _peer_rows(sizes, deadline, facts, run, lambda _: wait())


def _peer_rows(
    sizes: Sizes,
    deadline: float,
    facts: dict[str, Any],
    run: Callable[[Any, int], Callable[[], Any]],
    wait: Callable[[Any], Any],
) -> Iterator[dict[str, Any]]:
    """A row for each batch size; `run(sources, batch)` is a function that translates all."""

    def measure(batch: int) -> dict[str, Any]:
        count = batch * sizes.queue
        config = sizes.decoding[facts["size"]]
        call = run(sources_of(config, count, sizes.source_length), batch)
        seconds = call_seconds({"": call}, sizes.seconds, wait)[""]
        return facts | {"batch": batch, "sentences_per_second": count / seconds}

    batches = [hypotheses // facts["beams"] for hypotheses in sizes.hypotheses]
    yield from growing_batches(batches, measure, "sentences_per_second", deadline)
