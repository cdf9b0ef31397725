"""Optimizer: what its state, its step and its temporaries cost.

The counts are of torch's own implementations (``torch.optim.AdamW``, ``SGD`` with momentum 0.9 and no weight decay,
``Adafactor`` without weight decay) and of Lion over lists of tensors. An *access* is one read or one write of an
array as large as the parameters. Gradients and state have the weights' width, so all bytes scale with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from profiles.schema import Recipe, Workload
from simulator.case import Case
from simulator.techniques.base import Refusal, parse_choice

CHUNK = 65_536
"""Elements that one thread block of a multi-tensor kernel updates (PyTorch, ``MultiTensorApply.cuh``)."""
CHUNKS_PER_LAUNCH = 2240
TENSORS_PER_LAUNCH = {1: 770, 2: 448, 3: 336, 4: 252}
"""Tensors of one multi-tensor launch by lists it walks, with 32 KB kernel arguments (CUDA 12.1 and later).

ROCm and older drivers take a seventh; even then a launch carries tens of megabytes, so its cost is lost in it.
"""
BLOCK_PARAMETERS = 12
"""Parameters of a transformer block ÷ width²: four for attention and eight for the feed-forward part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerCost:
    """What one optimizer does in one step.

    ``states``: arrays kept per parameter; ``factored`` replaces them by a row and a column per matrix.
    ``accesses``: reads plus writes per parameter. ``list_depths``: one multi-tensor pass each, by how many lists it
    walks. ``launches_per_tensor``: kernels for each parameter tensor. ``dispatches_per_step`` and
    ``dispatches_per_tensor``: operations that the host issues, the small ones on host-side step counters included.
    ``syncs_per_tensor``: waits of the host for the device. Temporaries: ``temporary_copies`` of all parameters, or
    ``temporary_largest`` of the largest one (and then one more of the tensor before it, which is left out here).
    """

    name: str
    states: int
    factored: bool = False
    accesses: int
    list_depths: tuple[int, ...] = ()
    launches_per_tensor: int = 0
    dispatches_per_step: int = 0
    dispatches_per_tensor: int = 0
    syncs_per_tensor: int = 0
    temporary_copies: int = 0
    temporary_largest: int = 0


OPTIMIZERS: dict[str, OptimizerCost] = {
    cost.name: cost
    for cost in (
        OptimizerCost(name="adamw_fused", states=2, accesses=7, list_depths=(1, 4), dispatches_per_step=2),
        OptimizerCost(
            name="adamw_foreach",
            states=2,
            accesses=20,
            list_depths=(1, 2, 1, 3, 2, 1, 1, 3),
            dispatches_per_step=10,
            dispatches_per_tensor=2,
            temporary_copies=1,
        ),
        OptimizerCost(
            name="adamw_forloop",
            states=2,
            accesses=20,
            launches_per_tensor=8,
            dispatches_per_tensor=10,
            temporary_largest=2,
        ),
        OptimizerCost(name="sgd", states=1, accesses=8, list_depths=(1, 2, 2), dispatches_per_step=3),
        OptimizerCost(
            name="lion", states=1, accesses=13, list_depths=(3, 1, 1, 2, 2), dispatches_per_step=5, temporary_copies=1
        ),
        # A matrix: 18 kernels, 22 operations. A vector needs 9 and 13; how many of either a workload does not say.
        OptimizerCost(
            name="adafactor",
            states=0,
            factored=True,
            accesses=17,
            launches_per_tensor=18,
            dispatches_per_tensor=22,
            syncs_per_tensor=2,
            temporary_largest=1,
        ),
    )
}


def state_bytes(name: str, workload: Workload, weight_bytes: int) -> int:
    """Bytes of optimizer state on the device.

    Exact but for the step counters (4 bytes a tensor, on the device only when fused, left out) and for Adafactor,
    whose factors are an upper bound.
    """
    cost = OPTIMIZERS[name]
    elements = factor_elements(workload) if cost.factored else cost.states * workload.params
    return elements * weight_bytes


def factor_elements(workload: Workload) -> int:
    """Upper bound of Adafactor's row and column factors, in elements: each tensor at most like the largest one.

    The largest tensor is taken as width × rest; the width follows from params ≈ 12 · layers · width². For Pythia-1B
    the bound is ten times the truth and 1 % of the parameters.
    """
    inner = max(workload.params - workload.embedding_params, 1)
    width = min(math.sqrt(inner / (BLOCK_PARAMETERS * max(workload.layers, 1))), math.sqrt(workload.largest_parameter))
    sides = width + workload.largest_parameter / width
    return min(math.ceil(sides * workload.parameter_tensors), workload.params)


def moved_bytes(name: str, workload: Workload, weight_bytes: int) -> int:
    """Bytes that one step reads and writes on the device, if nothing stays in a cache. Clipping is not in it."""
    return OPTIMIZERS[name].accesses * workload.params * weight_bytes


def temporary_bytes(name: str, workload: Workload, weight_bytes: int) -> int:
    """Bytes alive during the step beside weights, gradients and state."""
    cost = OPTIMIZERS[name]
    elements = cost.temporary_copies * workload.params + cost.temporary_largest * workload.largest_parameter
    return elements * weight_bytes


def launches(name: str, workload: Workload) -> int:
    """Kernels of one step on a GPU."""
    cost = OPTIMIZERS[name]
    listed = sum(_list_launches(depth, workload) for depth in cost.list_depths)
    return listed + cost.launches_per_tensor * workload.parameter_tensors


def dispatches(name: str, workload: Workload) -> int:
    """Operations of one step that the host issues."""
    cost = OPTIMIZERS[name]
    return cost.dispatches_per_step + cost.dispatches_per_tensor * workload.parameter_tensors


def syncs(name: str, workload: Workload) -> int:
    """Times that the host waits for the device in one step."""
    return OPTIMIZERS[name].syncs_per_tensor * workload.parameter_tensors


def _list_launches(depth: int, workload: Workload) -> int:
    """Launches of one multi-tensor pass: a launch is full when its chunks or its tensors are."""
    chunks = workload.parameter_tensors + workload.params // CHUNK
    return max(-(-chunks // CHUNKS_PER_LAUNCH), -(-workload.parameter_tensors // TENSORS_PER_LAUNCH[depth]))


class OptimizerTechnique:
    """Fused AdamW unless named.

    The search tries it alone: ``adamw_foreach`` and ``adamw_forloop`` are the same mathematics and never faster, and
    every other optimizer changes what is trained, so it is used only when named.
    """

    knob = "optimizer"
    allowed = ", ".join(OPTIMIZERS)

    def default(self, case: Case) -> str:
        """Fused AdamW."""
        return "adamw_fused"

    def values(self, case: Case) -> tuple[str, ...]:
        """The default alone."""
        return (self.default(case),)

    def parse(self, text: str) -> str:
        """The optimizer named."""
        return parse_choice(self.knob, text, OPTIMIZERS)

    def refuse(self, recipe: Recipe, case: Case) -> Refusal | None:
        """Nothing forbids any of them on one device."""
        return None
