"""Programs that loop over positions: what three short traces say of a longer one, and of real sizes."""

from dataclasses import replace

import numpy as np
import pytest

from calibration import trace as tracing
from calibration.depth import with_depth
from calibration.models import build_config
from calibration.monomials import value
from profiles.schema import Preset, Stack
from profiles.store import load_workload
from simulator.components import evaluate

MAMBA = Preset(
    name="tiny-mamba",
    task="causal_lm",
    config={
        "model_type": "mamba", "architectures": ["MambaForCausalLM"], "hidden_size": 48, "state_size": 8,
        "num_hidden_layers": 4, "vocab_size": 1000, "intermediate_size": 96, "time_step_rank": 3, "conv_kernel": 4,
    },
    params=0, seq=256, source="made up", date="2026-12-01",
)  # fmt: skip
BATCH = 512.0


def peak(variant, seq):
    """The largest moment at the traced depth."""
    parts = ("activations", "logits", "temporary", "gradients")
    return max(sum(value(getattr(p, part), BATCH, seq) for part in parts) for p in variant.memory)


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("numerics", ["fp32", "pure"])
def test_a_longer_trace_is_foretold(numerics, checkpointed):
    """Oracle: the same model traced at a length beyond the three."""
    config = build_config(MAMBA)
    shallow = with_depth(MAMBA, tracing.TRACED_DEPTH)
    stacks = tuple(Stack(name=n, depth=d) for n, d in shallow[1])
    points = tracing.choose_points(MAMBA, config)
    assert len(points) == 3
    longer = replace(points[-1], seq=next(p for p in (61, 67, 71) if p > points[-1].seq))
    told, real = (
        tracing.trace_variant(shallow[0], tracing._grid(MAMBA, config), some, stacks, numerics, "eager", checkpointed)
        for some in (points, (longer,))
    )
    assert peak(told, longer.seq) == pytest.approx(peak(real, longer.seq), rel=0.01)


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
