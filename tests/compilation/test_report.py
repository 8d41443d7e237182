"""Bytes of an HLO text, operations of a jaxpr, and the report of a program."""

from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from seq2seq.compilation.hlo import Exchange, Program, group_size, shape_bytes
from seq2seq.compilation.report import Report, largest_that_fits, product_flops, report_lines
from seq2seq.compilation.targets import TPUS, Target, target_of
from seq2seq.runtime.errors import CONFIGURATION, UserError

# Loops of four and three iterations, one without a known number, a conditional of two branches.
TEXT = """HloModule jit_f, entry_computation_layout={(f32[8]{0})->f32[8]{0}}

%fused (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %m = f32[8]{0} multiply(%p, %p)
}

%body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s = (s32[], f32[8]{0}) parameter(0)
  %x = f32[8]{0} get-tuple-element(%s), index=1
  %i = s32[] get-tuple-element(%s), index=0
  %y = f32[8]{0} fusion(%x), kind=kLoop, calls=%fused
  %j = s32[] add(%i, %i)
  ROOT %t = (s32[], f32[8]{0}) tuple(%j, %y)
}

%search (s: (s32[], bf16[16])) -> (s32[], bf16[16]) {
  %s = (s32[], bf16[16]{0}) parameter(0)
  %x = bf16[16]{0} get-tuple-element(%s), index=1
  %i = s32[] get-tuple-element(%s), index=0
  %y = bf16[16]{0} negate(%x)
  %w = (s32[], bf16[16]{0}) while(%s), condition=%active, body=%refill
  %k = f32[8]{0} conditional(%p, %g, %g), branch_computations={%small, %large}
  ROOT %t = (s32[], bf16[16]{0}) tuple(%i, %y)
}

%refill (s: (s32[], bf16[16])) -> (s32[], bf16[16]) {
  %s = (s32[], bf16[16]{0}) parameter(0)
  %x = bf16[16]{0} get-tuple-element(%s), index=1
  %i = s32[] get-tuple-element(%s), index=0
  %y = bf16[16]{0} add(%x, %x)
  ROOT %t = (s32[], bf16[16]{0}) tuple(%i, %y)
}

%below (s: (s32[], f32[8])) -> pred[] {
  %s = (s32[], f32[8]{0}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%s), index=0
  %three = s32[]{:T(128)} constant(3)
  ROOT %lt = pred[]{:T(512)} compare(%i, %three), direction=LT
}

%active (s: (s32[], bf16[16])) -> pred[] {
  %s = (s32[], bf16[16]{0}) parameter(0)
  %three = s32[] constant(3)
  ROOT %and = pred[] and(%s, %three)
}

%small (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  ROOT %b = f32[8]{0} negate(%a)
}

%large (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %c = f32[8]{0} negate(%a)
  ROOT %b = f32[8]{0} negate(%c)
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %n = (s32[], f32[8]{0}) tuple(%p)
  %l = (s32[], f32[8]{0}) while(%n), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"4"}}
  %v = (s32[], f32[8]{0}) while(%n), condition=%below, body=%body
  %u = (s32[], bf16[16]{0}) while(%n), condition=%active, body=%search
  %g = f32[8]{0} get-tuple-element(%l), index=1
  %k = f32[8]{0} conditional(%p, %g, %g), branch_computations={%small, %large}
  ROOT %r = f32[8]{0} all-reduce(%k), replica_groups={}, to_apply=%add
}
"""  # noqa: E501


def test_bytes_are_those_of_all_operations_outside_fusions_as_often_as_they_run():
    program = Program(TEXT)
    body, branch, refill = 2 * 32 + 3 * 4, 4 * 32, 3 * 32
    step = 2 * 32 + branch
    assert program.accessed() == (4 + 3) * body + step + refill + branch + 2 * 32
    assert program.accessed(program.step(), unknown_trips=0) == step
    assert program.exchanged() == {Exchange("all-reduce", 0): 32}
    assert program.decisions(program.step()) == (1, 1) and program.decisions() == (1, 1)
    kinds = [operation.kind for operation in program.operations_of("main")]
    assert [kinds.count(kind) for kind in ("negate", "fusion", "all-reduce")] == [7, 2, 1]
    assert shape_bytes("(pred[3,5]{1,0}, bf16[2]{0}, s32[], f64[2]{0})") == 15 + 4 + 4 + 16


