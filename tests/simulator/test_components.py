"""Component seconds against closed forms of GPT-NeoX and against changes of one rate at a time."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from profiles.catalogue import load_gpu
from profiles.files import SHIPPED
from profiles.schema import Rate
from profiles.store import load_workload, read_profile
from simulator.components import (
    COMPONENTS,
    FP32_HALF_K,
    INDEX,
    POWER_DROP,
    SLOWER_BY_WIDTH,
    Choice,
    component_seconds,
    evaluate,
    group_mask,
    variant_for,
)
from simulator.rates import datasheet_rates

DEPTH, WIDTH, VOCABULARY = 24, 1024, 50304
"""Pythia-410M."""
PLAIN = Choice(precision="bf16", attention="sdpa", compile="off", checkpointing="none", optimizer="adamw_fused")
SIZES = np.array([[1.0, 2048.0, 0.0], [6.0, 1024.0, 0.0], [33.0, 512.0, 0.0]])
TOKENS = SIZES[:, 0] * SIZES[:, 1]
CHOICES = [
    replace(PLAIN, precision=p, attention=a, checkpointing=c, compile=k)
    for p in ("fp32", "tf32", "fp16", "bf16", "bf16_pure")
    for a in ("sdpa", "eager")
    for c in ("none", "full", "every_3")
    for k in ("off", "on")
]


@cache
def workload():
    found = load_workload("pythia-410m")
    assert found is not None
    return found


@cache
def probed():
    return read_profile(SHIPPED / "fitted" / "1xH200.json").rates


def seconds(choice=PLAIN, rates=None, sizes=SIZES, ranks=1):
    return component_seconds(workload(), probed() if rates is None else rates, choice, sizes, ranks)


def of(table, *names):
    return sum(table[:, INDEX[name]] for name in names)


def scaled(factor, *names):
    rates = dict(probed())
    return rates | {n: replace(rates[n], value=rates[n].value * factor) for n in names}


def ideal(**values):
    """The probed rates, with some of them replaced."""
    return probed() | {n: Rate(value=v, sd_log=0.1, basis="default", source="test", date="") for n, v in values.items()}


FLAT = {"matmul_half_k": 0.0, "matmul_half_tiles": 0.0, "elementwise_bytes_per_s": 1e30}


@pytest.mark.parametrize(("checkpointing", "again"), [("none", 0), ("full", 24), ("every_2", 12), ("every_5", 5)])
def test_matrix_products_take_the_closed_form_of_the_architecture(checkpointing, again):
    rates = ideal(matmul_bf16_flops_per_s=1e14, **FLAT)
    taken = of(seconds(replace(PLAIN, checkpointing=checkpointing), rates), "matmul.bf16.aligned")
    block, head = 12 * WIDTH**2, WIDTH * VOCABULARY
    recomputed = 8 * WIDTH**2  # it stops at the last tensor that backward needs: the down-projection's output is none
    flops = 6 * TOKENS * (DEPTH * block + head) + 2 * TOKENS * again * recomputed
    assert taken == pytest.approx(flops / 1e14, rel=1e-6)


def test_causal_attention_does_half_of_the_square_and_backward_two_and_a_half_times_as_much():
    rates = {f"attention_16_{p}_hd64_flops_per_s": 1e14 for p in ("forward", "backward")}
    rates = ideal(**rates, attention_16_forward_tail=0.0, attention_16_backward_tail=0.0)
    table = seconds(PLAIN, rates)
    forward = 0.5 * 4 * SIZES[:, 0] * SIZES[:, 1] ** 2 * WIDTH * DEPTH / 1e14
    assert of(table, "attention.16.forward") == pytest.approx(forward, rel=1e-6)
    assert of(table, "attention.16.backward") == pytest.approx(2.5 * forward, rel=1e-6)


def test_the_tail_of_causal_attention_matters_less_the_longer_the_sequence():
    sizes = np.array([[1.0, 512.0, 0.0], [1.0, 1024.0, 0.0], [1.0, 4096.0, 0.0]])
    per_square = of(seconds(sizes=sizes), "attention.16.forward") / sizes[:, 1] ** 2
    assert per_square[0] > per_square[1] > per_square[2]
    rate = probed()["attention_16_forward_hd64_flops_per_s"].value
    assert per_square[1] * 1024**2 == pytest.approx(0.5 * 4 * 1024**2 * WIDTH * DEPTH / rate, rel=1e-6)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_a_machine_twice_as_fast_in_everything_takes_half(choice):
    rates = dict(probed())
    faster = {n: 2.0 for n in rates if n.endswith("_per_s")} | {
        n: 0.5 for n in rates if n.endswith("_s") and not n.endswith("_per_s")
    }
    twice = rates | {n: replace(rates[n], value=rates[n].value * f) for n, f in faster.items()}
    before = seconds(choice)
    assert (np.abs(before).sum(axis=1) > 0).all()
    assert seconds(choice, twice) == pytest.approx(before / 2, rel=1e-9)


@pytest.mark.parametrize(
    ("rate", "names", "choice"),
    [
        ("softmax_bytes_per_s", {"softmax", "loss"}, replace(PLAIN, attention="eager")),
        ("norm_bytes_per_s", {"norm"}, PLAIN),
        ("strided_bytes_per_s", {"strided.16", "strided.32"}, PLAIN),
        ("concat_bytes_per_s", {"concat.16", "concat.32"}, PLAIN),
        ("clip_bytes_per_s", {"clip"}, PLAIN),
        ("optimizer_adamw_fused_bytes_per_s", {"optimizer.adamw_fused"}, PLAIN),
        ("attention_16_forward_hd64_flops_per_s", {"attention.16.forward"}, PLAIN),
        ("attention_32_backward_hd64_flops_per_s", {"attention.32.backward"}, replace(PLAIN, precision="fp32")),
    ],
)
def test_doubling_a_rate_halves_its_components_and_leaves_the_others(rate, names, choice):
    before, after = seconds(choice), seconds(choice, scaled(2.0, rate))
    halved = {n for n, i in INDEX.items() if before[:, i].any() and after[:, i] == pytest.approx(before[:, i] / 2)}
    present = {n for n in names if before[:, INDEX[n]].any()}
    assert present
    assert halved == present
    others = [i for n, i in INDEX.items() if n not in names | {"power"}]
    assert (after[:, others] == before[:, others]).all()


@pytest.mark.parametrize("phase", ["forward", "backward", "recompute"])
def test_a_slower_host_costs_dispatch_of_that_phase_only(phase):
    choice = replace(PLAIN, checkpointing="full")
    before, after = seconds(choice), seconds(choice, scaled(3.0, f"dispatch_{phase}_s"))
    column = INDEX[f"dispatch.{phase}"]
    assert (before[:, column] > 0).all()
    assert after[:, column] == pytest.approx(3 * before[:, column])
    assert np.delete(after, column, axis=1) == pytest.approx(np.delete(before, column, axis=1))


def test_nothing_is_computed_again_without_checkpointing():
    assert not of(seconds(), "dispatch.recompute").any()
    assert (of(seconds(replace(PLAIN, checkpointing="full")), "dispatch.recompute") > 0).all()


@pytest.mark.parametrize("interval", [2, 3, 5, 7, 24])
def test_every_k_recomputes_its_share_of_full(interval):
    plain = seconds()
    full = seconds(replace(PLAIN, checkpointing="full")) - plain
    some = seconds(replace(PLAIN, checkpointing=f"every_{interval}")) - plain
    share = -(-DEPTH // interval) / DEPTH
    for name in ("dispatch.recompute", "matmul.bf16.aligned", "attention.16.forward"):
        assert (full[:, INDEX[name]] > 0).all()
        assert some[:, INDEX[name]] == pytest.approx(share * full[:, INDEX[name]], rel=1e-9)


@pytest.mark.parametrize("choice", [c for c in CHOICES if c.compile == "on"], ids=str)
def test_compile_moves_bytes_floor_and_dispatch_to_components_of_its_own(choice):
    fused = choice.precision == "bf16_pure" and choice.attention == "eager"
    same_work = replace(choice, compile="off", attention="sdpa" if fused else choice.attention)
    on, off = seconds(choice), seconds(same_work)
    permuted = ("strided.16", "strided.32", "concat.16", "concat.32")
    moved = ("elementwise", "cast", *permuted, "softmax", "norm", "reduce", "embedding", "dropout", "fill")
    dispatch = ("dispatch.forward", "dispatch.backward", "dispatch.recompute")
    for names, compiled, factor in (
        ((*moved, "loss"), "compiled.bytes", "compile_bytes_factor"),
        (("floor",), "compiled.floor", "compile_floor_factor"),
        (dispatch, "compiled.dispatch", "compile_host_factor"),
    ):
        assert not of(on, *names).any()
        assert not of(off, compiled).any()
        assert of(on, compiled) == pytest.approx(of(off, *names) * probed()[factor].value)
    same = [i for n, i in INDEX.items() if n.startswith(("matmul", "bmm", "attention", "optimizer", "clip"))]
    assert (on[:, same] == off[:, same]).all()


@pytest.mark.parametrize("ranks", [2, 4, 8, 512])
@pytest.mark.parametrize(("precision", "width"), [("bf16", 4), ("bf16_pure", 2)])
def test_ranks_add_a_ring_all_reduce_of_the_gradients(ranks, precision, width):
    choice = replace(PLAIN, precision=precision)
    alone, many = seconds(choice), seconds(choice, ranks=ranks)
    wire = 2 * (ranks - 1) / ranks * workload().params * width
    hidden = 0.5
    expected = wire * hidden / probed()["all_reduce_bytes_per_s"].value
    assert not of(alone, "sync").any()
    assert of(many, "sync") == pytest.approx(np.full(len(SIZES), expected))
    assert np.delete(many, INDEX["sync"], axis=1) == pytest.approx(np.delete(alone, INDEX["sync"], axis=1))


@pytest.mark.parametrize("name", ["V100-16GB", "T4"])
def test_bf16_takes_for_ever_where_the_device_has_none(name):
    rates = datasheet_rates(load_gpu(name))
    assert (of(seconds(PLAIN, rates), "matmul.bf16.aligned") > 1e100).all()
    half = seconds(replace(PLAIN, precision="fp16"), rates)
    assert (half.sum(axis=1) < 1e4).all()


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_components_are_finite_never_negative_and_grow_with_the_micro_batch(choice):
    sizes = np.array([[b, 2048.0, 0.0] for b in (1.0, 2.0, 3.0, 8.0, 9.0, 64.0)])
    table = seconds(choice, sizes=sizes)
    assert np.isfinite(table).all()
    assert (table >= 0).all()
    rising = np.diff(table, axis=0)[:, np.arange(len(COMPONENTS)) != INDEX["power"]]
    assert (rising >= -1e-12).all()
    steps = group_mask("step_gpu") | group_mask("step_host")
    assert np.ptp(table[:, steps], axis=0).max() == 0, "the optimizer does not see the batch"


@pytest.mark.parametrize("kind", ["strided", "concat"])
def test_permuted_work_pays_by_the_element_so_narrow_work_gains_little(kind):
    """The trace's bytes by hand: sixteen-bit bytes cost more than fp32 ones, an element nearly the same."""
    table = seconds(PLAIN)
    variant = variant_for(workload(), PLAIN)
    for bits in (16, 32):
        moved = sum(
            evaluate(op.bytes, SIZES) * (DEPTH if op.stack >= 0 else 1)
            for op in variant.ops
            if op.kind == kind and op.bits == bits
        )
        by_bytes = moved / probed()[f"{kind}_bytes_per_s"].value
        assert of(table, f"{kind}.{bits}") == pytest.approx(by_bytes * SLOWER_BY_WIDTH[bits])
    assert 1.0 < SLOWER_BY_WIDTH[16] / SLOWER_BY_WIDTH[32] <= 2.2


