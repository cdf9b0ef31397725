"""Measuring on this machine: starts the worker process, hands it trials, and outlives whatever happens to it."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from calibration.trial import Trial, decode_measurement, encode_group, failed
from profiles.errors import CampaignError
from profiles.schema import Measurement

START_TIMEOUT_S = 180.0
GRACE_S = 20.0
"""The worker ends a trial at its timeout; this much later the worker itself is given up."""
CLOSE_S = 3.0
TAIL_BYTES = 2000

_SETTINGS = {
    "PYTHONSAFEPATH": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}
"""Set for every worker. ``PYTORCH_NVML_BASED_CUDA_CHECK`` and ``OPENBLAS_NUM_THREADS`` keep the process that forks free
of a GPU context and of threads. Threads that wait must not spin: on a busy CPU that alone tripled step times.
"""
_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
ALLOCATOR = "expandable_segments:True"


def worker_environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a worker process: ``base`` (default: this process's) with what measuring needs.

    The packages are found where they are now, whatever lies in the working folder. An allocator setting of the
    user's own is kept; otherwise segments are expandable.
    """
    environment = {**(os.environ if base is None else base), **_SETTINGS}
    if not any(environment.get(variable) for variable in _ALLOCATOR_VARIABLES):
        environment[_ALLOCATOR_VARIABLES[0]] = ALLOCATOR
    root = str(Path(__file__).resolve().parent.parent)
    found = environment.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = os.pathsep.join(part for part in (root, found) if part)
    return environment


class WorkerDiedError(Exception):
    """The worker process ended while a trial was with it."""


class LocalMeasurer:
    """Measures trials on this machine; use it as a context manager, or call ``close``.

    The worker starts with the first trial and again after it died; a trial that was with it then becomes a record.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._buffer = b""
        self.starts = 0

    def __enter__(self) -> LocalMeasurer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def worker_pid(self) -> int | None:
        """Process id of the worker, ``None`` while there is none."""
        return self._process.pid if self._process else None

    def measure(self, trial: Trial) -> Measurement:
        """The record of one trial, in a process of its own. CampaignError if no worker can be started at all."""
        return next(self.measure_group([trial]))

    def measure_group(self, trials: Sequence[Trial]) -> Iterator[Measurement]:
        """The records of trials that share a trainee (see ``trial.grouped``), each as soon as it is known.

        They share one process up to a trial that does not run; the rest then go on in a new one. The worker's own
        death ends the group: the trial that was with it gets a record, those after it none.
        """
        process = self._running()
        trial, start_s = trials[0], time.monotonic()
        try:
            self._send(process, encode_group(trials))
            for trial in trials:
                start_s = time.monotonic()
                line = self._receive(process, trial.timeout_s + GRACE_S)
                if line is None:
                    self.close(at_once=True)
                    reason = f"not done after {trial.timeout_s:g} s, and the worker did not answer"
                    yield failed(trial, "timeout", reason, trial_s=time.monotonic() - start_s)
                    return
                yield decode_measurement(line)
        except WorkerDiedError as death:
            self.close()
            yield failed(trial, "crash", str(death), trial_s=time.monotonic() - start_s)

    def close(self, *, at_once: bool = False) -> None:
        """End the worker and whatever it is measuring, within seconds. Measuring again starts a new one."""
        process, self._process, self._buffer = self._process, None, b""
        if process is not None:
            _end(process, at_once)
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        if not hasattr(os, "fork"):
            raise CampaignError(f"measuring needs a platform with fork, such as Linux; {sys.platform} has none")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", "calibration.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=worker_environment(),
            start_new_session=True,
        )
        self.starts += 1
        self._await_ready(process)
        return process

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        try:
            line = self._receive(process, START_TIMEOUT_S)
        except WorkerDiedError as death:
            reason = str(death)
        else:
            if line is not None:
                return
            reason = f"not ready after {START_TIMEOUT_S:g} s"
        self.close(at_once=True)
        raise CampaignError(f"the measuring worker does not start: {reason}")

    def _send(self, process: subprocess.Popen[bytes], line: str) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
        except OSError as error:
            raise WorkerDiedError(self._epitaph(process)) from error

    def _receive(self, process: subprocess.Popen[bytes], timeout_s: float) -> bytes | None:
        """The worker's next line; ``None`` if it does not come in time."""
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        deadline_s = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            if not select.select([descriptor], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
                return None
            data = os.read(descriptor, 65536)
            if not data:
                raise WorkerDiedError(self._epitaph(process))
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _epitaph(self, process: subprocess.Popen[bytes]) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(CLOSE_S)
        return f"the measuring worker ended (exit code {process.poll()}){self._last_words()}"

    def _last_words(self) -> str:
        if self._errors is None:
            return ""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - TAIL_BYTES))
        text = " ".join(self._errors.read().decode("utf-8", errors="replace").split())
        return f": {text}" if text else ""


def _end(process: subprocess.Popen[bytes], at_once: bool) -> None:
    """Close the worker's input, which ends it and its child; kill it if it does not obey."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    if not at_once:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(CLOSE_S)
    if process.poll() is None:
        process.kill()
        process.wait()
    process.stdout.close()
