"""Measurements as append-only JSON lines: one line a run, written whole, read in spite of damage.

A record leaves out what has its default, so a knob added later keeps every old record valid and its identity the same.
For that, the default of a knob of ``Recipe`` must never change.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from profiles.consistency import measurement_problems
from profiles.errors import InvalidInputError, PacelineError
from profiles.files import parse_json, read_bytes, to_json, to_plain
from profiles.schema import Measurement, Recipe


def measurement_identity(measurement: Measurement) -> str:
    """What makes a measurement the same run as another: see ``identity``."""
    return identity(measurement.model, measurement.config_hash, measurement.machine, measurement.recipe)


def identity(model: str, config_hash: str | None, machine: str, recipe: Recipe) -> str:
    """A stable name, 16 hexadecimal digits, of one recipe of one model on one machine.

    The model counts by its ``config_hash`` if it has one, else by name; the recipe by the knobs that differ from their
    defaults.
    """
    named = {"model": config_hash or model, "machine": machine, "recipe": to_plain(recipe)}
    text = json.dumps(named, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def append_measurement(path: Path, measurement: Measurement) -> None:
    """Add one record at the end of a file, on a line of its own, whole or not at all.

    Several processes may append at once. A line that an earlier process left unfinished stays, for the reader to
    report; the new record starts on a fresh one.

    Raises:
        PacelineError: the disk is full or read-only, or the file may not be written.
    """
    line = to_json(measurement) + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            with _locked(descriptor):
                _append(descriptor, line)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise PacelineError(f"cannot append to {path}: {error.strerror or error}; nothing was added") from error


def read_measurements(path: Path) -> tuple[Measurement, ...]:
    """The readable records of a file, in order; ``read_measurements_and_problems`` also says what was skipped.

    Raises:
        InvalidInputError: the file itself is missing or cannot be read.
    """
    return read_measurements_and_problems(path)[0]


def read_measurements_and_problems(path: Path) -> tuple[tuple[Measurement, ...], tuple[str, ...]]:
    """The readable records of a file, and one line for each that was skipped: its number and why.

    Raises:
        InvalidInputError: the file itself is missing or cannot be read.
    """
    lines = read_bytes(path).split(b"\n")
    found: list[Measurement] = []
    problems: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found.append(_read_line(line, f"{path}, line {number}"))
        except InvalidInputError as error:
            cut = "cut off, its writer was stopped; " if number == len(lines) else ""
            problems.append(f"{error.subject}: skipped, {cut}{'; '.join(error.problems)}")
    return tuple(found), tuple(problems)


def _read_line(line: bytes, subject: str) -> Measurement:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInputError(subject, [f"not UTF-8 text: {error.reason} at byte {error.start}"]) from error
    measurement = parse_json(Measurement, text, subject)
    problems = measurement_problems(measurement)
    if problems:
        raise InvalidInputError(subject, problems)
    return measurement


def _append(descriptor: int, line: bytes) -> None:
    size = os.lseek(descriptor, 0, os.SEEK_END)
    if size and _last_byte(descriptor, size) != b"\n":
        line = b"\n" + line
    try:
        if os.write(descriptor, line) != len(line):
            raise OSError("no space left on the device")
        os.fsync(descriptor)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, size)
        raise


def _last_byte(descriptor: int, size: int) -> bytes:
    os.lseek(descriptor, size - 1, os.SEEK_SET)
    return os.read(descriptor, 1)


@contextlib.contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    """Hold the file's lock where the platform has one; it goes with the descriptor."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
