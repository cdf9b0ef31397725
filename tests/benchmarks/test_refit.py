"""The shipped profile is the fit to the shipped records: it cannot fall behind the model's form."""

import pytest

from benchmarks.refit import PATH, refitted
from profiles.store import read_profile


def test_the_shipped_profile_is_the_fit_to_the_records_it_names():
    shipped = read_profile(PATH)
    again = refitted(shipped)
    assert again.measurement_files == shipped.measurement_files
    assert again.calibration_s == pytest.approx(shipped.calibration_s)
    new, old = again.fit, shipped.fit
    assert [c.component for c in new.corrections] == [c.component for c in old.corrections]
    factors = ([c.log_factor for c in fit.corrections] for fit in (new, old))
    assert next(factors) == pytest.approx(next(factors), abs=1e-4)
    spreads = ("noise_sd_log", "host_sd_log", "interval_scale")
    for name in (*spreads, "memory_factor", "reserved_factor", "full_reserved_factor"):
        assert getattr(new, name) == pytest.approx(getattr(old, name), rel=1e-3), name
    for name in ("models", "measurements", "calibrated"):
        assert getattr(new, name) == getattr(old, name), name
