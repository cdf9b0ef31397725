"""The optimizers that the worker can run: one table from a recipe's name to a constructor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

LEARNING_RATE = 1e-6
"""Small enough that nothing diverges in a few dozen steps on random data."""

Build = Callable[[Iterable["torch.nn.Parameter"]], "torch.optim.Optimizer"]


def _adamw(*, fused: bool = False, foreach: bool = False) -> Build:
    def build(params: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        import torch

        return torch.optim.AdamW(params, lr=LEARNING_RATE, fused=fused, foreach=foreach)

    return build


def _sgd(params: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    import torch

    return torch.optim.SGD(params, lr=LEARNING_RATE, momentum=0.9)


def _adafactor(params: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    import torch

    return torch.optim.Adafactor(params, lr=LEARNING_RATE)


def _lion(params: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return lion_class()(params, lr=LEARNING_RATE)


OPTIMIZERS: dict[str, Build] = {
    "adamw_fused": _adamw(fused=True),
    "adamw_foreach": _adamw(foreach=True),
    "adamw_forloop": _adamw(),
    "sgd": _sgd,
    "adafactor": _adafactor,
    "lion": _lion,
}
"""Name in a recipe → constructor from parameters."""


def lion_class() -> Callable[..., torch.optim.Optimizer]:
    """The Lion optimizer (Chen et al. 2023, arXiv:2302.06675, algorithm 2) over lists of tensors: one momentum state.

    A function, because the class needs torch, which is imported only when something is really measured.
    """
    import torch

    class Lion(torch.optim.Optimizer):
        """Sign of an interpolated momentum, with decoupled weight decay."""

        def __init__(
            self,
            params: Iterable[torch.nn.Parameter],
            lr: float = 1e-4,
            betas: tuple[float, float] = (0.9, 0.99),
            weight_decay: float = 0.01,
        ) -> None:
            super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

        @torch.no_grad()
        def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
            """One update of every parameter that has a gradient."""
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            for group in self.param_groups:
                self._update(group)
            return loss

        def _update(self, group: dict[str, Any]) -> None:
            params = [param for param in group["params"] if param.grad is not None]
            if not params:
                return
            grads = [param.grad for param in params]
            for param in params:
                if "momentum" not in self.state[param]:
                    self.state[param]["momentum"] = torch.zeros_like(param)
            momenta = [self.state[param]["momentum"] for param in params]
            fast, slow = group["betas"]
            updates = torch._foreach_lerp(grads, momenta, fast)
            torch._foreach_sign_(updates)
            torch._foreach_mul_(params, 1.0 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(params, updates, alpha=-group["lr"])
            torch._foreach_lerp_(momenta, grads, 1.0 - slow)

    return Lion
