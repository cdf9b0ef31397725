"""The choice of runs against Gaussian conditioning done the long way, and its seeds and rations one by one."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.candidates import Pool
from calibration.choose import (
    COMPILE_SHARE,
    FORM_REACH,
    FORM_SD_LOG,
    HOST_FORM_SD_LOG,
    SEED_SHARE,
    Belief,
    Chooser,
    narrowing,
)
from calibration.seeds import seed_groups
from calibration.trial import Trial
from profiles.files import SHIPPED
from profiles.schema import Fit, Recipe
from profiles.store import read_profile
from simulator.components import COMPONENTS, INDEX

seeds = st.integers(0, 10_000)
COUNT = 12
FACTORS = len(COMPONENTS)


# ------------------------------------------------------------------------------------------------------ belief


def belief(seed, count=COUNT):
    random = np.random.default_rng(seed)
    shares = random.dirichlet(np.full(FACTORS, 0.2), count)
    root = random.normal(0.0, 0.2, (FACTORS, FACTORS))
    return Belief(shares, root @ root.T / FACTORS + 0.01 * np.eye(FACTORS))


def joint(some):
    """Covariance of all runs by the formula in words, one pair after the other."""
    host = [i for i, name in enumerate(COMPONENTS) if COMPONENTS[name] == "host"]
    form = [np.hypot(FORM_SD_LOG, HOST_FORM_SD_LOG * s[host].sum()) for s in some.shares]
    count = len(form)
    matrix = np.zeros((count, count))
    for i in range(count):
        for j in range(count):
            apart = np.linalg.norm(some.shares[i] - some.shares[j])
            alike = np.exp(-0.5 * (apart / FORM_REACH) ** 2)
            matrix[i, j] = some.shares[i] @ some.factors @ some.shares[j] + form[i] * form[j] * alike
    return matrix


def left_sd(matrix, noise, measured):
    """Standard deviation of every run's log time, its noise included, once some are measured: by a matrix inverse."""
    if measured:
        inverse = np.linalg.inv(matrix[np.ix_(measured, measured)] + np.diag(noise[measured] ** 2))
        matrix = matrix - matrix[:, measured] @ inverse @ matrix[measured]
    return np.sqrt(np.diag(matrix) + noise**2)


@settings(max_examples=30, deadline=None)
@given(seeds, st.lists(st.integers(0, COUNT - 1), max_size=5, unique=True))
def test_narrowing_is_what_really_narrows(seed, measured):
    some = belief(seed)
    matrix, targets = joint(some), np.arange(0, COUNT, 2)
    assert some.variance() == pytest.approx(np.diag(matrix), rel=1e-9)
    before = left_sd(matrix, some.noise, measured)[targets].mean()
    fresh = [i for i in range(COUNT) if i not in measured]
    really = [before - left_sd(matrix, some.noise, [*measured, i])[targets].mean() for i in fresh]
    assert narrowing(some, measured, targets)[fresh] == pytest.approx(really, rel=1e-5, abs=1e-10)


def test_runs_that_the_host_decides_are_noisier_and_less_well_described():
    host, device = np.zeros(FACTORS), np.zeros(FACTORS)
    host[INDEX["dispatch.forward"]] = device[INDEX["matmul.bf16.aligned"]] = 1.0
    some = Belief(np.array([host, device]), np.zeros((FACTORS, FACTORS)))
    assert some.noise[0] > some.noise[1] > 0
    assert some.variance()[0] == pytest.approx(FORM_SD_LOG**2 + HOST_FORM_SD_LOG**2)
    assert some.variance()[1] == pytest.approx(FORM_SD_LOG**2)


# ----------------------------------------------------------------------------------------------------- chooser


@cache
def profile():
    shipped = read_profile(SHIPPED / "fitted" / "1xH200.json")
    return type(shipped)(machine=shipped.machine, provenance="measured", rates=shipped.rates, created_at="", fit=Fit())


def trial(model="one", **knobs):
    return Trial(model=model, machine="1xH200", device="cuda", recipe=Recipe(**knobs))


def pool(trials, seconds=None, cost_s=None, needed_bytes=None):
    """Trials that spend ``seconds`` on 16-bit products, unless told, and little on the host."""
    count = len(trials)
    table = np.zeros((count, FACTORS))
    spent = [0.01 * t.recipe.micro_batch * (t.recipe.seq or 64) for t in trials] if seconds is None else seconds
    for i, t in enumerate(trials):
        kind = {"tf32": "tf32", "fp32": "fp32", "fp16": "fp16"}.get(t.recipe.precision, "bf16")
        table[i, INDEX[f"matmul.{kind}.aligned"]] = spent[i]
        table[i, INDEX["dispatch.forward"]] = 0.2
    return Pool(
        trials=tuple(trials),
        seconds=table,
        grad_accum=np.ones(count),
        fixed_cost_s=np.full(count, 5.0) if cost_s is None else np.array(cost_s),
        needed_bytes=np.arange(count, dtype=float) if needed_bytes is None else np.array(needed_bytes),
    )


MIXED = [
    trial(micro_batch=1),
    trial(micro_batch=64),
    trial(micro_batch=8, checkpointing="full"),
    trial(micro_batch=64, optimizer="sgd"),
    trial(micro_batch=32, precision="tf32"),
    trial(micro_batch=2, precision="tf32"),
    trial(micro_batch=16, attention="eager"),
    trial(micro_batch=4, precision="bf16_pure"),
    trial(micro_batch=8, compile="on"),
    trial("two", micro_batch=1),
    trial("two", micro_batch=8),
]


