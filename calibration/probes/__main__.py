"""``python -m calibration.probes --device cuda --budget 60 --out FILE.json``: the probes in a process of their own."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from calibration.probes import PROBES, run_probes, write_report
from calibration.probes.report import report_json
from profiles.errors import PacelineError


def main(arguments: list[str] | None = None) -> int:
    """Runs the probes; one JSON object goes to the file or to stdout, progress to stderr. Returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        report = run_probes(options.device, options.budget, on_progress=_progress, names=options.names)
    except PacelineError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    if options.out is None:
        sys.stdout.write(report_json(report) + "\n")
    else:
        write_report(report, options.out)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m calibration.probes", description="Measure a device's rates.")
    parser.add_argument("--device", default="cpu", help="torch device: cpu, cuda or cuda:<index>")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for all probes together")
    parser.add_argument("--out", type=Path, help="write the JSON here instead of to stdout")
    parser.add_argument("--names", nargs="+", help=f"only these: {', '.join(probe.name for probe in PROBES)}")
    return parser


def _progress(name: str, index: int, count: int) -> None:
    sys.stderr.write(f"probe {index + 1}/{count}: {name}\n")


if __name__ == "__main__":
    sys.exit(main())
