"""benchmarks/accelerator.py: its counts, stored results and tables, and the whole command."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks.parts import processes, tables
from benchmarks.parts.catalog import PARTS, Part, chosen_parts
from benchmarks.parts.counts import search_steps, step_bytes, training_flops
from benchmarks.parts.measuring import doublings, growing_batches
from benchmarks.parts.operations import search_loop, type_bytes
from benchmarks.parts.peers import missing_packages, torch_transformer
from benchmarks.parts.results import Results
from seq2seq.compilation.report import product_flops
from seq2seq.model.cache import empty_keys_values
from seq2seq.model.search.arguments import SearchOptions, Targets
from seq2seq.model.search.beam_search import Queue, beam_search
from seq2seq.model.transformer import Transformer
from seq2seq.runtime.errors import DATA, UserError
from seq2seq.training.parameters import parameter_shapes
from tests.support.models.small_transformer import SMALL

ROOT = Path(__file__).parents[2]
SETTING = {"platform": "cpu", "device": "cpu", "count": 1, "sizes": "tiny"}
FACTS = {"versions": {"jax": "0"}, "commit": "0123456789", "started": "now"}
# Each kind of part.
MEASURED = (
    "peak attention training:base:bfloat16 decoding:opus:beam4 operations:base:greedy".split()
)
PAPER = replace(SMALL, num_layers=2, num_decoder_layers=3)
MARIAN = replace(PAPER, attention_bias=True, output_bias=True, norm="pre", dtype="bfloat16")


def forward(config, rows, source, target):
    """The jitted forward pass and its arguments."""
    ids = [jax.ShapeDtypeStruct((rows, n), np.int32) for n in (source, target, source, target)]
    return jax.jit(Transformer(config).apply), ({"params": parameter_shapes(config)}, *ids)


@pytest.mark.parametrize("config", [PAPER, MARIAN])
def test_the_flops_of_a_row_are_three_times_those_of_the_products_of_the_forward_pass(config):
    function, arguments = forward(config, 2, 11, 13)
    counted = product_flops(function.trace(*arguments).jaxpr)
    assert 3 * counted == 2 * training_flops(config, 11, 13)


def test_xla_counts_nearly_as_many_flops():
    """XLA also counts norms, softmax and activations."""
    config = replace(PAPER, d_model=240, d_ff=480)
    function, arguments = forward(config, 1, 8, 8)
    counted = function.lower(*arguments).cost_analysis()["flops"]
    assert 1.0 < 3 * counted / training_flops(config, 8, 8) < 1.1


@pytest.mark.parametrize("config", [PAPER, MARIAN, replace(PAPER, dtype="mixed")])
def test_the_bytes_of_a_step_are_those_of_the_arrays_that_it_reads(config):
    lanes, beams, source, slots = 3, 2, 7, 5
    params = parameter_shapes(config)
    narrow = config.dtype != "float32"

    def stored(path, leaf):
        keys = [entry.key for entry in path]
        unused = "cross_attention" in keys and keys[-1].split("_")[0] in ("key", "value")
        is_weight = leaf.ndim > 1 and not keys[-1].endswith("bias")
        return 0 if unused else leaf.size * (2 if narrow and is_weight else 4)

    sizes = jax.tree_util.tree_map_with_path(stored, params["decoder"])
    bytes_read = step_bytes(config, lanes, beams, source, slots)
    assert bytes_read.decoder == sum(jax.tree.leaves(sizes))
    (table,) = jax.tree.leaves(params["target_embedding"])
    bias = params.get("output_bias", np.zeros(0)).size * 4
    assert bytes_read.output_matrix == table.size * (2 if narrow else 4) + bias

    def allocated(slots):
        return sum(x.nbytes for x in jax.tree.leaves(empty_keys_values(config, lanes, slots)))

    assert bytes_read.memory == allocated(source)
    assert bytes_read.cache == allocated(slots * beams)


def test_the_steps_and_refills_are_those_of_a_search():
    """Of nine lanes two are refilled at once; with six sentences some lanes are never used."""
    lanes, total = 9, 14
    counts = {"steps": 0, "loads": 0}

    def count(name):
        counts[name] += 1

    def step(tokens, state, t, parents, ancestry):
        jax.debug.callback(lambda: count("steps"))
        logits = np.zeros((*tokens.shape, 5), np.float32)
        logits[..., 2] = -1e9  # the end token: only at the limit
        return jax.numpy.asarray(logits), state

    def load(state, lanes, sentences):
        jax.debug.callback(lambda: count("loads"))
        return state

    @jax.jit
    def search(limits):
        return beam_search(
            step,
            (),
            Targets(jax.numpy.ones(total, int), limits),
            SearchOptions(8, 2, beam_size=1),
            Queue(lanes, load),
        )

    for present in (14, 6):
        lengths = np.random.default_rng(0).integers(1, 4, total) * (np.arange(total) < present)
        hypotheses = jax.device_get(search(lengths))
        jax.effects_barrier()
        assert hypotheses.lengths[:, 0].tolist() == lengths.tolist()
        expected = search_steps(lengths[:present], lanes)
        assert (expected.steps, expected.refills) == (counts["steps"], counts["loads"])
        assert expected.occupied == pytest.approx(lengths.sum() / (lanes * counts["steps"]))
        counts.update(steps=0, loads=0)


def test_batches_grow_until_the_gain_the_memory_or_the_time_ends():
    def tried(rates, deadline=math.inf):
        rows = growing_batches(
            doublings(4, 64), lambda size: {"rate": rates[size], "size": size}, "rate", deadline
        )
        return [row["size"] for row in rows]

    class Rates(dict):
        def __missing__(self, size):
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 byte.")

    assert tried({4: 10, 8: 11, 16: 11, 32: 99}) == [4, 8, 16]
    assert tried(Rates({4: 10, 8: 20})) == [4, 8]
    assert tried({4: 10, 8: 20}, deadline=-math.inf) == [4]
    assert list(doublings(4, 64)) == [4, 8, 16, 32, 64]
    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
        tried(Rates())
    with pytest.raises(KeyError):
        tried({4: 1})


def test_operations_in_loops_functions_and_branches_are_counted():
    """In each step: two products and an add; a loop, and one product in a branch. The products
    outside the loop are not counted."""
    x = np.ones((4, 8), np.float32)
    square = np.ones((8, 8), np.float32)
    inner = jax.jit(lambda x: x @ square)

    def body(x):
        y = inner(jax.lax.while_loop(lambda y: y.max() < 3, jax.numpy.tanh, inner(x)))
        return jax.lax.cond(y.sum() > 0, lambda y: y @ square, lambda y: y, y) + 1

    def run(x):
        return jax.lax.while_loop(lambda x: x.sum() < 9, body, x @ square) @ square

    lowered = jax.jit(run).trace(x).lower(lowering_platforms=("cuda",))
    always, branches = search_loop(lowered)
    products = [count for name, count in always if name == "dot_general"]
    assert products == [x.nbytes + square.nbytes] * 2
    steps, seldom = ([name for name, _ in part] for part in (always, branches))
    assert steps.count("add") == seldom.count("tanh") == seldom.count("dot_general") == 1
    assert "tanh" not in steps
    assert type_bytes("tensor<3x4xbf16>") == 24 and type_bytes("tensor<i1>") == 1


def numbers(count):
    """Rows of a part."""
    for i in range(count):
        yield {"kind": str(i), "rate": float(i), "unit": "FLOP/s"}


def failing():
    yield from numbers(2)
    raise ValueError("no such\nunit")


def test_results_are_stored_row_by_row_and_errors_are_kept(tmp_path):
    results = Results(tmp_path, SETTING, FACTS)
    results.run("some:part", numbers(2))
    assert results.is_done("some:part") and len(results.get("some:part")["rows"]) == 2
    seen = []

    def watched():
        for row in numbers(3):
            yield row
            stored = Results(tmp_path, SETTING, FACTS).get("watched")
            seen.append((stored["state"], len(stored["rows"])))

    results.run("watched", watched())
    assert seen == [("running", 1), ("running", 2), ("running", 3)]
    results.run("broken", failing())
    broken = results.get("broken")
    assert not results.is_done("broken")
    assert broken["error"] == "ValueError: no such unit" and len(broken["rows"]) == 2
    assert broken["versions"] == FACTS["versions"] and broken["setting"] == SETTING
    assert results.get("another") is None


def test_results_of_another_device_and_damaged_results_are_refused(tmp_path):
    Results(tmp_path, SETTING, FACTS).run("peak", numbers(1))
    Results(tmp_path, SETTING, FACTS)
    with pytest.raises(UserError, match="expected .*device H200.*got .*device cpu.*--results"):
        Results(tmp_path, SETTING | {"device": "H200"}, FACTS)
    (tmp_path / "peak.json").write_text("{")
    with pytest.raises(UserError, match="peak.json is damaged.*delete it") as error:
        Results(tmp_path, SETTING, FACTS)
    assert error.value.code == DATA


PROGRAMS = ["JAX", "JAX", "JAX", "PyTorch"]


def toy_parts():
    return [Part(f"peak:{i}", numbers, (), program) for i, program in enumerate(PROGRAMS)]


def run_toys(monkeypatch, results, ends, seconds=9.0):
    """The names that each child process gets; `ends` maps a name to what its child stores."""
    started = []

    def child(command, **options):
        (names,) = (word for word in command if word.startswith("--parts="))
        started.append(names.removeprefix("--parts=").split(","))
        for name in started[-1]:
            if ends.get(name) == "crash":
                results._write(name, "running", [], 0.0)
                return subprocess.CompletedProcess(command, -11)
            results.run(name, failing() if ends.get(name) == "fail" else numbers(1))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(processes.subprocess, "run", child)
    monkeypatch.setattr(processes, "missing_packages", lambda program: [])
    processes.run_parts(toy_parts(), results, SETTING, seconds)
    return started


def test_another_run_skips_finished_parts_and_retries_failed_ones_last(monkeypatch, tmp_path):
    results = Results(tmp_path, SETTING, FACTS)
    results.run("peak:1", numbers(1))
    first = run_toys(monkeypatch, results, {"peak:0": "fail"})
    assert first == [["peak:0", "peak:2"], ["peak:3"]]
    results.fail("peak:2", "out of time")
    (tmp_path / "peak-3.json").unlink()
    assert run_toys(monkeypatch, results, {}) == [["peak:3"], ["peak:0", "peak:2"]]
    assert run_toys(monkeypatch, results, {}) == []


def test_a_crash_ends_one_part_only(monkeypatch, tmp_path):
    results = Results(tmp_path, SETTING, FACTS)
    started = run_toys(monkeypatch, results, {"peak:1": "crash"})
    assert started == [["peak:0", "peak:1", "peak:2"], ["peak:2"], ["peak:3"]]
    assert "exit code -11" in results.get("peak:1")["error"]
    assert results.is_done("peak:2")


def test_a_process_has_each_flag_once(monkeypatch):
    argv = ["a.py", "--minutes=9", "--parts", "x", "--part_seconds=2", "-minutes=1", "--output=o"]
    monkeypatch.setattr(sys, "argv", argv)
    command = processes.child_command("--parts=y", "--minutes=3")
    assert command[1:] == ["a.py", "--part_seconds=2", "--output=o", "--parts=y", "--minutes=3"]


def test_no_process_starts_without_time(monkeypatch, tmp_path):
    assert run_toys(monkeypatch, Results(tmp_path, SETTING, FACTS), {}, seconds=0.0) == []


def test_parts_are_chosen_by_texts_in_their_names():
    assert chosen_parts([]) == PARTS and len({part.name for part in PARTS}) == len(PARTS)
    assert [part.name for part in chosen_parts(["peak", "attention"])] == ["peak", "attention"]
    assert all(chosen_parts([part.name]) == [part] for part in PARTS)
    assert chosen_parts(["nothing"]) == []


def test_a_missing_package_gives_a_line_in_the_table(monkeypatch, tmp_path):
    monkeypatch.setattr("benchmarks.parts.peers.find_spec", lambda name: None)
    results = Results(tmp_path, SETTING, FACTS)
    (part,) = chosen_parts(["opus:greedy:CTranslate2"])
    lines = list(tables.report([part], results, SETTING))
    assert any(f"| {part.name} | not installed: torch, transformers, ctranslate2 |" in line
               for line in lines)  # fmt: skip
    assert not processes.can_run(part, results)


def test_pytorch_drops_what_ours_drops():
    """Without the dropout of the sub-layers' outputs two passes in training are equal."""
    torch = pytest.importorskip("torch")
    model, _ = torch_transformer(replace(PAPER, dropout=0.5), 4)
    transformer = model["transformer"].train()
    x = torch.randn(2, 4, PAPER.d_model)
    assert not torch.equal(transformer(x, x), transformer(x, x))
    outputs = [
        module for name, module in transformer.named_modules() if name[:-1].endswith("dropout")
    ]
    assert len(outputs) == 2 * PAPER.num_layers + 3 * PAPER.decoder_layers
    assert {module.p for module in outputs} == {0.5}
    for module in outputs:
        module.p = 0.0
    assert torch.equal(transformer(x, x), transformer(x, x))


