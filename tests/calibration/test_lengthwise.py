"""Programs that loop over positions: what three short traces say of a longer one, and of real sizes."""

from dataclasses import replace

import numpy as np
import pytest

from calibration import trace as tracing
from calibration.building import build_config
from calibration.depth import with_depth
from calibration.lengthwise import join_lengths
from calibration.microbatch import record_micro_batch
from calibration.monomials import value
from calibration.recorder import merge_in_place_sums
from calibration.timeline import Place, PlacedPoint, rounded
from profiles.schema import MemoryPoint, Preset, Stack, Variant
from profiles.store import load_preset, load_workload
from simulator.components import evaluate

MAMBA = Preset(
    name="tiny-mamba",
    task="causal_lm",
    config={
        "model_type": "mamba", "architectures": ["MambaForCausalLM"], "hidden_size": 48, "state_size": 8,
        "num_hidden_layers": 4, "vocab_size": 1100, "intermediate_size": 96, "time_step_rank": 3, "conv_kernel": 4,
    },
    params=0, seq=256, source="made up", date="2026-12-01",
)  # fmt: skip
BATCHES = (1, 4, 32, 512)
DEPTH = 4
LONGER = 61


def held(allocations, batch, seq, accumulating):
    """The most bytes alive at once, storage by storage."""
    last = max(made.birth for made in allocations)
    change = np.zeros(last + 2)
    deaths = [min(m.death, m.accumulated) if accumulating and m.gradient else m.death for m in allocations]
    size_bytes = [rounded(m) * batch ** m.size[1] * seq ** m.size[2] for m in allocations]
    np.add.at(change, [made.birth for made in allocations], size_bytes)
    np.subtract.at(change, np.minimum(deaths, last) + 1, size_bytes)
    return np.cumsum(change).max()


def told(variant, batch, seq, accumulating):
    """The largest moment at the model's own depth."""

    def total(point):
        gradients = point.gradients_in_flight if accumulating else point.gradients
        more = [] if accumulating else point.block_gradients
        own = sum(value(poly, batch, seq) for poly in (point.activations, point.logits, point.temporary, gradients))
        return own + (DEPTH - 3) * sum(value(poly, batch, seq) for poly in (*point.block_activations, *more))

    return max(total(point) for point in variant.memory)


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("numerics", ["fp32", "amp", "pure"])
def test_every_length_holds_what_its_own_recording_at_full_depth_does(numerics, checkpointed):
    """Oracle: the model with all its blocks recorded at each traced length and at a longer one."""
    config = build_config(MAMBA)
    shallow, facts = with_depth(MAMBA, tracing.TRACED_DEPTH)
    stacks = tuple(Stack(name=name, depth=depth) for name, depth in facts)
    assert [stack.depth for stack in stacks] == [DEPTH]
    points, grid = tracing.choose_points(MAMBA, config), tracing._grid(MAMBA, config)
    assert len(points) == 3
    variant = tracing.trace_variant(shallow, grid, points, stacks, numerics, "eager", checkpointed)
    for point in (*points, replace(points[-1], seq=LONGER)):
        recording = record_micro_batch(MAMBA, stacks, numerics, "eager", checkpointed, point)
        allocations = merge_in_place_sums(recording.allocations)
        for batch in BATCHES:
            for accumulating in (False, True):
                expected = held(allocations, batch, point.seq, accumulating)
                assert told(variant, batch, point.seq, accumulating) == pytest.approx(expected, rel=0.005)


# ------------------------------------------------------------------------------------------- moments made by hand

LENGTHS = (29, 31, 37)


def moment(nth, size_bytes, step, *, from_end=False):
    place = Place(stretch=1, makes=("a",), from_end=from_end, nth=nth, state=0)
    return PlacedPoint(label="forward", activations=((float(size_bytes), 1, 0, 0),), step=step, places=(place,))


def variants(*moments_of_length):
    return [
        (seq, Variant(numerics="fp32", attention="eager", checkpointed=False, ops=(), memory=tuple(moments)))
        for seq, moments in zip(LENGTHS, moments_of_length, strict=True)
    ]


