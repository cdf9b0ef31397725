"""Trials in a process of their own, from the order to the record; every failure becomes a record with a reason.

A process runs one trial, or several that differ only in sizes and checkpointing: those share the model. It ends with
the first trial that does not run, so no trial follows one that ran out of memory.
"""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from calibration import graphs, memory, telemetry
from calibration.measuring import Peaks, join_notes, measured_accumulations, time_trainee, to_measurement
from calibration.support import RefusedError
from calibration.training import Trainee, build, retarget
from calibration.trial import Trial, failed
from profiles.errors import PacelineError
from profiles.schema import Device, Measurement, Preset, Status

OUT_OF_MEMORY_TEXTS = (
    "can't allocate memory",
    "out of memory",
    "std::bad_alloc",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "Cannot allocate memory",
)
"""What allocators say that have no exception of their own."""
MAX_TEXT = 400
"""Longest error text kept, in characters."""
SUSPECT_OUTSIDE_BYTES = 3 * 2**30
"""More than this outside torch's allocator is no context: somebody else is on the GPU."""


@dataclass(slots=True)
class _Known:
    """What a trial has found out so far; kept with the record when the trial fails later on."""

    config_hash: str | None
    device: Device | None = None


def run_trials(trials: Sequence[Trial]) -> Iterator[Measurement]:
    """The records of trials that share a trainee, one by one, run here and now, up to the first that does not run.

    This process is good for nothing else afterwards.
    """
    bench = _Bench()
    for trial in trials:
        record = _recorded(trial, bench)
        yield record
        if record.status != "ok":
            return


@dataclass(slots=True)
class _Bench:
    """The trainee that the trials of a process share, once the first of them has built it."""

    trainee: Trainee | None = None

    def ready(self, trial: Trial, preset: Preset) -> Trainee:
        """The trainee for a trial, with the memory of the last one given back."""
        if self.trainee is None:
            self.trainee = build(preset, trial.recipe, trial.device)
        else:
            retarget(self.trainee, preset, trial.recipe)
            memory.give_back()
        return self.trainee


def _recorded(trial: Trial, bench: _Bench) -> Measurement:
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    start_s = time.monotonic()
    known = _Known(config_hash=trial.config_hash)
    try:
        measurement = _measure(trial, known, bench)
    except (RefusedError, PacelineError) as refusal:
        measurement = failed(trial, "refused", str(refusal))
    except Exception as error:
        with contextlib.suppress(OSError, ValueError):
            memory.lift_limit(trial.device)
        measurement = failed(trial, *describe_failure(error), note=_memory_note(trial.device))
    return replace(
        measurement,
        config_hash=known.config_hash,
        device=known.device,
        trial_s=time.monotonic() - start_s,
        started_at=started_at,
        session=telemetry.boot_id(),
        software=telemetry.software(trial.device),
    )


def describe_failure(error: BaseException) -> tuple[Status, str]:
    """``oom`` or ``crash``, and the text of the first error in the chain of causes, with the place it came from."""
    chain = _causes(error)
    starved = [link for link in chain if is_out_of_memory(link)]
    first = starved[-1] if starved else chain[-1]
    text = " ".join(str(first).split())
    shown = text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} …"
    return "oom" if starved else "crash", f"{type(first).__name__}: {shown}{_place(first)}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that device or host memory ran out."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError | OSError) and any(text in str(error) for text in OUT_OF_MEMORY_TEXTS)


def _measure(trial: Trial, known: _Known, bench: _Bench) -> Measurement:
    import torch

    from calibration.models import resolve
    from calibration.trace import config_hash

    threads = telemetry.thread_count()
    torch.set_num_threads(threads)
    preset = resolve(trial.model)
    known.config_hash = config_hash(preset)
    known.device, sensor, sensor_note = _describe_device(trial.device, threads)
    monitor = telemetry.Monitor(sensor)
    measurement = _run(trial, preset, monitor, bench)
    known.device = monitor.describe(known.device)
    note = join_notes(measurement.note, sensor_note, monitor.problem, _throttle_note(known.device.throttle_reasons))
    return replace(measurement, note=note)


def _run(trial: Trial, preset: Preset, monitor: telemetry.Monitor, bench: _Bench) -> Measurement:
    graphs.strict_compile()
    meter = _meter(trial.device)
    if trial.limit_bytes is not None:
        memory.limit_memory(trial.device, trial.limit_bytes)
    trainee = bench.ready(trial, preset)
    meter.reset()
    warm: list[graphs.Graphs] = []
    timed = time_trainee(
        trainee,
        measured_accumulations(trial),
        trial.measure_s,
        monitor=monitor.running(),
        warmed_up=lambda: warm.append(graphs.count_graphs()),
    )
    peaks = meter.peaks()
    measurement = to_measurement(trial, timed, peaks)
    measurement = replace(measurement, note=join_notes(measurement.note, _allocator_note(trial.device, peaks)))
    return _judge_compile(trial, measurement, warm[0]) if trial.recipe.compile == "on" else measurement


def _judge_compile(trial: Trial, measurement: Measurement, warm: graphs.Graphs) -> Measurement:
    counted = graphs.count_graphs()
    if counted.fell_back:
        return failed(trial, "invalid", "compile was asked for, but nothing was captured: the model ran eagerly")
    return replace(measurement, note=join_notes(measurement.note, counted.describe(warm)))


def _describe_device(device: str, threads: int) -> tuple[Device, telemetry.NvmlSensor | None, str]:
    import torch

    if device == "cpu":
        return telemetry.cpu_device(threads), None, ""
    if not torch.cuda.is_available():
        raise RefusedError("no CUDA device is available")
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    sensor, problem = telemetry.nvml_sensor(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
    return telemetry.cuda_device(threads, sensor), sensor, problem


def _throttle_note(reasons: tuple[str, ...]) -> str:
    return f"throttled while timing: {', '.join(reasons)}" if telemetry.is_throttled(reasons) else ""


def _meter(device: str) -> memory.Meter:
    """A meter that starts now, after one tiny step has paid for thread pools, library handles and late imports."""
    import torch

    layer = torch.nn.Linear(64, 64, device=device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-6)
    layer(torch.ones(64, 64, device=device)).sum().backward()
    optimizer.step()
    return memory.CudaMeter() if device == "cuda" else memory.ResidentMeter()


def _allocator_note(device: str, peaks: Peaks) -> str:
    if device == "cpu":
        return ""
    settings = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or "default"
    outside_bytes = (peaks.device_bytes or 0) - (peaks.reserved_bytes or 0)
    crowd = f"{outside_bytes} bytes of the GPU are in use outside torch: is another process on it?"
    return join_notes(f"allocator {settings}", crowd if outside_bytes > SUSPECT_OUTSIDE_BYTES else "")


def _memory_note(device: str) -> str:
    """How far memory had got when the trial failed; a note, because it is no peak of a whole step."""
    import torch

    if device == "cpu":
        return f"resident when it failed: at most {memory.peak_resident_bytes()} bytes"
    return f"allocated when it failed: at most {torch.cuda.max_memory_allocated()} bytes"


def _causes(error: BaseException) -> list[BaseException]:
    """An error and what it was raised from, the first one last."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    return chain


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    return f" (in {Path(frames[-1].filename).name}:{frames[-1].lineno}, {frames[-1].name})"
