"""Makes a trace on CPU fake tensors dispatch what an eager CUDA run would.

CPU autocast knows the same 16-bit list and cast cache as CUDA's, but not its fp32 list, its fused attention, its
one-byte dropout mask and its 16-bit log-softmax inside cross-entropy. A torch function mode puts these in.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

# CUDA autocast's fp32 list, as far as models use it (torch/amp documentation, "CUDA Ops that can autocast to float32").
_FP32_LIST = {
    "layer_norm",
    "rms_norm",
    "group_norm",
    "softmax",
    "log_softmax",
    "softplus",
    "sum",
    "cumsum",
    "cumprod",
    "prod",
    "norm",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "pow",
    "__pow__",
    "__rpow__",
    "rsqrt",
    "reciprocal",
    "cosine_similarity",
    "logsumexp",
    "binary_cross_entropy_with_logits",
    "mse_loss",
    "acos",
    "asin",
    "cosh",
    "sinh",
    "tan",
    "erfinv",
    "cdist",
    "dist",
    "renorm",
}
_LOW_PRECISION_EXTRA = {"scaled_dot_product_attention"}


def function_mode(autocast: bool) -> Any:
    """The function mode; ``autocast`` says whether 16-bit autocast is on around it."""
    import torch
    import torch.nn.functional as F
    from torch.overrides import TorchFunctionMode

    class CudaView(TorchFunctionMode):
        def __torch_function__(
            self,
            func: Callable[..., Any],
            types: Any,
            args: Any = (),
            kwargs: Any = None,
        ) -> Any:
            kwargs = kwargs or {}
            name = getattr(func, "__name__", "")
            if name == "__bool__":
                return True  # the only such checks in a training forward: "is this mask trivial?", and it is
            if name == "__contains__":
                return False  # "is there padding among the tokens?", and there is none
            if name in {"grouped_mm", "_grouped_mm"} and args[0].dtype == torch.float32:
                return func(args[0].bfloat16(), args[1].bfloat16(), *args[2:], **kwargs).float()
            if func is F.scaled_dot_product_attention:
                return _attention(autocast, *args, **kwargs)
            if func is F.cross_entropy and autocast and _is_16_bit(args[0]):
                return _cross_entropy_16_bit(*args, **kwargs)
            if func is F.dropout:
                return _dropout(*args, **kwargs)
            if autocast and name in _FP32_LIST and kwargs.get("dtype") is None:
                args = tuple(a.float() if _is_16_bit(a) else a for a in args)
                kwargs = {k: v.float() if _is_16_bit(v) else v for k, v in kwargs.items()}
            return func(*args, **kwargs)

    def _is_16_bit(x: Any) -> bool:
        return isinstance(x, torch.Tensor) and x.dtype in {torch.bfloat16, torch.float16}

    return CudaView()


def _dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    import torch

    return torch.native_dropout(input, p, True)[0] if training and p > 0 else input


def _cross_entropy_16_bit(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """CUDA: log-softmax stays in 16 bits (its dtype is given explicitly), the likelihood loss goes to fp32."""
    import torch
    import torch.nn.functional as F

    with torch.autocast("cpu", enabled=False):
        logs = torch._log_softmax(input, 1, False)
        return F.nll_loss(logs.float(), target, weight, ignore_index=ignore_index, reduction=reduction)


def _attention(
    autocast: bool,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Flash where 16-bit and unmasked, memory-efficient where fp32 or masked, the math kernel where neither can."""
    import torch

    if autocast:
        query, key, value = (x.to(torch.bfloat16) for x in (query, key, value))
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask.to(torch.bfloat16)
    grouped = enable_gqa and key.shape[-3] != query.shape[-3]
    if attn_mask is None and query.dtype != torch.float32 and query.shape[-1] <= 256:
        return torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
    if grouped or (attn_mask is not None and attn_mask.requires_grad):
        return _math_attention(query, key, value, attn_mask, dropout_p, is_causal, scale)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, float("-inf"))
        attn_mask = attn_mask.expand(*query.shape[:-1], key.shape[-2])
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale
    )[0]


def _math_attention(
    query: Any, key: Any, value: Any, mask: Any, dropout_p: float, causal: bool, scale: float | None
) -> Any:
    """The math kernel, for grouped heads in fp32 and for a mask that wants a gradient: no fused kernel takes those.

    It computes in fp32 whatever its inputs are, scales queries and keys alike, and guards its softmax against rows of
    which everything is masked. Source: PyTorch's ``_scaled_dot_product_attention_math``.
    """
    import torch

    dtype = query.dtype
    with torch.autocast("cpu", enabled=False):
        repeat = query.shape[-3] // key.shape[-3]
        query, key, value = query.float(), key.float(), value.float()
        if repeat > 1:
            key, value = key.repeat_interleave(repeat, -3), value.repeat_interleave(repeat, -3)
        factor = (scale or query.shape[-1] ** -0.5) ** 0.5
        if causal:
            keep = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
            mask = torch.zeros(keep.shape, dtype=query.dtype).masked_fill(~keep, float("-inf"))
        scores = (query * factor) @ (key.transpose(-2, -1) * factor)
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros(mask.shape, dtype=query.dtype).masked_fill(~mask, float("-inf"))
        if mask is not None:
            scores = scores.add_(mask)
        weights = torch.softmax(scores, -1)
        if mask is not None:
            weights = torch.where((scores == float("-inf")).all(-1, keepdim=True), torch.zeros(()), weights)
        return (_dropout(weights, dropout_p) @ value).to(dtype)


@contextlib.contextmanager
def as_if_not_tracing() -> Iterator[None]:
    """Within it transformers takes the branches of a real run: its check for fake tensors answers no."""
    patched: list[tuple[Any, Any]] = []
    for name, module in list(sys.modules.items()):
        if name.startswith("transformers") and "is_tracing" in vars(module):
            patched.append((module, module.is_tracing))
            module.is_tracing = lambda tensor=None: False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module, original in patched:
            module.is_tracing = original