def test_exchanges_count_their_results_as_often_as_they_run_and_the_devices_of_a_group():
    lines = (
        '%a = f32[8]{0} all-reduce(%y), replica_groups={{0,1},{2,3}}, to_apply=%add',
        '%b = (f32[2]{0}, f32[8]{0}) all-gather-start(%h), replica_groups=[2,4]<=[8], '
        'dimensions={0}',
        "%c = f32[8]{0} all-gather(%y), replica_groups=mesh['a'=3,'b'=5,'c'=7] {'a','c'}",
        "%d = (bf16[4]{0}, bf16[4]{0}, u32[], u32[]) collective-permute-start(%e), "
        "source_target_pairs={{1,0}}",
        "%f = f32[8]{0} fusion(%y), kind=kCustom, calls=%exchange",
    )  # fmt: skip
    inside = "%exchange (p: f32[8]) -> f32[8] {\n  %p = f32[8]{0} parameter(0)\n"
    inside += "  ROOT %m = f32[8]{0} all-to-all(%p), replica_groups={}\n}\n\n%body ("
    operands = "  %h = f32[2]{0} slice(%y)\n  %e = bf16[4]{0} slice(%y)\n"
    added = operands + "".join(f"  {line}\n" for line in lines) + "  %j = s32[] add("
    text = TEXT.replace("  %j = s32[] add(", added).replace("%body (", inside, 1)
    assert Program(text).exchanged() == {
        Exchange("all-reduce", 0): 32,
        Exchange("all-reduce", 2): 7 * 32,
        Exchange("all-gather", 4): 7 * 32,
        Exchange("all-gather", 21): 7 * 32,
        Exchange("collective-permute", 0): 7 * (8 + 8),  # and its two numbers
        Exchange("all-to-all", 0): 7 * 32,
    }
    assert group_size("replica_groups=mesh['a'=8] {'a':(2)4}") == 4
    sent = {"all-reduce": 2 * 3 / 4, "reduce-scatter": 3, "all-gather": 3 / 4, "all-to-all": 3 / 4}
    assert {kind: Exchange(kind, 0).sent(4) for kind in sent} == sent
    assert Exchange("all-reduce", 2).sent(4) == 1


def test_a_loop_until_a_value_is_reached_has_no_constant_number_of_iterations():
    text = TEXT.replace("s32[]{:T(128)} constant(3)", "f32[] constant(0.5)")
    assert Program(text).accessed() < Program(TEXT).accessed()


def test_updates_in_place_count_what_they_write_and_gathers_what_they_read():
    def row(x, i):
        return x[i] * 2.0

    def rows(x, i):
        return jnp.tanh(jnp.take(x, jnp.arange(3) * i, axis=0))

    def write(x, i):
        return jax.lax.dynamic_update_slice(x, jnp.full((1, 256), 7.0) * i, (i, 0))

    def add(x, i):
        return x.at[jnp.arange(3) * i].add(1.0)

    x, bounds = jnp.ones((512, 256)), {row: (2, 3), rows: (6, 9), write: (1, 4), add: (3, 13)}
    for function, (fewest, most) in bounds.items():
        donated = {"donate_argnums": 0} if function in (write, add) else {}
        compiled = jax.jit(function, **donated).lower(x, 5).compile()
        rows_accessed = Program(compiled.as_text()).accessed() / (4 * 256)
        assert fewest <= rows_accessed <= most, (function.__name__, rows_accessed)


def test_the_optimised_text_of_a_loop_has_the_bytes_of_all_its_iterations():
    def repeated(x):
        return jax.lax.scan(lambda x, _: (jnp.sin(x @ x), None), x, None, length=6)[0]

    texts = {}
    for name, f in {"once": lambda x: jnp.sin(x @ x), "repeated": repeated}.items():
        texts[name] = jax.jit(f).lower(jnp.ones((64, 64))).compile().as_text()
    once, six = (Program(text).accessed() for text in texts.values())
    assert 6 * once <= six <= 6 * once + 10 * 64 * 64 * 4


