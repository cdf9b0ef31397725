"""The shipped profile of the H200, fitted again to the records that it is made of.

    python -m benchmarks.refit

Whatever changes the model's form or a trace changes the fit: run it then, and `make accuracy` after it.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from calibration.calibrate import now, refit
from calibration.question import load_or_trace
from profiles.files import SHIPPED, to_json, write_whole
from profiles.records import read_measurements
from profiles.schema import Profile
from profiles.store import read_profile

MACHINE = "1xH200"
PATH = SHIPPED / "fitted" / f"{MACHINE}.json"
FILES = ("calibration", "host_check", "verified", "truth", "truth_repeats")
FIRST_RUNS, FIRST_S = 63, 330.0
"""The first records of ``calibration`` are those of one calibration, which took so long with its probes and choices."""


def refitted(profile: Profile) -> Profile:
    """The profile with the fit to its records and the seconds that they took; the date stays."""
    files = tuple(f"{MACHINE}/{name}.jsonl" for name in FILES)
    records = [record for name in files for record in read_measurements(SHIPPED / "measured" / name)]
    workloads = {name: load_or_trace(name) for name in {record.model for record in records}}
    later_s = sum(record.trial_s or 0.0 for record in records[FIRST_RUNS:])
    return replace(
        refit(profile, records, workloads),
        measurement_files=files,
        calibration_s=FIRST_S + later_s,
    )


def main() -> None:
    """Write the profile."""
    profile = replace(refitted(read_profile(PATH)), created_at=now())
    write_whole(PATH, to_json(profile, indent=1) + b"\n")
    sys.stderr.write(f"{MACHINE}: {profile.fit.measurements} runs, {profile.calibration_s:.0f} s\n")


if __name__ == "__main__":
    main()
