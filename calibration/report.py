"""``python -m calibration.report docs/accuracy.md``: the accuracy page, from the records that ship with the project."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from calibration.evaluate import evaluate
from profiles.files import SHIPPED, write_whole
from profiles.records import read_measurements
from profiles.schema import Measurement

FOLDER = SHIPPED / "measured" / "1xH200"
FITTED = ("calibration.jsonl", "host_check.jsonl")
SCORED = {
    "held_out.jsonl": "held out",
    "development.jsonl": "development",
    "verified.jsonl": "verified top three",
}
Scores = Mapping[str, Any]


def page() -> str:
    """The page in Markdown."""
    fitted = [FOLDER / name for name in FITTED]
    scores = {name: evaluate(FOLDER / name, calibrate_on=fitted, prior="probes", baselines=True) for name in SCORED}
    unfitted = evaluate(FOLDER / "held_out.jsonl", prior="probes")
    datasheet = evaluate(FOLDER / "held_out.jsonl", prior="datasheet")
    calibration = [record for path in fitted for record in read_measurements(path)]
    other_host = evaluate(FOLDER / "held_out.jsonl", calibrate_on=fitted[:1], prior="probes")
    before = {
        "data sheet alone, held out": datasheet,
        "probes alone, held out": unfitted,
        "held out, its host not calibrated": other_host,
    }
    lines = [_HEAD, *_calibration(calibration), *_time(scores, before), *_memory(scores)]
    lines += [*_models(scores["held_out.jsonl"]), *_baselines(scores["held_out.jsonl"]), _LIMITS]
    return "\n".join(lines)


_HEAD = """# Accuracy

Made by `make accuracy` from the records in `profiles/measured/1xH200/` (its README says how each file came about). The fit sees
`calibration.jsonl` and `host_check.jsonl` alone. `held_out.jsonl` was drawn at random and committed before it was measured. Its
errors were looked at afterwards: they showed that its host was a faster one, so the fit got a factor per session, the first twelve
records of the draw became `host_check.jsonl`, and the data-sheet prior of dispatch moved. `development.jsonl` was drawn the same
way and never fitted either, but its errors guided the model's form throughout, so it counts for less. The same figures from the command line:

    paceline evaluate profiles/measured/1xH200/held_out.jsonl --prior probes \\
        --calibrate-on profiles/measured/1xH200/calibration.jsonl --calibrate-on profiles/measured/1xH200/host_check.jsonl

Errors are (predicted − measured) / measured. Pythia-160M, 410M and 1B on one H200; every precision, both attentions,
checkpointing, six optimizers, micro-batches 1 to 160, lengths 512 to 2048, accumulation 1, 2 and 8.
"""


def _calibration(records: Sequence[Measurement]) -> list[str]:
    ran = sum(r.status == "ok" for r in records)
    spent = sum(r.trial_s or 0.0 for r in records)
    compiled = sum(r.recipe.compile == "on" for r in records)
    return [
        "## What calibration used",
        "",
        f"{len(records)} real runs ({ran} ran, {compiled} compiled), {spent:.0f} s of runs; with the probes, start-up and the choice of",
        "runs 330 s for the first 63, then three compiled runs and twelve runs on the second host.",
        "",
    ]


def _time(scores: Mapping[str, Scores], before: Mapping[str, Scores]) -> list[str]:
    rows = [(title, one["step_time"]) for title, one in before.items()]
    for name, title in SCORED.items():
        rows.append((title, scores[name]["step_time"]))
        parts = {part: scores[name][f"step_time_{part.replace('-', '_')}"] for part in ("gpu-bound", "host-bound")}
        rows += [(f"— {part} rows", score) for part, score in parts.items() if score]
    head = [
        "## Step time",
        "",
        "| rows | n | MAPE | median | p95 | bias | inside 90 % interval | interval × / ÷ | noise |",
    ]
    return [*head, "|---|--:|--:|--:|--:|--:|--:|--:|--:|", *(_time_row(title, s) for title, s in rows), ""]


def _time_row(title: str, s: Scores) -> str:
    return (
        f"| {title} | {s['n']} | {s['mape']:.1%} | {s['median']:.1%} | {s['p95']:.1%} | {s['bias']:+.1%} | "
        f"{s['coverage90']:.0%} | {s['interval_factor']:.2f} | {s['noise']:.1%} |"
    )


def _memory(scores: Mapping[str, Scores]) -> list[str]:
    lines = [
        "## Memory",
        "",
        "Peak allocated bytes, and the verdict, which uses the upper value.",
        "",
        "| rows | n | median | p95 | max | out of memory | found | false “fits” | false alarms | away from the limit |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, title in SCORED.items():
        memory, oom = scores[name]["memory"], scores[name]["oom"]
        if memory:
            lines.append(
                f"| {title} | {memory['n']} | {memory['median']:.3%} | {memory['p95']:.2%} | {memory['max']:.1%} | "
                f"{oom['n_oom']} | {_share(oom['recall'])} | {oom['false_fits']} | {_share(oom['false_alarm'])} | "
                f"{_share(oom['false_alarm_away_from_limit'])} |"
            )
    return [*lines, ""]


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _models(held_out: Scores) -> list[str]:
    left_out: Mapping[str, Scores] = held_out["leave_one_model_out"]
    lines = [
        "## A model that was never measured here",
        "",
        "The fit sees the other two models' records only; scored on the held-out rows of the third.",
        "",
        "| model left out | n | MAPE | median | inside 90 % interval |",
        "|---|--:|--:|--:|--:|",
    ]
    rows = [
        f"| {m} | {s['n']} | {s['mape']:.1%} | {s['median']:.1%} | {s['coverage90']:.0%} |" for m, s in left_out.items()
    ]
    return [*lines, *rows, ""]


def _baselines(held_out: Scores) -> list[str]:
    lines = [
        "## Beside what people do without a model",
        "",
        "Fitted on the same records, scored on the same held-out rows.",
        "",
        "| | MAPE | median |",
        "|---|--:|--:|",
        f"| **Paceline** | {held_out['step_time']['mape']:.1%} | {held_out['step_time']['median']:.1%} |",
    ]
    named: Mapping[str, Scores] = held_out["baselines"]
    return [*lines, *(f"| {n.replace('_', ' ')} | {s['mape']:.1%} | {s['median']:.1%} |" for n, s in named.items()), ""]


_LIMITS = """## What these figures do not say

- Steps that the host decides scatter between processes and between hosts; the noise column counts only the scatter inside one
  process. The twelve runs of `host_check.jsonl` calibrate the host that the held-out rows ran on; the row "its host not
  calibrated" is what a profile from another host of the same GPU gives.
- No compiled run is among the held-out rows. The verified top three are compiled; the table shows how far off they were before
  their own measurements went into the shipped profile.
- One GPU type, one model family. Other GPUs answer from their data sheets, with wide intervals and the word `datasheet`.
"""


def main() -> None:
    """Write the page to the path on the command line."""
    write_whole(Path(sys.argv[1]), page().encode())


if __name__ == "__main__":
    main()
