"""The traces that ship are of the presets that ship, as the present code traces them."""

from importlib.metadata import version

import pytest

from calibration.trace import config_hash, trace
from profiles.store import load_preset, load_workload, preset_names


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_ships_with_its_trace(name: str) -> None:
    preset, workload = load_preset(name), load_workload(name)
    assert workload is not None, "run `make traces`"
    assert workload.config_hash == config_hash(preset)
    assert workload.params == preset.params
    assert workload.variants


@pytest.mark.parametrize("name", ["pythia-14m", "vit-b16"])
def test_a_shipped_trace_is_what_tracing_gives_now(name: str) -> None:
    shipped = load_workload(name)
    assert shipped is not None
    if shipped.transformers_version != version("transformers"):
        pytest.skip(f"traced with transformers {shipped.transformers_version}")
    fresh = trace(load_preset(name))
    assert fresh.variants == shipped.variants