def cells(lines, title):
    """The rows of the table under a heading."""
    start = next(i for i, line in enumerate(lines) if line.startswith(f"## {title}"))
    rows = []
    for line in lines[start + 4 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


@pytest.mark.slow
def test_the_command_measures_every_kind_of_part_on_a_cpu(tmp_path):
    parts = chosen_parts(MEASURED)
    assert {part.rows for part in parts} == {part.rows for part in PARTS}
    command = [sys.executable, ROOT / "benchmarks" / "accelerator.py", f"--results={tmp_path}"]
    command.append(f"--parts={','.join(MEASURED)}")
    # One device; PYTHONPATH would hide torch.
    environment = {**os.environ, "XLA_FLAGS": os.environ["TESTS_XLA_FLAGS"], "PYTHONPATH": ""}
    options = dict(capture_output=True, text=True, env=environment, check=True)
    done = subprocess.run(command, **options)
    lines = done.stdout.splitlines()
    installed = [part for part in parts if not missing_packages(part.program)]
    for part in installed:
        result = json.loads((tmp_path / f"{part.name.replace(':', '-')}.json").read_text())
        assert result["state"] == "done", (part.name, result["error"])
        assert result["rows"], part.name
        for row in result["rows"]:
            values = [x for x in row.values() if isinstance(x, float | int)]
            assert all(math.isfinite(x) and x >= 0 for x in values), row
            assert all(row[name] > 0 for name in row if name.endswith("_per_second")), row
    assert len(cells(lines, "Measured peaks")) == 5
    for table, title in tables.TITLES.items():
        names = [part for part in parts if part.table == table]
        assert len(cells(lines, title)) >= len(names) > 0, title
    assert not any(line.startswith("Not measured") for line in lines)
    (fused,) = {row[3] for row in cells(lines, "Attention")}
    assert fused == "xla" and all(float(row[6]) < 0.05 for row in cells(lines, "Attention"))
    again = subprocess.run(command, **options)
    assert again.stdout == done.stdout and "…" not in again.stderr
