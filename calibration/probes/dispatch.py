"""Host seconds per dispatched operation of an eager training step, from a model too small to keep the device busy."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from calibration.probes.base import ProbeResult, Row, fold_rate, make_rate
from calibration.probes.device import dtype_of, unsupported
from calibration.probes.operations import count_operations
from profiles.schema import Rate

PHASES = ("forward", "backward", "recompute")
_VOCABULARY, _LENGTH = 512, 32
_WARM_UP_STEPS, _MIN_STEPS, _MAX_STEPS = 3, 5, 100


class DispatchProbe:
    """Seconds of host time per operation in forward, backward and recomputation of a two-layer GPT-NeoX.

    In fp32 and, where the device has it, under bf16 autocast; the cost is the mean of both on the log.
    On a CPU it runs on one thread, and the tiny operations themselves are part of the figure.
    """

    name = "dispatch"
    share = 0.12

    def promises(self) -> tuple[str, ...]:
        """One cost per phase."""
        return tuple(f"dispatch_{phase}_s" for phase in PHASES)

    def run(self, device: str, budget_s: float) -> ProbeResult:
        """Counts the operations of each phase once, then times whole phases, synchronised at their edges."""
        numerics = [p for p in ("fp32", "bf16") if not unsupported(device, p)]
        start_s, rows = time.perf_counter(), []
        with _one_thread():
            for index, precision in enumerate(numerics):
                left_s = budget_s - (time.perf_counter() - start_s)
                rows += _phase_rows(device, precision, left_s / (len(numerics) - index))
        rates: dict[str, Rate] = {}
        skipped: dict[str, str] = {}
        for name in self.promises():
            found = [row for row in rows if row.rate == name]
            if found:
                rates[name] = _seconds_per_operation(found, device)
            else:
                skipped[name] = "checkpointing cost no measurable time beyond the plain backward pass"
        return ProbeResult(rates=rates, rows=tuple(rows), skipped=skipped)


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread for the host's own arithmetic, so that waking the others is not taken for dispatch."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(slots=True, kw_only=True)
class _Step:
    """A model with one batch, stepped phase by phase."""

    model: Any
    batch: dict[str, Any]
    device: str
    autocast: Callable[[], AbstractContextManager[Any]]
    loss: Any = None
    forward_s: list[float] = field(default_factory=list)
    backward_s: list[float] = field(default_factory=list)

    def forward(self) -> None:
        with self.autocast():
            self.loss = self.model(**self.batch, use_cache=False).loss

    def backward(self) -> None:
        self.loss.backward()
        self.loss = None

    def timed(self, keep: bool = True) -> None:
        """One step; the seconds of its two phases are kept."""
        self.model.zero_grad(set_to_none=True)
        marks_s = [_idle_s(self.device)]
        for phase in (self.forward, self.backward):
            phase()
            marks_s.append(_idle_s(self.device))
        if keep:
            self.forward_s.append(marks_s[1] - marks_s[0])
            self.backward_s.append(marks_s[2] - marks_s[1])

    def counted(self) -> tuple[float, float]:
        """Operations of one step's forward and backward."""
        self.model.zero_grad(set_to_none=True)
        return count_operations(self.forward), count_operations(self.backward)


def _phase_rows(device: str, precision: str, budget_s: float) -> list[Row]:
    plain, checkpointed = (_tiny_step(device, precision, checkpointed=on) for on in (False, True))
    for _ in range(_WARM_UP_STEPS):
        plain.timed(keep=False)
        checkpointed.timed(keep=False)
    start_s = time.perf_counter()
    operations, recomputed = plain.counted(), checkpointed.counted()[1]
    for index in range(_MAX_STEPS):
        if index >= _MIN_STEPS and time.perf_counter() - start_s > budget_s:
            break
        plain.timed()
        checkpointed.timed()
    rows = [
        _row("forward", precision, operations[0], plain.forward_s),
        _row("backward", precision, operations[1], plain.backward_s),
    ]
    extra_s = _extra_s(plain.backward_s, checkpointed.backward_s)
    return [*rows, _row("recompute", precision, recomputed - operations[1], extra_s)] if extra_s else rows


def _extra_s(plain_s: list[float], checkpointed_s: list[float]) -> list[float]:
    """What checkpointing added to each backward pass; empty if noise hides it."""
    middle_s = statistics.median(plain_s)
    extra_s = [sample_s - middle_s for sample_s in checkpointed_s]
    positive_s = [sample_s for sample_s in extra_s if sample_s > 0]
    return positive_s if len(positive_s) > len(extra_s) / 2 else []


def _row(phase: str, precision: str, operations: float, samples_s: list[float]) -> Row:
    return Row(
        probe=DispatchProbe.name,
        rate=f"dispatch_{phase}_s",
        label=f"{phase} of a two-layer GPT-NeoX, hidden 64, {precision}",
        amount=operations,
        median_s=statistics.median(samples_s),
        samples_s=tuple(samples_s),
        calls_per_sample=1,
        method="host",
        facts={"operations": operations},
    )


def _seconds_per_operation(rows: list[Row], device: str) -> Rate:
    per_second = fold_rate(rows, device)
    return make_rate(1.0 / per_second.value, per_second.sd_log, rows, device)


def _tiny_step(device: str, precision: str, *, checkpointed: bool) -> _Step:
    import torch
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(
        hidden_size=64,
        intermediate_size=256,
        num_attention_heads=4,
        num_hidden_layers=2,
        vocab_size=_VOCABULARY,
        max_position_embeddings=_LENGTH,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    config._attn_implementation = "sdpa"
    model: Any = GPTNeoXForCausalLM(config)
    model.to(device).train()
    if checkpointed:
        for block in model.gpt_neox.layers:
            block.forward = partial(_checkpointed, block.forward)
    tokens = torch.randint(_VOCABULARY, (1, _LENGTH), device=device)
    kind, dtype = device.split(":", maxsplit=1)[0], dtype_of(precision)

    def autocast() -> AbstractContextManager[Any]:
        return nullcontext() if precision == "fp32" else torch.autocast(kind, dtype=dtype)

    return _Step(model=model, batch={"input_ids": tokens, "labels": tokens}, device=device, autocast=autocast)


def _checkpointed(forward: Callable[..., object], *args: object, **options: object) -> object:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(partial(forward, **options), *args, use_reentrant=False)


def _idle_s(device: str) -> float:
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize(device)
    return time.perf_counter()
