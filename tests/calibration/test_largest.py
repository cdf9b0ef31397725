"""The largest micro-batch on a scripted machine and on this one: records, what is learned, and what is refused."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache

import pytest

import calibration.machine
from calibration.calibrate import journal_path
from calibration.largest import sized_recipes, verify_largest
from calibration.question import build_case
from calibration.testing import FakeMachine
from profiles import store
from profiles.errors import CampaignError, InvalidInputError
from profiles.machines import parse_machine
from profiles.records import read_measurements
from simulator import Case, Run, predict

GIB = 2**30
FIXED = {"precision": "bf16"}


@cache
def shipped_case() -> Case:
    return build_case("pythia-160m", "1xH200", Run(seq=2048), FIXED, published_batch=False)


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))


@pytest.fixture
def case(monkeypatch):
    monkeypatch.setattr(calibration.machine, "this_machine", lambda: parse_machine("1xH200"))
    monkeypatch.setattr(calibration.machine, "this_device", lambda: "cuda")
    return shipped_case()


def machine_of(case, *, scale=1.0, memory_bytes=None, **options):
    """A machine whose peaks are ``scale`` times what is predicted. It holds nothing beside what is allocated."""
    return FakeMachine(
        **{
            "step_s": lambda r: predict(replace(case, run=Run(seq=2048)), r).step_s,
            "peak_bytes": lambda r: round(scale * predict(replace(case, run=Run(seq=2048)), r).peak_bytes),
            "memory_bytes": memory_bytes or case.machine.gpu.memory_bytes,
            **options,
        }
    )


def brute_force(case, machine, upto=120):
    def fits(recipe):
        return machine.step_peak_bytes(recipe, 2) <= machine.limit_bytes(_Unlimited)

    return max((b for b, r in sized_recipes(case).items() if b <= upto and fits(r)), default=0)


class _Unlimited:
    limit_bytes = None


@pytest.mark.parametrize("scale", [0.9, 0.97, 1.0, 1.03, 1.1, 1.25])
def test_it_is_what_brute_force_finds(case, scale):
    machine = machine_of(case, scale=scale)
    found = verify_largest(case, measurer=machine)
    tried = [t.recipe.micro_batch for t in machine.trials]
    assert tried == list(found.largest.runs) == [v.recipe.micro_batch for v in found.verified]
    assert len(tried) <= 3
    assert found.largest.micro_batch == brute_force(case, machine)
    assert found.recipe.micro_batch == found.largest.micro_batch
    assert machine.closed


def test_all_runs_are_of_the_fixed_knobs_at_their_defaults(case):
    machine = machine_of(case)
    verify_largest(replace(case, fixed={**FIXED, "checkpointing": "full", "micro_batch": 3}), measurer=machine)
    for trial in machine.trials:
        recipe = trial.recipe
        assert (recipe.checkpointing, recipe.precision, recipe.attention, recipe.compile) == (
            "full", "bf16", "sdpa", "off",
        )  # fmt: skip
        assert (recipe.seq, recipe.grad_accum) == (2048, 1)
        assert trial.limit_bytes is None
    assert len({t.recipe.micro_batch for t in machine.trials}) == len(machine.trials)


def test_records_are_journalled_and_what_ran_out_is_remembered(case):
    machine = machine_of(case, scale=1.08)
    found = verify_largest(case, measurer=machine)
    records = read_measurements(journal_path("1xH200"))
    assert [r.status for r in records] == [v.measured.status for v in found.verified]
    assert {"ok", "oom"} == {r.status for r in records}
    profile = store.read_profile(found.profile_path)
    ours = profile.verified[len(case.profile.verified) :]
    assert [r.recipe.micro_batch for r in ours] == list(found.largest.runs)
    later = replace(case, profile=profile)
    failed = sized_recipes(case)[found.largest.smallest_oom]
    assert predict(later, failed).verdict == "oom"
    assert predict(later, sized_recipes(case)[found.largest.micro_batch // 2]).verdict == "fits"


def test_only_what_makes_the_global_batch_is_tried(case):
    asked = replace(case, run=Run(seq=2048, global_batch=96))
    sizes = sized_recipes(asked)
    assert list(sizes) == [b for b in range(1, 97) if 96 % b == 0]
    assert all(b * r.grad_accum == 96 for b, r in sizes.items())
    machine = machine_of(asked)
    found = verify_largest(asked, measurer=machine)
    assert found.largest.micro_batch == brute_force(asked, machine)
    assert all(t.recipe.micro_batch * t.recipe.grad_accum == 96 for t in machine.trials)


def test_not_even_one_is_an_answer(case):
    found = verify_largest(case, measurer=machine_of(case, memory_bytes=GIB // 4))
    assert found.largest.micro_batch == 0
    assert found.profile_path is None
    assert found.largest.smallest_oom == min(found.largest.runs)
    assert len(found.largest.runs) <= 3


def test_a_crash_tells_nothing_and_is_told(case):
    machine = machine_of(case, crash=lambda _: "driver is gone")
    with pytest.raises(CampaignError, match="driver is gone"):
        verify_largest(case, measurer=machine)
    assert len(machine.trials) == 1
    assert machine.closed


def test_a_crash_after_a_run_leaves_what_ran(case):
    first = verify_largest(case, measurer=machine_of(case, scale=0.9)).largest.runs[0]
    machine = machine_of(case, scale=0.9, crash=lambda r: "hiccup" if r.micro_batch != first else None)
    found = verify_largest(case, measurer=machine)
    assert (found.largest.micro_batch, found.largest.proven, found.largest.smallest_oom) == (first, False, None)
    assert [v.measured.status for v in found.verified] == ["ok", "crash"]


def test_another_machine_is_refused(case):
    machine = machine_of(case)
    with pytest.raises(CampaignError, match="1xA100-80GB can only be verified where it is"):
        verify_largest(build_case("pythia-160m", "1xA100-80GB", Run(), {}), measurer=machine)
    assert not machine.trials


def test_broken_rules_are_refused_before_anything_runs(case):
    machine = machine_of(case)
    with pytest.raises(InvalidInputError, match="checkpointing"):
        verify_largest(replace(case, fixed={"checkpointing": "every_99"}), measurer=machine)
    assert not machine.trials


def test_progress_says_which_size_is_run(case):
    told = []
    found = verify_largest(case, measurer=machine_of(case), on_progress=lambda text, share: told.append((text, share)))
    assert [text for text, _ in told] == [
        f"run {i} of at most 3: micro_batch={b}" for i, b in enumerate(found.largest.runs, start=1)
    ]
    assert [share for _, share in told] == sorted(share for _, share in told)


@pytest.mark.skipif(sys.platform != "linux", reason="caps the memory of a process as Linux does")
def test_this_machine_with_little_memory():
    """Real steps in real processes that may take 0.5 GB: what ran and what did not lie on both sides of the answer."""
    asked = build_case("pythia-14m", "cpu", Run(seq=32), {"precision": "fp32"}, published_batch=False)
    limit = asked.profile.fit.device_overhead_bytes + 500_000_000
    small = replace(asked.profile, machine=replace(asked.machine, host_memory_bytes=limit))
    found = verify_largest(replace(asked, profile=small))
    ran = {v.recipe.micro_batch: v.measured for v in found.verified}
    assert len(ran) == len(found.verified) <= 3
    assert set(m.status for m in ran.values()) <= {"ok", "oom"}
    assert found.largest.micro_batch == max(b for b, m in ran.items() if m.status == "ok") >= 1
    failed = [b for b, m in ran.items() if m.status == "oom"]
    assert found.largest.smallest_oom == min(failed, default=None)
    assert all(b > found.largest.micro_batch for b in failed)
    assert all(m.peak_bytes <= 1.1 * 500_000_000 for m in ran.values() if m.status == "ok")
