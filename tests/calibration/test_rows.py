"""Records as rows: the calibrated range that a fit carries, sizes of the models among them."""

from dataclasses import replace
from functools import cache

import pytest

from calibration.rows import calibrated_range, ranks_of
from profiles.schema import Measurement, Recipe
from profiles.store import load_workload

DEPTH_AND_WIDTH = {"pythia-160m": (12, 768), "pythia-410m": (24, 1024), "t5-base": (12, 768), "vit-l16": (24, 1024)}
"""By the published architectures."""


@cache
def workloads():
    return {name: load_workload(name) for name in DEPTH_AND_WIDTH}


def record(model, status="ok", **recipe):
    return Measurement(model=model, machine="1xH200", recipe=Recipe(micro_batch=8, **recipe), status=status)


@pytest.mark.parametrize("model", DEPTH_AND_WIDTH)
def test_one_models_range_is_its_own_depth_and_width(model):
    depth, width = DEPTH_AND_WIDTH[model]
    told = calibrated_range([record(model)], workloads())
    assert told["depth"] == (str(depth), str(depth))
    assert told["width"] == (str(width), str(width))


def test_several_models_span_depth_and_width_and_only_those_that_ran():
    ran = [record("pythia-410m"), record("t5-base")]
    told = calibrated_range([*ran, record("pythia-160m", "oom")], workloads())
    assert (told["depth"], told["width"]) == (("12", "24"), ("768", "1024"))
    told = calibrated_range([record("pythia-410m"), record("pythia-160m", "oom")], workloads())
    assert (told["depth"], told["width"]) == (("24", "24"), ("1024", "1024"))


def test_a_range_orders_numbers_as_numbers():
    """As text, 128 would come before 64 and 9 after 12."""
    sized = [record("pythia-160m", seq=s) for s in (64, 1024, 128)]
    sized += [
        replace(one, recipe=replace(one.recipe, micro_batch=b)) for one, b in zip(sized, (9, 100, 12), strict=True)
    ]
    shallow = replace(workloads()["pythia-160m"], stacks=(), layers=9)
    told = calibrated_range([*sized, record("thin", seq=64)], {**workloads(), "thin": shallow})
    assert told["seq"] == ("64", "1024")
    assert told["micro_batch"] == ("8", "100")
    assert told["depth"] == ("9", "12")


def test_a_width_that_no_config_tells_is_left_out():
    bare = replace(workloads()["pythia-160m"], config={})
    told = calibrated_range([record("bare")], {"bare": bare})
    assert "width" not in told
    assert told["depth"] == ("12", "12")


def test_without_runs_there_are_no_sizes():
    told = calibrated_range([record("pythia-160m", "oom")], workloads())
    assert not {"micro_batch", "seq", "depth", "width"} & set(told)


@pytest.mark.parametrize(("machine", "ranks"), [("1xH200", 1), ("2x8xA100", 16), ("8xH100", 8), ("laptop", 1)])
def test_ranks_are_nodes_by_gpus(machine, ranks):
    assert ranks_of(machine) == ranks
