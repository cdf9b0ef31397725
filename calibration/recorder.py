"""Records what one training micro-batch dispatches on fake tensors: operations, allocations and their lifetimes."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from calibration import opkinds
from calibration.monomials import Point
from profiles.schema import OpKind, Phase, Poly, Term

Block = tuple[int, int]
"""(stack, index in the stack)."""
NEVER = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRecord:
    """One dispatched operation."""

    kind: OpKind
    phase: Phase
    block: Block | None
    bits: Literal[16, 32]
    bytes: tuple[Term, ...]
    flops: Poly
    dims: opkinds.Dims | None
    pad: opkinds.Pad
    causal: bool


@dataclass(slots=True, kw_only=True)
class Allocation:
    """One storage: alive during operations ``birth`` … ``death``, both included."""

    size: Term
    birth: int
    death: int = NEVER
    phase: Phase
    block: Block | None
    logits: bool
    gradient: bool = False
    accumulated: int = NEVER
    inputs: tuple[int, ...] = ()


@dataclass(slots=True)
class Recording:
    """Everything seen. ``forward_end`` is the number of operations before backward began.

    ``entered[b]`` and ``backed[b]``: operations seen when block b's forward began, and when its backward began.
    """

    ops: list[OpRecord] = field(default_factory=list)
    allocations: list[Allocation] = field(default_factory=list)
    count: int = 0
    forward_end: int = 0
    entered: dict[Block, int] = field(default_factory=dict)
    backed: dict[Block, int] = field(default_factory=dict)


class Recorder:
    """Collects a ``Recording``; ``mode()`` is the torch dispatch mode to enter inside the fake-tensor mode."""

    def __init__(self, point: Point, vocab: int | None, static: list[Any]) -> None:
        self.point = point
        self.vocab = vocab
        self.recording = Recording()
        self.phase: Phase = "forward"
        self.block: Block | None = None
        self._live: dict[int, int] = {}
        self._refs: list[Any] = []
        self._static = {t.untyped_storage()._cdata for t in static}
        self._keep = static

    def mode(self) -> Any:
        """The dispatch mode that feeds this recorder."""
        from torch.utils._python_dispatch import TorchDispatchMode

        recorder = self

        class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
            def __torch_dispatch__(
                self,
                func: Any,
                types: Any,
                args: Any = (),
                kwargs: Any = None,
            ) -> Any:
                kwargs = kwargs or {}
                out = func(*args, **kwargs)
                if func.namespace != "prim":
                    recorder.see(func, args, kwargs, out)
                return out

        return Mode()  # type: ignore[no-untyped-call]

    def see(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Note one dispatched operation and the storages it made."""
        inputs, outputs = opkinds.tensors_in((args, kwargs)), opkinds.tensors_in(out)
        self.recording.count += 1
        self._allocate(inputs, outputs, opkinds.base_name(func))
        self._hide(opkinds.hidden_buffer(func, outputs))
        kind = opkinds.kind_of(func, inputs, outputs)
        if kind is None:
            return
        pad: opkinds.Pad = "aligned"
        if kind in {"matmul", "bmm"}:
            pad = opkinds.padding(self.point, inputs, outputs)
        self.recording.ops.append(
            OpRecord(
                kind=kind,
                phase=self.phase,
                block=self.block,
                bits=_bits(inputs, outputs),
                pad=pad,
                bytes=() if kind == "view" else tuple(opkinds.moved_bytes(self.point, func, inputs, outputs)),
                flops=opkinds.flops(self.point, func, inputs, outputs, kwargs),
                dims=opkinds.product_dims(self.point, func, inputs, outputs),
                causal=bool(_argument("is_causal", func, args, kwargs)),
            )
        )

    def _allocate(self, inputs: list[Any], outputs: list[Any], name: str) -> None:
        for tensor in outputs:
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in self._live or key in self._static or not storage.nbytes():
                continue
            sources = tuple(self._owned(t) for t in inputs) if name == "add" else ()
            self._live[key] = len(self.recording.allocations)
            made = Allocation(
                size=self._size(name, inputs, tensor),
                birth=self.recording.count,
                phase=self.phase,
                block=self.block,
                logits=self._is_logits(tensor),
                inputs=sources,
            )
            self.recording.allocations.append(made)
            self._refs.append(weakref.ref(storage, self._on_death(key, made)))

    def _size(self, name: str, inputs: list[Any], tensor: Any) -> Term:
        """Bytes of a new storage. Memory-efficient attention pads lengths to 16 and 32, which real ones mostly are."""
        if "efficient_attention" not in name:
            return self.point.term(tensor.untyped_storage().nbytes())
        shape = [*tensor.shape[:-1], inputs[0].shape[-2]] if tensor.dim() == 3 else tensor.shape
        return self.point.term(math.prod(shape) * tensor.element_size())

    def _owned(self, tensor: Any) -> int:
        """Index of the storage that a tensor alone holds, else −1: a view's base holds it too."""
        return -1 if tensor._is_view() else self._live.get(tensor.untyped_storage()._cdata, -1)

    def _hide(self, size_bytes: int) -> None:
        if size_bytes:
            self.recording.allocations.append(
                Allocation(
                    size=self.point.term(size_bytes),
                    birth=self.recording.count,
                    death=self.recording.count,
                    phase="backward",
                    block=self.block,
                    logits=False,
                )
            )

    def _on_death(self, key: int, made: Allocation) -> Callable[[Any], None]:
        def dead(_: Any) -> None:
            made.death = self.recording.count
            self._live.pop(key, None)

        return dead

    def _is_logits(self, tensor: Any) -> bool:
        point = self.point
        return (
            self.vocab is not None
            and self.vocab in tensor.shape
            and point.term(tensor.numel())[1] > 0
            and self.vocab > 1024
        )

    def accumulated(self, grad: Any) -> None:
        """Called when a parameter's gradient is complete: its storage is a gradient from here on."""
        index = self._live.get(grad.untyped_storage()._cdata)
        if index is not None:
            self.recording.allocations[index].gradient = True
            self.recording.allocations[index].accumulated = self.recording.count


def _bits(inputs: list[Any], outputs: list[Any]) -> Literal[16, 32]:
    for tensor in [*inputs, *outputs]:
        if tensor.is_floating_point():
            return 16 if tensor.element_size() == 2 else 32
    return 32


def _argument(name: str, func: Any, args: Any, kwargs: Any) -> Any:
    """An operator's argument by name; ``None`` where it has none such or was called without."""
    if name in kwargs:
        return kwargs[name]
    names = [argument.name for argument in func._schema.arguments]
    position = names.index(name) if name in names else len(args)
    return args[position] if position < len(args) else None


def merge_in_place_sums(allocations: list[Allocation]) -> list[Allocation]:
    """Undo a fake-tensor artefact: the autograd engine adds gradients in place, but not for tensor subclasses.

    A backward sum whose first input dies with it takes that input's storage, unless it is a view. The gradient that a
    linear layer gives its own weight is one (a transpose); the one that passes through autocast's cast is not.
    """
    gone: set[int] = set()
    for made in allocations:
        if made.phase == "forward" or not made.inputs:
            continue
        for index in made.inputs[:1]:
            source = allocations[index] if index >= 0 else None
            if (
                source
                and index not in gone
                and source.phase != "forward"
                and source.size == made.size
                and source.death in {made.birth, made.birth - 1}
            ):
                made.birth = source.birth
                gone.add(index)
                break
    return [made for index, made in enumerate(allocations) if index not in gone]
