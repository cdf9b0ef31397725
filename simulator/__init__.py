"""Pure functions from a traced workload, a machine's profile and recipes to predictions. numpy only."""

from __future__ import annotations

from simulator.case import Case, Run
from simulator.planning import plan, predict
from simulator.results import Plan, Prediction

__all__ = ["Case", "Plan", "Prediction", "Run", "plan", "predict"]
