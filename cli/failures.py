"""Every way a command can end: exit codes, one message on standard error, and the same as JSON where asked for.

0 an answer, 2 bad input or an answer that cannot be written, 3 nothing feasible, 4 a campaign that could not run,
130 stopped by Ctrl-C, 141 when whoever reads the answer has gone away. A bug of ours is none of these: it keeps its
traceback.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Sequence

import typer

from profiles.errors import InvalidInputError, PacelineError

STOPPED = 130
READER_GONE = 141
"""What a shell shows for a program that a closed pipe ended: 128 + SIGPIPE."""
KINDS = {
    "UnknownNameError": "unknown_name",
    "UnknownModelError": "unknown_name",
    "InvalidInputError": "invalid_input",
    "InfeasibleError": "infeasible",
    "CampaignError": "campaign",
}
RESUME = "stopped; what was measured is kept, and the same command goes on from there"


def run(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run one command line; the exit code, once everything is really written."""
    try:
        code = _run(app, arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except SystemExit:  # how the printing libraries leave when a pipe is closed
        return _unwritten("", READER_GONE)
    except UnicodeEncodeError as error:
        return _unwritten(f"the answer has characters that {error.encoding} cannot hold; set PYTHONIOENCODING=utf-8", 2)
    except OSError as error:
        if error.errno == errno.EPIPE:
            return _unwritten("", READER_GONE)
        what = f"{error.filename}" if error.filename else "the answer cannot be written"
        return _unwritten(f"{what}: {error.strerror or error}", 2)
    return code


def _unwritten(message: str, code: int) -> int:
    """Say so on standard error if that still works, and keep the interpreter from writing the rest at its end."""
    with contextlib.suppress(OSError):
        if message:
            typer.echo(message, err=True)
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    return code


def _run(app: typer.Typer, arguments: Sequence[str]) -> int:
    as_json = "--json" in arguments
    try:
        code = app(args=list(arguments), prog_name="paceline", standalone_mode=False)
    except PacelineError as error:
        return _tell(as_json, _kind(error), *_parts(error), message=str(error), code=error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        code = STOPPED
    except Exception as error:  # a mistake in the options themselves, whichever class this typer has for it
        if not hasattr(error, "format_message"):  # a bug, or output that cannot be written
            raise
        message = error.format_message()
        return _tell(as_json, "usage", "command line", (message,), message=_usage(error, message), code=2)
    if code == STOPPED:
        return _tell(as_json, "stopped", "command", (RESUME,), message=RESUME, code=STOPPED)
    return code if isinstance(code, int) else 0


def _tell(as_json: bool, kind: str, subject: str, problems: Sequence[str], *, message: str, code: int) -> int:
    typer.echo(message, err=True)
    if as_json:
        from cli.contract import show

        show({"error": {"kind": kind, "subject": subject, "problems": list(problems)}})
    return code


def _kind(error: PacelineError) -> str:
    return next((KINDS[base.__name__] for base in type(error).__mro__ if base.__name__ in KINDS), "error")


def _parts(error: PacelineError) -> tuple[str, Sequence[str]]:
    if isinstance(error, InvalidInputError):
        return error.subject, error.problems
    first, *rest = str(error).splitlines() or [""]
    return first, rest or [first]


def _usage(error: Exception, message: str) -> str:
    """The message with the usage line of its command, if it knows it."""
    context = getattr(error, "ctx", None)
    usage = f"{context.get_usage()}\n" if context is not None else ""
    return f"{usage}{message}"
