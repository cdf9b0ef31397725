"""Every preset that ships is answered for, without torch, on every machine that could hold it."""

import numpy as np
import pytest

from calibration.question import build_case
from profiles.store import load_preset, preset_names
from simulator import Run, plan, predict
from simulator.recipes import complete


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_answered_for(name: str) -> None:
    preset = load_preset(name)
    vision = preset.task in {"image_classification", "contrastive"}
    case = build_case(name, "1xH200", Run(samples=1e6) if vision else Run(tokens=1e9), {}, published_batch=False)
    answer = predict(case, complete({"micro_batch": 2}, case))
    assert 0 < answer.step_s_low < answer.step_s < answer.step_s_high
    assert sum(answer.time_breakdown_s.values()) == pytest.approx(answer.step_s)
    assert sum(answer.memory_breakdown_bytes.values()) == answer.peak_device_bytes
    assert answer.peak_bytes > 2 * preset.params, "at least 16-bit weights"
    assert answer.steps is not None


@pytest.mark.parametrize("name", ["clip-vit-b32", "t5-base", "convnext-large", "mamba-130m", "vit-l16"])
def test_odd_presets_are_planned(name: str) -> None:
    best = plan(build_case(name, "1xA100-80GB", Run(global_batch=64), {}), top=3)
    times = np.array([p.step_s / p.global_batch for p in best.recipes])
    assert best.best.fits
    assert (np.diff(times) >= -0.02 * times[:-1]).all()


def test_a_slow_network_makes_several_nodes_slower() -> None:
    def step_s(network: str) -> float:
        case = build_case("pythia-1b", f"2x8xA100-80GB@{network}", Run(seq=2048), {}, published_batch=False)
        return predict(case, complete({"micro_batch": 1}, case)).step_s

    fast, slow = step_s("8xib400"), step_s("eth10")
    # Half of a ring all-reduce of fp32 gradients, 2 · 15/16 · 4 bytes · parameters, over an eighth of 1.25 GB/s × 0.7.
    exposed = 0.5 * 2 * 15 / 16 * 4 * 1_011_781_632 / (1.25e9 / 8 * 0.7)
    assert slow - fast == pytest.approx(exposed, rel=0.02)