def test_power_takes_at_most_its_share_of_the_products():
    for choice in CHOICES:
        table = seconds(choice)
        cores = [i for n, i in INDEX.items() if n.startswith("matmul.") and ".fp32." not in n]
        products = table[:, cores].sum(axis=1)
        assert (of(table, "power") <= POWER_DROP * products + 1e-15).all()
        assert (of(table, "power") > 0).all() == (choice.precision != "fp32")


def test_a_group_of_columns_for_each_component_and_no_two():
    groups = ("gpu", "host", "step_gpu", "step_host", "sync")
    assert sum(group_mask(g).astype(int) for g in groups).tolist() == [1] * len(COMPONENTS)


def test_polynomials_are_evaluated_term_by_term():
    sizes = np.array([[2.0, 3.0, 5.0], [1.0, 7.0, 0.0]])
    poly = ((4.0, 1, 2, 0), (-1.0, 0, 0, 1), (10.0, 0, 0, 0))
    assert evaluate(poly, sizes) == pytest.approx([4 * 2 * 9 - 5 + 10, 4 * 49 + 10])
    assert evaluate((), sizes) == 0.0


def test_an_odd_vocabulary_pays_for_its_alignment():
    gpt2 = load_workload("gpt2")
    assert gpt2 is not None
    table = component_seconds(gpt2, probed(), PLAIN, np.array([[8.0, 1024.0, 0.0]]))
    odd, aligned = of(table, "matmul.bf16.odd")[0], of(table, "matmul.bf16.aligned")[0]
    heads = 768 * 50257 / (12 * 768**2 * 12)
    assert odd > 2 * heads * aligned, "the head's products cost more per FLOP than the blocks'"


