"""One machine's campaign: calibrate, measure recipes drawn beforehand, verify; everything lands in one folder.

    python -m benchmarks.campaign --models pythia-160m,pythia-410m,pythia-1b --budget 400 --out DIR
    python -m benchmarks.campaign --extra more.jsonl --held-out drawn.jsonl --until 400 --verify pythia-1b --out DIR

``--extra`` recipes count as calibration and go into the journal before the fit; held-out ones never do.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from benchmarks.orders import measure
from calibration.calibrate import calibrate, journal_path, refit
from calibration.question import build_case, load_or_trace
from calibration.verify import verify
from profiles import store
from profiles.records import read_measurements
from simulator.case import Run

BEGUN = time.monotonic()


def tell(text: str, share: float) -> None:
    """Progress on stderr."""
    sys.stderr.write(f"{time.monotonic() - BEGUN:5.0f} s {share:4.0%} {text}\n")


def refitted(machine: str) -> None:
    """Fit the machine's profile again to everything in its journal."""
    profile = store.load_profile(machine)
    records = read_measurements(journal_path(machine))
    if profile is None:
        raise SystemExit(f"no profile of {machine} to refit")
    store.save_profile(refit(profile, records, {name: load_or_trace(name) for name in {r.model for r in records}}))


def verified(model: str, machine: str) -> None:
    """Run the model's top three and print predicted beside measured."""
    for one in verify(build_case(model, machine, Run(), {}), on_progress=tell).verified:
        low, mid, high = one.predicted.step_s_low, one.predicted.step_s, one.predicted.step_s_high
        sys.stderr.write(
            f"{model} {one.recipe} predicted {low:.3f} {mid:.3f} {high:.3f} measured {one.measured.step_s} "
            f"{one.measured.reason} error {one.error}\n"
        )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="")
    parser.add_argument("--machine", default="1xH200")
    parser.add_argument("--budget", type=float, default=0.0, help="seconds to calibrate; 0 skips it")
    parser.add_argument("--extra", type=Path, help="drawn recipes that count as calibration")
    parser.add_argument("--held-out", type=Path)
    parser.add_argument("--until", type=float, default=1e9, help="seconds after which no held-out run starts")
    parser.add_argument("--verify", default="", help="models whose top three to run")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.budget:
        calibrate(options.models.split(","), budget_s=options.budget, on_progress=tell)
    if options.extra:
        measure(options.extra, journal_path(options.machine), budget_s=1e9, measure_s=1.2)
        refitted(options.machine)
    for model in filter(None, options.verify.split(",")):
        verified(model, options.machine)
    for folder in ("measured", "fitted"):
        for path in (store.home() / folder).glob("*"):
            shutil.copy(path, options.out / path.name)
    if options.held_out:
        left_s = options.until - (time.monotonic() - BEGUN)
        measure(options.held_out, options.out / "held_out.jsonl", budget_s=left_s, measure_s=1.2)


if __name__ == "__main__":
    main()
