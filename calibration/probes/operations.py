"""Counting dispatched operations: what a host has to launch, one by one, in an eager step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._ops import OpOverload

VIEW_WEIGHT = 0.4
"""Host cost of an operation that launches nothing (a view, an empty tensor) relative to one that does."""
_LAUNCHES_NOTHING = frozenset(
    {"_unsafe_view", "_reshape_alias", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
)


def count_operations(run: Callable[[], object]) -> float:
    """Operations that reach the dispatcher while ``run`` runs, backward passes included; views count 0.4 each."""
    from torch.utils._python_dispatch import TorchDispatchMode

    weights: list[float] = []

    class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self,
            func: OpOverload,
            types: object,
            args: tuple[object, ...] = (),
            kwargs: dict[str, object] | None = None,
        ) -> object:
            weights.append(operation_weight(func))
            return func(*args, **(kwargs or {}))

    with Counter():  # type: ignore[no-untyped-call]
        run()
    return sum(weights)


def operation_weight(func: OpOverload) -> float:
    """1 for an operation that launches work, ``VIEW_WEIGHT`` for one that only describes memory."""
    name = func._schema.name.split("::")[-1]
    return VIEW_WEIGHT if func.is_view or name in _LAUNCHES_NOTHING else 1.0
