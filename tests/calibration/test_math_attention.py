"""A mask that wants a gradient: torch computes attention without a fused kernel, and so does the trace."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from calibration import cuda_view
from calibration.cuda_view import _attention, _math_attention


@pytest.mark.parametrize(("heads", "key_heads", "causal", "masked"), [
    (4, 4, False, True), (4, 4, True, False), (4, 2, False, False), (4, 2, True, False),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_computes_what_torchs_own_math_kernel_does(heads, key_heads, causal, masked, dtype):
    torch.manual_seed(0)
    query = torch.randn(2, heads, 7, 16, dtype=dtype)
    key, value = (torch.randn(2, key_heads, 7, 16, dtype=dtype) for _ in range(2))
    mask = torch.randn(1, heads, 7, 7, dtype=dtype) if masked else None
    with sdpa_kernel(SDPBackend.MATH):
        real = scaled_dot_product_attention(query, key, value, mask, is_causal=causal, enable_gqa=key_heads < heads)
    told = _math_attention(query, key, value, mask, 0.0, causal, None)
    assert told.dtype == dtype
    assert torch.allclose(told, real, atol=1e-5 if dtype == torch.float32 else 2e-2)


def test_a_mask_of_truths_keeps_what_is_true():
    torch.manual_seed(1)
    query = torch.randn(1, 2, 5, 8)
    mask = torch.ones(1, 2, 5, 5, dtype=torch.bool).tril()
    with sdpa_kernel(SDPBackend.MATH):
        real = scaled_dot_product_attention(query, query, query, mask)
    assert torch.allclose(_math_attention(query, query, query, mask, 0.0, False, None), real, atol=1e-6)


def test_a_row_of_which_everything_is_masked_gives_zeros():
    query = torch.randn(1, 1, 3, 8)
    mask = torch.zeros(1, 1, 3, 3)
    mask[..., 1, :] = float("-inf")
    told = _math_attention(query, query, query, mask, 0.0, False, None)
    assert torch.equal(told[0, 0, 1], torch.zeros(8))
    assert told.isfinite().all()


@pytest.mark.parametrize("scale", [None, 1.0, 0.3])
def test_it_is_what_a_mask_that_wants_a_gradient_gets_and_gradients_are_torchs(scale):
    torch.manual_seed(1)
    made = [torch.randn(2, 4, 6, 16) for _ in range(3)] + [torch.randn(1, 4, 6, 6)]
    ours, theirs = ([t.clone().requires_grad_() for t in made] for _ in range(2))
    told = _attention(False, *ours[:3], attn_mask=ours[3], scale=scale)
    with sdpa_kernel(SDPBackend.MATH):
        real = scaled_dot_product_attention(*theirs[:3], attn_mask=theirs[3], scale=scale)
    assert torch.allclose(told, real, atol=1e-5)
    upstream = torch.randn_like(real)
    told.backward(upstream)
    real.backward(upstream)
    for own, other in zip(ours, theirs, strict=True):
        assert torch.allclose(own.grad, other.grad, atol=1e-5)


@pytest.mark.parametrize(("wants_gradient", "kernel"), [(True, "_math_attention"), (False, "efficient")])
def test_only_a_mask_that_wants_a_gradient_keeps_the_fused_kernel_away(wants_gradient, kernel, monkeypatch):
    called = []
    monkeypatch.setattr(cuda_view, "_math_attention", lambda *args: called.append("_math_attention"))
    monkeypatch.setattr(
        torch.ops.aten,
        "_scaled_dot_product_efficient_attention",
        lambda *args, **kwargs: called.append("efficient") or [None],
        raising=False,
    )
    query = torch.randn(1, 2, 3, 8)
    _attention(False, query, query, query, attn_mask=torch.zeros(1, 2, 3, 3, requires_grad=wants_gradient))
    assert called == [kernel]