def test_seeds_are_a_large_run_two_small_ones_and_large_ones_of_each_kind_then_compiled_and_the_fullest():
    first = [group[0] for group in seed_groups(pool(MIXED))]
    assert first == [1, 0, 9, 4, 6, 10, 8, 10]


def test_one_model_has_two_host_bound_seeds_of_its_own():
    first = [group[0] for group in seed_groups(pool(MIXED[:9]))]
    assert first[:3] == [1, 0, 2], "the smallest plain one and one that runs its forward pass twice"


def test_seeds_of_a_pool_without_plain_trials_are_the_plainest():
    some = [
        trial(micro_batch=4, precision="fp16", checkpointing="full", optimizer="sgd"),
        trial(micro_batch=2, precision="fp16", optimizer="sgd"),
        trial(micro_batch=8, precision="fp16", optimizer="sgd"),
        trial(micro_batch=8, precision="fp32", attention="eager"),
    ]
    groups = seed_groups(pool(some))
    assert groups[0][:3] == [2, 1, 0]
    assert groups[1][:2] == [1, 2]


def order(chooser, left_s=1e9):
    """Everything the chooser takes until it stops; every run takes what was predicted."""
    taken = []
    while (chosen := chooser.next(profile(), left_s)) is not None:
        taken.append(chosen)
        chooser.saw(chosen, float(chooser.pool.fixed_cost_s[chosen]))
    return taken


def test_it_takes_seeds_first_nothing_twice_and_nothing_closed():
    taken = order(Chooser(pool(MIXED), profile(), budget_s=1000.0, closed=[0, 7]))
    assert taken[0] == 1
    assert sorted(taken) == [i for i in range(len(MIXED)) if i not in {0, 7}]


def test_after_the_seeds_it_takes_what_narrows_most_per_second():
    chooser = Chooser(pool(MIXED, cost_s=np.linspace(2.0, 30.0, len(MIXED))), profile(), budget_s=1000.0)
    chooser.seeds = []
    chooser.saw(1, None)
    worth = narrowing(Belief(chooser.pool.shares(profile()), chooser.factors), [1], np.arange(len(MIXED)))
    worth = worth / (chooser.pool.fixed_cost_s + chooser.overhead_s)
    best = max((i for i in range(len(MIXED)) if i != 1), key=lambda i: worth[i])
    assert chooser.next(profile(), 1e9) == best


def test_of_two_equal_runs_the_cheaper_one_is_taken_unless_cost_has_no_weight():
    twins = [trial(micro_batch=8), trial(micro_batch=8, grad_accum=2)]
    some = pool(twins, seconds=[1.0, 1.0], cost_s=[9.0, 3.0])
    for overhead_s, expected in ((0.0, 1), (100.0, 1), (np.inf, 0)):
        chooser = Chooser(some, profile(), budget_s=1000.0, overhead_s=overhead_s)
        chooser.seeds = []
        assert chooser.next(profile(), 1e9) == expected


def test_what_is_known_is_not_measured_again():
    """Three runs of one kind and one of another: after one of the three, the other one is worth more."""
    some = [trial(micro_batch=b) for b in (60, 62, 64)] + [trial(micro_batch=60, precision="tf32")]
    chooser = Chooser(pool(some), profile(), budget_s=1000.0)
    chooser.seeds = []
    chooser.saw(1, 5.0)
    assert chooser.next(profile(), 1e9) == 3


def test_seeds_and_compiled_shapes_are_rationed():
    budget_s = 100.0
    dear = [trial(micro_batch=64), trial(micro_batch=32)]
    chooser = Chooser(pool(dear, cost_s=[SEED_SHARE * 100 + 1, SEED_SHARE * 100 - 1]), profile(), budget_s=budget_s)
    assert chooser.next(profile(), 1e9) == 1, "the largest one is too dear for a seed"
    shapes = [trial(micro_batch=b, compile="on") for b in (1, 2, 4, 8)]
    taken = order(Chooser(pool(shapes, cost_s=[15.0] * 4), profile(), budget_s=budget_s))
    assert len(taken) == COMPILE_SHARE * budget_s // 15.0 == 2


def test_what_runs_really_take_stretches_the_predicted_cost():
    some = pool([trial(micro_batch=b) for b in (1, 2, 4)], cost_s=[5.0, 5.0, 5.0])
    chooser = Chooser(some, profile(), budget_s=1000.0)
    assert chooser.next(profile(), 6.0) is not None
    chooser.saw(0, 10.0)
    assert chooser.next(profile(), 9.0) is None, "each is now expected to take ten seconds"
    assert chooser.next(profile(), 10.0) is not None


def test_once_memory_ran_out_nothing_that_needs_as_much_is_tried_and_the_run_taught_nothing():
    some = pool([trial(micro_batch=b) for b in (1, 2, 4, 8)], needed_bytes=[1.0, 2.0, 3.0, 4.0])
    chooser = Chooser(some, profile(), budget_s=1000.0)
    chooser.saw(2, 5.0, "oom")
    assert chooser.measured == []
    assert sorted(order(chooser)) == [0, 1]
