"""What this platform must have: without fork, measuring is refused in words instead of failing somewhere inside."""

import os

import pytest

from calibration.local import LocalMeasurer
from calibration.trial import Trial
from profiles.errors import CampaignError
from profiles.schema import Recipe


def test_without_fork_no_worker_is_started(monkeypatch):
    monkeypatch.delattr(os, "fork")
    with LocalMeasurer() as measurer:
        with pytest.raises(CampaignError, match="measuring needs a platform with fork"):
            measurer.measure(Trial(model="pythia-14m", machine="cpu", recipe=Recipe()))
        assert (measurer.starts, measurer.worker_pid) == (0, None)
