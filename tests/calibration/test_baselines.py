"""The yardsticks against hand-made figures: baselines of time, and memory by the closed form."""

import numpy as np
import pytest

from calibration.baselines import BASELINES, best_efficiency, constant_mfu, roofline, scores
from calibration.closed_form import closed_form_scores, peak_bytes
from calibration.evaluate import Split
from calibration.rows import time_rows
from profiles.files import SHIPPED
from profiles.schema import Measurement, Recipe
from profiles.store import load_workload, read_profile
from simulator.outlook import model_flops

PROFILE = read_profile(SHIPPED / "fitted" / "1xH200.json")
WORKLOADS = {name: load_workload(name) for name in ("pythia-410m", "bert-base", "t5-base", "vit-b16", "clip-vit-b32")}
PYTHIA = WORKLOADS["pythia-410m"]


def record(step_s=1.0, model="pythia-410m", peak_bytes=None, **knobs):
    recipe = Recipe(**{"seq": 2048, **knobs})
    status = "ok" if step_s else "oom"
    return Measurement(
        model=model, machine="1xH200", recipe=recipe, status=status, step_s=step_s, peak_bytes=peak_bytes
    )  # fmt: skip


def split_of(fitted, scored):
    return Split(fitted=tuple(fitted), scored=tuple(scored), workloads=WORKLOADS, profile=PROFILE)


def rows_of(records):
    return time_rows(records, WORKLOADS, PROFILE.rates)


def test_one_mfu_for_all_is_the_median_or_the_best_of_the_fitted_rows():
    ideal = model_flops(PYTHIA, 2048) * 4 / PROFILE.machine.gpu.bf16_flops_per_s
    fitted = [record(ideal / mfu, micro_batch=4) for mfu in (0.2, 0.3, 0.5)]
    scored = [record(1.0, micro_batch=8, grad_accum=3)]
    split, rows = split_of(fitted, scored), rows_of(scored)
    assert constant_mfu(split, rows_of(fitted), rows) == pytest.approx([6 * ideal / 0.3])
    assert best_efficiency(split, rows_of(fitted), rows) == pytest.approx([6 * ideal / 0.5])


def test_the_roofline_has_no_launch_cost():
    rows = rows_of([record(micro_batch=4)])
    slow = {n: r for n, r in PROFILE.rates.items() if not n.startswith(("dispatch", "kernel"))}
    cheap = time_rows([record(micro_batch=4)], WORKLOADS, slow)
    split = split_of([], [])
    assert roofline(split, rows, rows) == pytest.approx(roofline(split, cheap, cheap))
    assert roofline(split, rows, rows)[0] < rows.seconds.sum()


def test_baselines_know_what_fits_and_are_scored_on_choice_too():
    table = [record(s, micro_batch=b, grad_accum=16 // b) for b, s in ((1, 4.0), (2, 3.0), (4, 2.0))]
    table.append(record(None, micro_batch=16))
    told = scores(split_of(table[:2], table), rows_of(table))
    assert set(told) == set(BASELINES)
    assert all(one["n"] == 3 and one["regret"]["cells"] == 1 for one in told.values())
    constant = told["constant_mfu"]["regret"]
    assert constant["top1"] == pytest.approx(np.mean([2 / 4, 2 / 3, 1.0])), "equal FLOPs are equal times: a tie"
    assert constant["top3"] == 1.0


def test_without_fitted_rows_only_the_roofline_speaks():
    table = [record(1.0, micro_batch=1)]
    assert set(scores(split_of([], table), rows_of(table))) == {"roofline"}


# ------------------------------------------------------------------------------------------- the closed form

HEAD = 2048 * 1024 * (1 + 4 * (1 + 50304 / 1024))
STATE = 16 * PYTHIA.params


def test_layers_of_16_bit_follow_the_source():
    row = 2048 * 3 * 1024
    assert peak_bytes(PYTHIA, Recipe(micro_batch=3)) == pytest.approx(STATE + 24 * row * 34 + 3 * HEAD)
    eager = 24 * row * (34 + 5 * 16 * 2048 / 1024)
    assert peak_bytes(PYTHIA, Recipe(micro_batch=3, attention="eager")) == pytest.approx(STATE + eager + 3 * HEAD)
    full = 24 * row * 2 + row * 34
    assert peak_bytes(PYTHIA, Recipe(micro_batch=3, checkpointing="full")) == pytest.approx(STATE + full + 3 * HEAD)
    third = 8 * row * 2 + 16 * row * 34 + row * 34
    got = peak_bytes(PYTHIA, Recipe(micro_batch=3, checkpointing="every_3"))
    assert got == pytest.approx(STATE + third + 3 * HEAD)


def test_layers_of_32_bit_are_twice_as_large():
    row = 1024 * 2 * 1024
    got = peak_bytes(PYTHIA, Recipe(micro_batch=2, seq=1024, precision="tf32"))
    assert got == pytest.approx(STATE + 24 * row * 68 + HEAD)


def test_stacks_have_lengths_of_their_own_and_images_their_fixed_one():
    t5 = WORKLOADS["t5-base"]
    layers = 12 * 768 * 34 * (512 + 128)
    head = 128 * 768 * (1 + 4 * (1 + 32128 / 768))
    assert peak_bytes(t5, Recipe(seq=512, decoder_seq=128)) == pytest.approx(16 * t5.params + layers + head)
    vit = WORKLOADS["vit-b16"]
    expected = 16 * vit.params + 12 * 197 * 768 * 34 + 197 * 768 * 5
    assert peak_bytes(vit, Recipe()) == pytest.approx(expected)


def test_a_model_without_one_width_has_no_closed_form():
    assert peak_bytes(WORKLOADS["clip-vit-b32"], Recipe()) is None
    told = closed_form_scores([record(model="clip-vit-b32", seq=None, peak_bytes=2**30)], WORKLOADS, PROFILE)
    assert told["memory"] is None
    assert told["oom"]["n_ran"] == 0


def test_it_is_scored_as_the_model_is():
    ran = record(micro_batch=3, peak_bytes=round(STATE + 24 * 2048 * 3 * 1024 * 34 + 3 * HEAD) * 2)
    table = [ran, record(None, micro_batch=1), record(None, micro_batch=4000)]
    told = closed_form_scores(table, WORKLOADS, PROFILE)
    assert told["memory"]["n"] == 1
    assert told["memory"]["bias"] == pytest.approx(-0.5)
    assert (told["oom"]["n_oom"], told["oom"]["recall"], told["oom"]["false_fits"]) == (2, 0.5, 1)
