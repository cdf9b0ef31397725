"""Single tensors against brute force: the largest one, the rounding of all parameters, and creating the model."""

from __future__ import annotations

import weakref
from functools import cache

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from calibration.building import build_config, build_on_meta
from calibration.depth import with_depth
from calibration.microbatch import record_micro_batch
from calibration.recorder import Recording
from calibration.trace import choose_points
from profiles.machines import parse_machine
from profiles.schema import Fit, Numerics, Stack, Workload
from profiles.store import load_preset, load_workload
from simulator.case import Case, Run
from simulator.components import Choice
from simulator.memory import GRANULE_BYTES, PARTS, memory
from simulator.memory_phases import MemoryPhases, memory_phases
from simulator.rates import datasheet_profile
from simulator.recipes import complete
from simulator.techniques.precision import PRECISIONS

TRACED = ("gpt2", "bert-base", "t5-small", "vit-b16", "clip-vit-b32", "qwen3-0.6b")
TIED = ("gpt2", "bert-base", "t5-small", "qwen3-0.6b")
ROUNDED = ("pythia-14m", "pythia-160m", "gpt2", "bert-base", "t5-small", "vit-b16", "clip-vit-b32", "qwen3-0.6b")


@cache
def shipped(name: str) -> Workload:
    found = load_workload(name)
    assert found is not None
    return found


def phases(name: str, *, seq: int | None = None, **recipe: object) -> MemoryPhases:
    case = Case(workload=shipped(name), profile=datasheet_profile(parse_machine("1xB200")), run=Run(seq=seq))
    return memory_phases(case, complete(recipe, case))


@cache
def recorded(name: str, numerics: Numerics, attention: str) -> Recording:
    """Every storage that one micro-batch of the real class makes, at three blocks a stack."""
    preset = load_preset(name)
    shallow = with_depth(preset, 3)
    assert shallow is not None
    traced, stacks = shallow
    points = choose_points(preset, build_config(traced))
    return record_micro_batch(
        traced, tuple(Stack(name=n, depth=d) for n, d in stacks), numerics, attention, False, points[-1]
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16_pure"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", TRACED)
def test_the_largest_buffer_is_the_largest_storage_of_a_real_micro_batch(
    name: str, attention: str, precision: str
) -> None:
    recording = recorded(name, PRECISIONS[precision].numerics, attention)
    workload = shipped(name)
    for micro_batch in (1, 7, 64):
        seq = 1 if workload.fixed_seq else workload.seq
        size = np.array([micro_batch, seq, workload.decoder_seq or 1], dtype=float)
        sizes = [
            coefficient * np.prod(size**powers) for coefficient, *powers in (a.size for a in recording.allocations)
        ]
        assert phases(name, micro_batch=micro_batch, precision=precision, attention=attention).largest_buffer.bytes == (
            pytest.approx(max(sizes), rel=1e-9)
        )


def test_the_cast_experts_of_a_mixture_are_the_known_exception() -> None:
    """Under autocast the experts' products are kept once more in fp32, which the trace counts but gives no shape."""
    found = phases("mixtral-8x7b", seq=4096, micro_batch=8, precision="bf16").largest_buffer
    experts_in_fp32 = 8 * 4096 * 2 * (2 * 14336) * 4
    assert found.name == "logits"
    assert found.bytes == 8 * 4096 * 32000 * 4 == pytest.approx(experts_in_fp32 / 1.8, rel=0.01)


# ---------------------------------------------------------------------------------------- rounding of parameters


def rounded(numbers: int, width: int) -> int:
    return -(-numbers * width // GRANULE_BYTES) * GRANULE_BYTES


@pytest.mark.parametrize(("precision", "width"), [("fp32", 4), ("bf16", 4), ("bf16_pure", 2)])
@pytest.mark.parametrize(
    ("optimizer", "states"),
    [("adamw_fused", 2), ("adamw_foreach", 2), ("adamw_forloop", 2), ("sgd", 1), ("lion", 1)],
)
@pytest.mark.parametrize("name", ROUNDED)
def test_rounding_every_real_parameter_by_itself_changes_the_peak_by_less_than_a_ten_thousandth(
    name: str, optimizer: str, states: int, precision: str, width: int
) -> None:
    model, own = build_on_meta(load_preset(name)), shipped(name)
    counters = GRANULE_BYTES if optimizer == "adamw_fused" else 0
    truth = sum((1 + states) * rounded(p.numel(), width) + counters for p in model.parameters())
    truth += sum(rounded(b.numel(), b.element_size()) for b in model.buffers())
    choice = Choice(precision=precision, attention="sdpa", compile="off", checkpointing="none", optimizer=optimizer)
    size = np.array([[1.0, 1.0 if own.fixed_seq else own.seq, own.decoder_seq or 0.0]])
    found = memory(own, choice, size, np.array([False]), Fit(), 1e15)
    said = found.parts[0, PARTS.index("weights")] + found.parts[0, PARTS.index("optimizer_state")]
    assert abs(said - truth) < 1e-4 * found.peak_bytes[0]
    assert said <= truth, "only what fills no granule is left out"


# ---------------------------------------------------------------------------------------------- creating the model


class Live(TorchDispatchMode):
    """Peak bytes of the storages that are alive while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor):
                self._see(tensor.untyped_storage())
        return out

    def _see(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


@pytest.mark.parametrize("name", ["gpt2", "pythia-160m", "bert-base", "t5-small", "vit-b16", "qwen3-0.6b"])
def test_loading_takes_no_more_than_is_said_and_at_least_the_weights(name: str) -> None:
    with Live() as live:
        model = build_on_meta(load_preset(name))
    said = phases(name, micro_batch=1, precision="fp32").load_peak_bytes
    weights = 4 * sum(p.numel() for p in model.parameters())
    assert weights <= live.peak <= 1.001 * said
    if name in TIED:
        assert said == pytest.approx(live.peak, rel=1e-3), "what is created to be tied is alive before it is"


@pytest.mark.parametrize(("precision", "width"), [("fp32", 4), ("bf16", 4), ("fp16", 4), ("bf16_pure", 2)])
@pytest.mark.parametrize("name", ["llama-2-7b", "pythia-1b", "mixtral-8x7b"])
def test_loading_takes_the_width_of_the_weights(name: str, precision: str, width: int) -> None:
    own = shipped(name)
    said = phases(name, micro_batch=1, precision=precision).load_peak_bytes
    assert said == width * (own.params + own.largest_parameter) + own.buffer_bytes