def test_a_compiler_fuses_eager_attention_where_nothing_casts():
    eager = Choice(precision="bf16_pure", attention="eager", compile="on", checkpointing="none", optimizer="sgd")
    assert seconds(eager) == pytest.approx(seconds(replace(eager, attention="sdpa")))
    for other in (replace(eager, precision="bf16"), replace(eager, precision="fp32"), replace(eager, compile="off")):
        assert seconds(other).sum() > 1.05 * seconds(replace(other, attention="sdpa")).sum()


def test_short_contractions_cost_fp32_products_a_third_of_what_they_cost_tf32_ones():
    """The closed form of the rate's loss: (1 + h / k) of the time, from the trace's own contractions."""
    half_k = 200.0
    for precision, product, half in (("tf32", "tf32", half_k), ("fp32", "fp32", half_k * FP32_HALF_K)):
        choice = replace(PLAIN, precision=precision)
        name = f"matmul.{product}.aligned"
        short, flat = (
            of(seconds(choice, ideal(**{**FLAT, "matmul32_half_k": value, "matmul32_half_tiles": 0.0})), name)
            for value in (half_k, 0.0)
        )
        lost = 0.0
        for op in variant_for(workload(), choice).ops:
            if op.kind == "matmul":
                blocks = DEPTH if op.stack >= 0 else 1
                lost = lost + evaluate(op.flops, SIZES) * blocks / evaluate(op.dims[3], SIZES)
        rate = probed()[f"matmul_{product}_flops_per_s"].value
        assert (lost > 0).all()
        assert short - flat == pytest.approx(lost * half / rate, rel=1e-6)
    assert pytest.approx(FP32_HALF_K, abs=0.02) == 47 / 150, "lengths at which batched products halve"


@pytest.mark.parametrize("checkpointing", ["none", "full", "every_3"])
def test_what_a_compiler_fuses_is_fused_again_when_recomputed(checkpointing):
    eager = replace(PLAIN, precision="bf16_pure", attention="eager", compile="on", checkpointing=checkpointing)
    assert (seconds(eager) == seconds(replace(eager, attention="sdpa"))).all()


def test_without_a_fused_variant_a_compiler_keeps_eager_attention():
    eager = replace(PLAIN, precision="bf16_pure", attention="eager", compile="on")
    whole = workload()
    alone = replace(whole, variants=tuple(v for v in whole.variants if v.attention == "eager"))
    table = component_seconds(alone, probed(), eager, SIZES)
    off = component_seconds(whole, probed(), replace(eager, compile="off"), SIZES)
    products = [i for name, i in INDEX.items() if name.startswith(("bmm", "matmul"))]
    assert of(off, "bmm.16").all()
    assert (table[:, products] == off[:, products]).all()
