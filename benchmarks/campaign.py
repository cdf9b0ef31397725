"""One machine's campaign: calibrate, measure the held-out recipes, verify; everything lands in one folder.

python -m benchmarks.campaign --models pythia-160m,pythia-410m,pythia-1b --budget 400 --held-out drawn.jsonl --until 590 --out DIR
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

from benchmarks.held_out import measure
from calibration.calibrate import calibrate


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", required=True)
    parser.add_argument("--budget", type=float, required=True, help="seconds to calibrate; 0 skips it")
    parser.add_argument("--held-out", type=Path)
    parser.add_argument("--until", type=float, default=1e9, help="seconds after which no held-out run starts")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    begun = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("PACELINE_HOME", str(options.out / "home"))

    def tell(text: str, share: float) -> None:
        sys.stderr.write(f"{time.monotonic() - begun:5.0f} s {share:4.0%} {text}\n")

    if options.budget:
        done = calibrate(options.models.split(","), budget_s=options.budget, on_progress=tell)
        shutil.copy(done.profile_path, options.out / "profile.json")
        home = Path(os.environ["PACELINE_HOME"])
        for journal in (home / "measured").glob("*.jsonl"):
            shutil.copy(journal, options.out / f"calibration--{journal.name}")
    if options.held_out:
        left = options.until - (time.monotonic() - begun)
        measure(options.held_out, options.out / "held_out.jsonl", left, 1.2)


if __name__ == "__main__":
    main()
