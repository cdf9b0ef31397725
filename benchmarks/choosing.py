"""Which way of choosing runs pays: every policy replayed on tables of records, scored on the rows that it did not pick.

    python -m benchmarks.choosing TABLE… [--counts 6,10,20,30] [--seeds 10] [--json]

A calibration takes place in one session of one host, so rows of different sessions are never mixed. ``each`` is the
mean over sessions and models of calibrations of one model alone, ``pooled`` over sessions of one calibration of all
models. Policies that draw are repeated with ``--seeds`` seeds; ± is the standard deviation over them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import typer

from calibration.evaluate import starting_profile, workloads_of
from calibration.policies import POLICIES, Table, table_of
from calibration.replay import COUNTS, Score, replay_table
from calibration.rows import usable
from calibration.tables import read_table
from profiles.errors import InvalidInputError, PacelineError
from profiles.schema import Measurement

LEAST_ROWS = 24
"""A session's model, or a session, with fewer rows is not calibrated."""
POOLED = "all models"
Key = tuple[str, str]
"""Session and model."""
FIGURES = ("mape", "median", "p95", "coverage90", "regret", "seconds")


def tables(paths: Sequence[Path]) -> dict[Key, Table]:
    """For each session one table a model that has rows enough, and one of all its rows.

    Raises:
        InvalidInputError: a table that cannot be read, rows of several machines, or no session with rows enough.
    """
    rows = [row for path in paths for row in read_table(path).rows]
    machines = sorted({row.measurement.machine for row in rows})
    if len(machines) != 1:
        found = ", ".join(machines) if machines else "no row that can be used"
        raise InvalidInputError("choosing", [f"needs rows of one machine, found: {found}"])
    profile, workloads = starting_profile(machines[0], "probes"), workloads_of(rows)
    records = [r.measurement for r in rows if r.measurement.status in {"ok", "oom"}]
    groups: dict[Key, list[Measurement]] = defaultdict(list)
    for record in records:
        if usable(record, workloads, profile):
            groups[record.session or "", record.model].append(record)
            groups[record.session or "", POOLED].append(record)
    kept = {key: group for key, group in sorted(groups.items()) if len(group) >= LEAST_ROWS}
    if not kept:
        raise InvalidInputError("choosing", [f"no session has the {LEAST_ROWS} rows that a replay needs"])
    return {key: table_of(group, workloads, profile) for key, group in kept.items()}


def replayed(some: dict[Key, Table], counts: Sequence[int], seeds: int) -> Iterator[tuple[Key, Score]]:
    """Every score of every policy with the key of its table."""
    for key, table in some.items():
        for policy, one in POLICIES.items():
            for seed in range(seeds if one.stochastic else 1):
                yield from ((key, score) for score in replay_table(policy, table, counts, seed))


def summary(scores: Sequence[tuple[Key, Score]], counts: Sequence[int]) -> list[dict[str, Any]]:
    """Per policy, scope and count the means of ``FIGURES``, and the spread of ``mape`` over seeds."""
    lines = []
    for policy in POLICIES:
        for scope in ("each", "pooled"):
            for count in counts:
                found = [
                    (key, score)
                    for key, score in scores
                    if (score.policy, score.count) == (policy, count) and (key[1] == POOLED) == (scope == "pooled")
                ]
                if found:
                    lines.append({"policy": policy, "scope": scope, "count": count, **_line(found)})
    return lines


def _line(found: Sequence[tuple[Key, Score]]) -> dict[str, Any]:
    """Means over seeds and then over tables, so that no table counts for more than another."""
    by_table: dict[Key, list[Score]] = defaultdict(list)
    for key, score in found:
        by_table[key].append(score)
    means = {f: _mean([_mean([getattr(s, f) for s in one]) for one in by_table.values()]) for f in FIGURES}
    spread = _mean([float(np.std([s.mape for s in one])) for one in by_table.values()])
    return {**means, "mape_sd": spread, "tables": len(by_table), "seeds": len({s.seed for _, s in found})}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None


def page(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The summary as a Markdown table."""
    yield "| policy | scope | runs | MAPE | median | p95 | coverage | top-1 | seconds |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|--:|"
    for one in lines:
        spread = f" ± {one['mape_sd']:.1%}" if one["seeds"] > 1 else ""
        top = "" if one["regret"] is None else f"{one['regret']:.1%}"
        yield (
            f"| {one['policy']} | {one['scope']} | {one['count']} | {one['mape']:.1%}{spread} | {one['median']:.1%} "
            f"| {one['p95']:.1%} | {one['coverage90']:.0%} | {top} | {one['seconds']:.0f} |"
        )


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--counts", default=",".join(map(str, COUNTS)), help="runs to calibrate on")
    parser.add_argument("--seeds", type=int, default=10, help="repeats of policies that draw")
    parser.add_argument("--json", action="store_true", help="one object: the summary and every score")
    options = parser.parse_args()
    counts = _counts(parser, options.counts)
    if options.seeds < 1:
        parser.error(f"--seeds {options.seeds} is not allowed; allowed: 1 and more")
    try:
        scores = list(replayed(tables(options.tables), counts, options.seeds))
    except PacelineError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    lines = summary(scores, counts)
    if options.json:
        every = [{"session": key[0], "model": key[1], **asdict(score)} for key, score in scores]
        typer.echo(json.dumps({"summary": lines, "scores": every}, allow_nan=False))
    else:
        typer.echo("\n".join(page(lines)))
    return 0


def _counts(parser: argparse.ArgumentParser, text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        parser.error(f"--counts {text} is not allowed; allowed: whole numbers from 1 on with commas between")
    return sorted({int(part) for part in parts})


if __name__ == "__main__":
    sys.exit(main())