def test_operations_are_those_of_the_products_in_loops_and_in_the_larger_branch():
    def f(x, y):
        def body(x, _):
            return jax.lax.cond(x.sum() > 0, lambda: x @ y, lambda: x @ y @ y), None

        return jax.lax.scan(body, x, None, length=5)[0].sum()

    x, y = jnp.ones((3, 7)), jnp.ones((7, 7))
    product = 2 * 3 * 7 * 7
    assert product_flops(jax.make_jaxpr(f)(x, y).jaxpr) == 5 * 2 * product
    gradient = jax.make_jaxpr(jax.jit(jax.grad(lambda x, y: jnp.sin(x @ y).sum(), (0, 1))))(x, y)
    assert product_flops(gradient.jaxpr) == 3 * product


def test_operations_of_devices_that_share_a_product_are_counted_once():
    mesh = jax.sharding.AbstractMesh((2, 3), ("copies", "model"))

    def on_copy(x, y):  # as attention by kernels in a model that is divided
        columns = P(None, "model")
        product = mapped(jnp.dot, in_specs=(P(), columns), out_specs=columns, axis_names={"model"})
        return product(x, y) @ y

    mapped, copies = partial(jax.shard_map, check_vma=False), P("copies")
    specs = {"in_specs": (copies, P()), "out_specs": copies}
    f = mapped(on_copy, mesh=mesh, axis_names={"copies"}, **specs)
    jaxpr = jax.make_jaxpr(jax.jit(f))(jnp.ones((4, 6)), jnp.ones((6, 6))).jaxpr
    assert product_flops(jaxpr) == 2 * (2 * 4 * 6 * 6)


def test_the_report_names_the_resource_that_takes_longest():
    hardware = TPUS["v5e"]
    target = Target("v5e:2x2", hardware, [None] * 4, "tpu")
    exchanged = Counter({Exchange("all-reduce", 0): 10**6, Exchange("all-gather", 2): 10**6})
    report = Report(2 * 10**9, 10**9, 197e9, 819 * 10**6, 0, exchanged, 3.0)
    bounds = report.bounds(target)
    assert bounds == {
        "products": pytest.approx(1e-3),
        "memory bandwidth": pytest.approx(1e-3),
        "interconnect": pytest.approx((1.5e6 + 0.5e6) / hardware.interconnect),
    }
    slower = report._replace(accessed=4 * report.accessed)
    searching = report._replace(step=3 * report.accessed)
    assert searching.binding(target) == ("memory bandwidth", pytest.approx(3e-3))
    text = "\n".join(report_lines(slower, target))
    assert "1 MB reduced, 1 MB gathered" in text
    assert "fits" in text and "at most 25 % of the peak, bound by memory bandwidth" in text
    assert "does not fit" in "\n".join(report_lines(report._replace(memory=20 * 10**9), target))
    assert "does not fit" in "\n".join(report_lines(None, target))


@pytest.mark.parametrize("start", [1, 7, 100, 5000])
@pytest.mark.parametrize("fixed, each", [(10**9, 3.1e8), (0, 10**7), (10**9, 2 * 10**10)])
@pytest.mark.parametrize("refuses", [False, True])
def test_the_largest_size_that_fits_is_found_within_a_tenth(start, fixed, each, refuses):
    """The compiler refuses what does not fit, or reports its memory."""
    target = Target("v5e:1", TPUS["v5e"], [None], "tpu")
    limit, tried = target.hardware.memory, []

    def report_of(size):
        tried.append(size)
        memory = int(fixed + each * size)
        return None if refuses and memory > limit else report._replace(memory=memory)

    report = Report(0, 0, 0.0, 0, 0, Counter(), 0.0)
    most = int((limit - fixed) / each)
    largest = largest_that_fits(report_of, start, report_of(start), target)
    assert 0.9 * most - 1 <= largest <= most and len(tried) == len(set(tried)) <= 16


@pytest.mark.parametrize("name", ["v7:2x2", "v5e", "v5e:x", "tpu", "h100:2x2", "h100:"])
def test_an_unknown_target_is_an_error(name):
    with pytest.raises(UserError, match=f"--compile_for={name} is unknown") as caught:
        target_of(name)
    assert caught.value.code == CONFIGURATION