def test_each_moment_is_joined_with_itself_whichever_is_the_largest_where_it_was_traced():
    """One holds a kilobyte a sample, the other 10 bytes a position more than 600: the largest only from 40 on."""
    traces = variants(*([moment(0, 1000, 5), moment(0, 10 * s + 600, 9 + 3 * s, from_end=True)] for s in LENGTHS))
    constant = MemoryPoint(label="forward", activations=((1000.0, 1, 0, 0),))
    growing = MemoryPoint(label="forward", activations=((600.0, 1, 0, 0), (10.0, 1, 1, 0)))
    assert set(join_lengths(traces).memory) == {constant, growing}


def test_moments_that_move_unevenly_are_not_the_same_one():
    """The third of its kind lies in the loop at two lengths, and beyond it at the shortest."""
    steps = dict(zip(LENGTHS, (40, 11, 11), strict=True))
    traces = variants(*([moment(0, 1000 * s, 5), moment(2, 500, steps[s])] for s in LENGTHS))
    assert join_lengths(traces).memory == (MemoryPoint(label="forward", activations=((1000.0, 1, 1, 0),)),)


def test_a_length_that_holds_more_than_the_joined_moments_is_refused():
    """1 % more than any moment that all three have."""
    alike = [moment(0, 10_000, 5)]
    with pytest.raises(ValueError, match="loops over positions cannot be told apart"):
        join_lengths(variants(alike, [*alike, moment(1, 10_100, 6)], alike))
    assert len(join_lengths(variants(alike, [*alike, moment(1, 10_000, 6)], alike)).memory) == 1


def test_without_any_moment_in_common_nothing_is_told():
    with pytest.raises(ValueError, match="loops over positions cannot be told apart"):
        join_lengths(variants([moment(0, 10, 5)], [moment(1, 10, 5)], [moment(2, 10, 5)]))


def test_quadratics_are_joined_exactly_and_a_decoders_length_stays():
    def points(seq):
        grown = moment(0, 7 + 3 * seq + 2 * seq**2, 5)
        return [replace(grown, temporary=((float(5 * seq), 1, 1, 0), (11.0, 0, 0, 1)))]

    (joined,) = join_lengths(variants(*(points(seq) for seq in LENGTHS))).memory
    assert set(joined.activations) == {(7.0, 1, 0, 0), (3.0, 1, 1, 0), (2.0, 1, 2, 0)}
    assert set(joined.temporary) == {(5.0, 1, 2, 0), (11.0, 0, 0, 1)}


# ------------------------------------------------------------------------------------------------ shipped traces


@pytest.mark.parametrize("name", ["mamba-130m", "mamba-2.8b"])
def test_shipped_traces_hold_the_logits_and_nothing_negative(name):
    workload = load_workload(name)
    sizes = np.array([[b, s, 0.0] for b in (1.0, 8.0, 64.0) for s in (128.0, 512.0, 2048.0, 8192.0)])
    logits = 4.0 * sizes[:, 0] * sizes[:, 1] * workload.config["vocab_size"]
    for variant in workload.variants:
        totals = []
        for point in variant.memory:
            parts = (point.activations, point.logits, point.temporary, point.gradients, *point.block_activations)
            here = [np.broadcast_to(evaluate(part, sizes), len(sizes)) for part in parts]
            assert all((part >= -1.0).all() for part in here), point.label
            totals.append(sum(here))
        assert (np.max(totals, axis=0) >= logits).all()
        assert (np.max(totals, axis=0) <= 2000 * logits).all(), "a blown-up polynomial"


@pytest.mark.parametrize("chunk", [64, 256])
def test_work_in_chunks_longer_than_a_short_trace_is_warned_of(chunk):
    """Mamba-2: lengths that all pad to one chunk look like one program; several chunks tell."""
    preset = replace(
        MAMBA,
        name="tiny-mamba2",
        config={
            "model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"], "hidden_size": 48, "state_size": 8,
            "num_hidden_layers": 4, "vocab_size": 1000, "head_dim": 24, "num_heads": 4, "n_groups": 1,
            "chunk_size": chunk,
        },
    )  # fmt: skip
    some = {"numerics": ("fp32",), "attentions": ("eager",), "checkpointing": (False,)}
    try:
        told = tracing.trace(preset, **some).warnings
    except tracing.UntraceableError as error:
        told = [str(error)]
    assert any("times the bytes that its trace says" in line or "in chunks" in line for line in told)
    assert not any("its trace says" in line for line in tracing.trace(load_preset("pythia-14m"), **some).warnings)
