"""The measuring process: imports torch once, then forks one disposable child per group of trials.

``python -m calibration.worker`` reads a list of trials per line on its standard input and writes one measurement per
line on its standard output, after a first line that says it is ready. Trials of a list share a child; after one that
does not run, the rest get a new one. It never touches the GPU and computes nothing, so every
child starts from a clean state without paying for imports. It ends a child that takes too long, turns a child's death
into a record, and goes away with its last child when its input ends.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from calibration.trial import Trial, decode_group, encode, failed
from profiles.schema import Measurement

READY = '{"ready": true}'
POLL_S = 0.05
TAIL_CHARACTERS = 300
_IMPORTED_ONCE = (
    "torch",
    "torch._dynamo",
    "transformers",
    "transformers.masking_utils",
    "transformers.modeling_layers",
    "calibration.child",
    "calibration.models",
    "calibration.trace",
)


class InputEndedError(Exception):
    """Whoever gave the orders is gone."""


class Lines:
    """Lines from a file descriptor, with a way to notice its end between them."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._buffer = b""

    def holds_line(self) -> bool:
        """Whether a whole line has arrived."""
        return b"\n" in self._buffer

    def next_line(self) -> bytes:
        """The next whole line, waiting for it; InputEndedError when there is none left."""
        while not self.holds_line():
            self.read_more()
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def read_more(self) -> None:
        """Take in what has arrived, waiting for it; InputEndedError at the end."""
        data = os.read(self.descriptor, 65536)
        if not data:
            raise InputEndedError
        self._buffer += data


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A running process: it leads a process group; where its answers arrive, and what it prints."""

    pid: int
    answers: Lines
    output: IO[bytes]


def main() -> None:
    """Serve trials until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    orders = Lines(0)
    for module in _IMPORTED_ONCE:
        importlib.import_module(module)
    print(READY, file=answers, flush=True)
    with contextlib.suppress(InputEndedError):
        while True:
            for record in serve(decode_group(orders.next_line()), orders):
                print(record, file=answers, flush=True)


def serve(trials: Sequence[Trial], orders: Lines) -> Iterator[str]:
    """The records of trials as lines of JSON; InputEndedError, with the child ended, when nobody waits for them."""
    done = 0
    while done < len(trials):
        for record in _serve_with_one_child(trials[done:], orders):
            done += 1
            yield record


def _serve_with_one_child(trials: Sequence[Trial], orders: Lines) -> Iterator[str]:
    """The records of the first trials, at least of one: up to the first that does not run."""
    start_s = time.monotonic()
    _import_model(trials[0].model)
    _check_untouched()
    child = _fork(trials)
    answered, timed_out = 0, False
    try:
        for trial in trials:
            answer, timed_out = _listen(child, start_s + trial.timeout_s, orders)
            if not answer:
                break
            answered += 1
            yield answer.decode("utf-8")
            start_s = time.monotonic()
    finally:
        exit_status = _end(child)
    with child.output:
        if answered < len(trials) and (not answered or timed_out or exit_status):
            trial, took_s = trials[answered], time.monotonic() - start_s
            yield encode(_obituary(trial, exit_status, timed_out, _tail(child.output), took_s))


def _listen(child: Child, deadline_s: float, orders: Lines) -> tuple[bytes, bool]:
    """The child's next answer, empty if it ended without one, and whether it had to be given up."""
    watched = [child.answers.descriptor, orders.descriptor]
    while not child.answers.holds_line():
        readable = select.select(watched, [], [], POLL_S)[0]
        if child.answers.descriptor in readable:
            with contextlib.suppress(InputEndedError):
                child.answers.read_more()
                continue
            return b"", False
        if _is_dead(child.pid) and not select.select(watched[:1], [], [], 0.0)[0]:
            return b"", False
        if orders.descriptor in readable:
            orders.read_more()
        if time.monotonic() > deadline_s:
            return b"", True
    return child.answers.next_line(), False


def _fork(trials: Sequence[Trial]) -> Child:
    read_end, write_end = os.pipe()
    output = tempfile.TemporaryFile()  # noqa: SIM115
    gc.collect()
    gc.freeze()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _live(trials, parent, write_end, output.fileno())
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    os.close(write_end)
    return Child(pid=pid, answers=Lines(read_end), output=output)


def _live(trials: Sequence[Trial], parent: int, write_end: int, output: int) -> None:
    """The child's whole life; never returns."""
    code = 1
    try:
        _settle_in(parent, output)
        from calibration.child import run_trials

        for record in run_trials(trials):
            _write_all(write_end, f"{encode(record)}\n".encode())
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _settle_in(parent: int, output: int) -> None:
    """A group of its own, no input, its prints kept aside, and no life beyond its parent's."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    _die_with_parent()
    if os.getppid() != parent:
        os._exit(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)


def _die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies; elsewhere the parent alone sees to it."""
    if sys.platform != "linux":
        return
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _end(child: Child) -> int:
    """Kill what is left of the child's group and return the child's exit status as ``waitpid`` gives it."""
    _settled(child.pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    os.close(child.answers.descriptor)
    return os.waitpid(child.pid, 0)[1]


def _settled(pid: int) -> None:
    """Give a child that has closed its answer a moment to end by itself, so that its own exit status is kept."""
    for _ in range(10):
        if _is_dead(pid):
            return
        time.sleep(0.01)


def _is_dead(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _obituary(trial: Trial, exit_status: int, timed_out: bool, tail: str, trial_s: float) -> Measurement:
    """The record of a child that gave no answer."""
    printed = f"; it printed: {tail}" if tail else ""
    if timed_out:
        return failed(trial, "timeout", f"not done after {trial.timeout_s:g} s{printed}", trial_s=trial_s)
    code = os.waitstatus_to_exitcode(exit_status)
    if code >= 0:
        return failed(trial, "crash", f"ended with exit code {code} and no answer{printed}", trial_s=trial_s)
    name = signal.Signals(-code).name
    likely = ", host out of memory likely" if name == "SIGKILL" else ""
    return failed(trial, "crash", f"killed by {name}{likely}{printed}", trial_s=trial_s)


def _tail(output: IO[bytes]) -> str:
    """The end of what a child printed, on one line."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - 4 * TAIL_CHARACTERS))
    return " ".join(output.read().decode("utf-8", errors="replace").split())[-TAIL_CHARACTERS:]


def _import_model(name: str) -> None:
    """Import the model's own code before forking. What goes wrong here goes wrong in the child, which reports it."""
    from calibration.models import build_config, model_class, resolve

    with contextlib.suppress(Exception):
        preset = resolve(name)
        mapping: Any = model_class(preset)._model_mapping
        mapping[type(build_config(preset))]


def _check_untouched() -> None:
    """Forking is only clean while this process has no GPU context and no threads that hold locks."""
    import torch

    cuda: Any = torch.cuda
    if cuda.is_initialized():
        raise RuntimeError("importing the model initialised CUDA in the process that forks")


if __name__ == "__main__":
    main()
