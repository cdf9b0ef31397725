"""Three traced blocks stand for any depth: against a trace of every block of the full-depth model."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest

from calibration import trace as tracing
from calibration.building import build_config
from calibration.monomials import Point, value
from profiles.schema import Config, Fit, Numerics, Preset, Task, Variant, Workload
from simulator.components import Choice
from simulator.memory import memory

VOCABULARY = 3001
WORDS: Config = {
    "vocab_size": VOCABULARY, "hidden_size": 128, "num_hidden_layers": 5, "num_attention_heads": 4,
    "intermediate_size": 352,
}  # fmt: skip
T5: Config = {"vocab_size": VOCABULARY, "d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 5, "num_heads": 4}
T5 |= {"num_decoder_layers": 4, "decoder_start_token_id": 0, "pad_token_id": 0}
VIT = {k: v for k, v in WORDS.items() if k != "vocab_size"} | {"image_size": 64, "patch_size": 8, "num_labels": 10}
NUMERICS: tuple[Numerics, ...] = ("fp32", "amp")
PRECISION = {"fp32": "fp32", "amp": "bf16"}
SIZES = [(1, 128, 128), (8, 128, 32), (3, 384, 200), (2, 512, 512), (64, 2048, 512)]
NO_OVERHEAD = Fit(workspace_bytes=0, reserved_factor=1.0, device_overhead_bytes=0)


def preset(model_type: str, task: Task = "causal_lm", decoder_seq: int | None = None, **config: object) -> Preset:
    facts = {"model_type": model_type, **config}
    return Preset(
        name=model_type, task=task, config=facts, params=0, seq=128, decoder_seq=decoder_seq, source="test",
        date="2026-11-30",
    )  # fmt: skip


MODELS = {
    "gpt_neox": preset("gpt_neox", **WORDS),
    "gpt2": preset("gpt2", vocab_size=VOCABULARY, n_embd=128, n_layer=5, n_head=4, n_positions=2048),
    "llama": preset("llama", num_key_value_heads=2, **WORDS),
    "bert": preset("bert", "masked_lm", max_position_embeddings=2048, **WORDS),
    "t5": preset("t5", "seq2seq_lm", 128, **T5),
    "vit": preset("vit", "image_classification", **VIT),
    "mixtral": preset("mixtral", num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, **WORDS),
}


@cache
def pair(name: str) -> tuple[Workload, Workload]:
    """The model traced at three blocks a stack, and every block of it traced as if none repeated."""
    model = MODELS[name]
    short = tracing.trace(model, numerics=NUMERICS)
    grid = tracing._grid(model, build_config(model))
    points = tracing.choose_points(model, build_config(model))[-1:]
    whole = tuple(
        tracing.trace_variant(model, grid, points, (), v.numerics, v.attention, v.checkpointed) for v in short.variants
    )
    return short, dataclasses.replace(short, stacks=(), variants=whole)


def sizes(workload: Workload) -> list[tuple[int, int, int]]:
    if workload.fixed_seq:
        return [(batch, 1, 1) for batch, _, _ in SIZES]
    return [(b, s, t if workload.decoder_seq else 1) for b, s, t in SIZES]


def totals(workload: Workload, chosen: Variant, size: tuple[int, int, int]) -> dict[object, list[float]]:
    """(launches, bytes, FLOPs) by kind of operation at the real depth."""
    sums: dict[object, list[float]] = {}
    for op in chosen.ops:
        blocks = workload.stacks[op.stack].depth if op.stack >= 0 else 1
        found = sums.setdefault((op.kind, op.phase, op.bits, op.pad, op.causal), [0.0, 0.0, 0.0])
        for i, poly in enumerate((op.launches, op.bytes, op.flops)):
            found[i] += blocks * value(poly, *size)
    return {key: found for key, found in sums.items() if any(abs(x) > 1e-6 for x in found)}


def live_bytes(workload: Workload, chosen: Variant, accumulates: bool) -> np.ndarray:
    """Weights aside, peak bytes of a micro-batch at every size."""
    choice = Choice(
        precision=PRECISION[chosen.numerics], attention=chosen.attention, compile="off", optimizer="sgd",
        checkpointing="full" if chosen.checkpointed else "none",
    )  # fmt: skip
    rows = np.array(sizes(workload), float)
    peaks = memory(workload, choice, rows, np.full(len(rows), accumulates), NO_OVERHEAD, limit_bytes=1e15)
    return np.asarray(peaks.parts[:, 2:6].sum(axis=1))


@pytest.mark.parametrize("name", MODELS)
def test_work_at_full_depth_is_that_of_a_trace_of_every_block(name: str) -> None:
    short, whole = pair(name)
    assert {stack.depth for stack in short.stacks} == ({4, 5} if name == "t5" else {5})
    assert len(short.variants) == 8
    for ours, theirs in zip(short.variants, whole.variants, strict=True):
        for size in sizes(short):
            expected = totals(whole, theirs, size)
            assert totals(short, ours, size) == {key: pytest.approx(v, rel=1e-9) for key, v in expected.items()}


@pytest.mark.parametrize("accumulates", [False, True], ids=["one micro-batch", "accumulating"])
@pytest.mark.parametrize("name", MODELS)
def test_memory_at_full_depth_is_that_of_a_trace_of_every_block(name: str, accumulates: bool) -> None:
    short, whole = pair(name)
    for ours, theirs in zip(short.variants, whole.variants, strict=True):
        expected = live_bytes(whole, theirs, accumulates)
        assert live_bytes(short, ours, accumulates) == pytest.approx(expected, rel=2e-3), ours.numerics


@pytest.mark.parametrize("name", MODELS)
def test_what_a_block_saves_is_the_growth_of_memory_with_depth(name: str) -> None:
    """Without checkpointing, at the head of a large micro-batch, one block more costs what it saves."""
    short, _ = pair(name)
    chosen = next(v for v in short.variants if (v.numerics, v.attention, v.checkpointed) == ("amp", "sdpa", False))
    deeper = [dataclasses.replace(s, depth=s.depth + 1) if i == 0 else s for i, s in enumerate(short.stacks)]
    growth = live_bytes(dataclasses.replace(short, stacks=tuple(deeper)), chosen, True) - live_bytes(
        short, chosen, True
    )
    size = sizes(short)[-1]
    assert growth[-1] == pytest.approx(value(chosen.block_saved[0], *size), rel=1e-6)


# ----------------------------------------------------------------------------------------- another pair of lengths

OTHER = Point(micro_batch=131, seq=53, decoder_seq=179)


@cache
def shallow(name: str) -> tuple[Preset, Workload]:
    model = MODELS[name]
    cut = tracing.with_depth(model, tracing.TRACED_DEPTH)
    assert cut
    return cut[0], tracing.trace(cut[0], numerics=NUMERICS)


def at(name: str, chosen: Variant) -> Variant:
    """The variant traced once more, at other primes."""
    model, workload = shallow(name)
    grid = tracing._grid(model, build_config(model))
    decoder_seq = OTHER.decoder_seq if workload.decoder_seq else 1
    seq = 1 if workload.fixed_seq else OTHER.seq
    point = dataclasses.replace(OTHER, seq=seq, decoder_seq=decoder_seq)
    choice = chosen.numerics, chosen.attention, chosen.checkpointed
    return tracing.trace_variant(model, grid, (point,), workload.stacks, *choice)


@pytest.mark.parametrize("name", MODELS)
def test_sizes_do_not_depend_on_the_lengths_that_were_traced(name: str) -> None:
    """FLOPs and launches exactly; bytes up to sums of sizes (a length plus one), which are read as constants."""
    _, workload = shallow(name)
    again = tuple(at(name, chosen) for chosen in workload.variants)
    for ours, theirs in zip(workload.variants, again, strict=True):
        for size in sizes(workload):
            one, other = totals(workload, ours, size), totals(workload, theirs, size)
            assert one.keys() == other.keys()
            assert {k: (v[0], v[2]) for k, v in one.items()} == {k: (v[0], v[2]) for k, v in other.items()}
            moved = [sum(v[1] for v in each.values()) for each in (one, other)]
            assert moved[0] == pytest.approx(moved[1], rel=2e-3)
    for accumulates in (False, True):
        for ours, theirs in zip(workload.variants, again, strict=True):
            expected = live_bytes(dataclasses.replace(workload, variants=again), theirs, accumulates)
            assert live_bytes(workload, ours, accumulates) == pytest.approx(expected, rel=2e-3)
