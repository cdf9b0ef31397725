"""All that touches torch, transformers, scikit-learn or hardware: tracing, probes, real runs, the fit, scores."""

from __future__ import annotations

from calibration.calibrate import Calibration, calibrate
from calibration.evaluate import evaluate
from calibration.importing import Imported, import_table
from calibration.verify import Verification, Verified, verify

__all__ = ["Calibration", "Imported", "Verification", "Verified", "calibrate", "evaluate", "import_table", "verify"]
