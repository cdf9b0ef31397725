"""The command reference, written from ``--help`` so that it cannot differ: ``python -m cli.reference FILE``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from cli.app import app
from cli.failures import run

_HEAD = "# Commands\n\nWritten by `make docs` from `--help`; a test keeps it equal.\n"
_TAIL = """
## Exit codes

| code | meaning |
|--:|---|
| 0 | an answer; also a recipe that does not fit, asked about by `predict` |
| 2 | bad input: every problem at once, each with what is allowed |
| 3 | nothing is feasible: the binding constraint and the cheapest way out |
| 4 | a measurement campaign could not run |
| 130 | stopped by Ctrl-C; the same command goes on from there |

With `--json` an error is one object on stdout too: `{"error": {"kind", "subject", "problems"}}`, with `kind` one of
`usage`, `unknown_name`, `invalid_input`, `infeasible`, `campaign`, `stopped`, `error`.
"""


def command_names() -> list[str]:
    """Every command, in the order of ``paceline --help``."""
    return [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]


def reference() -> str:
    """The whole page."""
    pages = [_page([]), *(_page([name]) for name in command_names())]
    return "\n".join([_HEAD, *pages]) + _TAIL


def _page(arguments: list[str]) -> str:
    title = " ".join(["paceline", *arguments])
    return f"## `{title}`\n\n```text\n{_help(arguments)}\n```\n"


def _help(arguments: list[str]) -> str:
    """What ``--help`` prints at 80 columns."""
    import contextlib
    import io

    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            run(app, [*arguments, "--help"])
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before
    return printed.getvalue().strip()


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference(), encoding="utf-8")
