"""What one operation is, moves and computes, on real tensors, against figures counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from calibration import opkinds
from calibration.monomials import Point, value

POINT = Point(micro_batch=7, seq=11)
B, S = 7, 11
aten = torch.ops.aten


def moved(func: Any, *inputs: Any, **kwargs: Any) -> float:
    out = func(*inputs, **kwargs)
    tensors = opkinds.tensors_in((inputs, kwargs)), opkinds.tensors_in(out)
    return value(tuple(opkinds.moved_bytes(POINT, func, *tensors)), B, S)


def computed(func: Any, *inputs: Any) -> float:
    out = func(*inputs)
    return value(opkinds.flops(POINT, func, opkinds.tensors_in(inputs), opkinds.tensors_in(out), {}), B, S)


def kind(func: Any, *inputs: Any) -> str | None:
    return opkinds.kind_of(func, opkinds.tensors_in(inputs), opkinds.tensors_in(func(*inputs)))


def test_a_sum_of_two_tensors_reads_both_and_writes_one() -> None:
    x = torch.zeros(B, S, 4)
    assert moved(aten.add.Tensor, x, x.clone()) == 3 * x.numel() * 4


def test_an_expanded_operand_is_read_once() -> None:
    x, row = torch.zeros(B, S, 4), torch.zeros(4)
    assert moved(aten.add.Tensor, x, row.expand(B, S, 4)) == 2 * x.numel() * 4 + 4 * 4


def test_a_look_up_reads_the_rows_it_returns_and_not_the_table() -> None:
    table, ids = torch.zeros(10_000, 4), torch.zeros(B, S, dtype=torch.int64)
    assert moved(aten.embedding.default, table, ids) == 2 * B * S * 4 * 4 + B * S * 8


def test_an_in_place_operation_reads_and_writes_its_first_argument() -> None:
    x = torch.zeros(B, S)
    assert moved(aten.add_.Tensor, x, torch.ones(B, S)) == 3 * x.numel() * 4


def test_layer_norm_backward_reads_its_two_large_inputs_twice() -> None:
    x, weight, bias = torch.randn(B, S, 4), torch.ones(4), torch.zeros(4)
    _, mean, rstd = aten.native_layer_norm.default(x, [4], weight, bias, 1e-5)
    small = 2 * 4 * 4 + 2 * B * S * 4
    expected = 5 * x.numel() * 4 + small + 2 * 4 * 4
    backward = aten.native_layer_norm_backward.default
    assert moved(backward, x, x.clone(), [4], mean, rstd, weight, bias, [True, True, True]) == expected


@pytest.mark.parametrize(
    ("func", "inputs", "expected"),
    [
        (aten.mm.default, (torch.zeros(77, 4), torch.zeros(4, 6)), 2 * 77 * 4 * 6),
        (aten.addmm.default, (torch.zeros(6), torch.zeros(77, 4), torch.zeros(4, 6)), 2 * 77 * 4 * 6),
        (aten.bmm.default, (torch.zeros(7, 11, 4), torch.zeros(7, 4, 11)), 2 * 7 * 11 * 4 * 11),
        (aten.add.Tensor, (torch.zeros(7, 11), torch.zeros(7, 11)), 0),
    ],
)
def test_products_cost_two_operations_per_multiply(func: Any, inputs: tuple[Any, ...], expected: float) -> None:
    assert computed(func, *inputs) == expected


CONV = (torch.zeros(7, 3, 8, 8), torch.zeros(5, 3, 2, 2))
CONV_FORWARD = 2 * 7 * 5 * 4 * 4 * (3 * 2 * 2)


def test_a_convolution_costs_its_kernel_at_every_output() -> None:
    assert computed(aten.convolution.default, *CONV, None, [2, 2], [0, 0], [1, 1], False, [0, 0], 1) == CONV_FORWARD


@pytest.mark.parametrize(
    ("wanted", "products"), [((True, True, True), 2), ((False, True, True), 1), ((False, True, False), 1)]
)
def test_convolution_backward_costs_a_product_per_gradient_asked_for(wanted: Any, products: int) -> None:
    image, kernel = CONV
    arguments = ([5], [2, 2], [0, 0], [1, 1], False, [0, 0], 1, list(wanted))
    gradient = torch.zeros(7, 5, 4, 4)
    assert computed(aten.convolution_backward.default, gradient, image, kernel, *arguments) == products * CONV_FORWARD


def test_fused_attention_counts_every_key_forward_and_five_products_backward() -> None:
    q, k = torch.randn(7, 2, 11, 8), torch.randn(7, 2, 11, 8)
    out = aten._scaled_dot_product_flash_attention_for_cpu.default(q, k, k)
    assert computed(aten._scaled_dot_product_flash_attention_for_cpu.default, q, k, k) == 4 * 7 * 2 * 11 * 11 * 8
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    assert computed(backward, q, q, k, k, out[0], out[1], 0.0, False) == 10 * 7 * 2 * 11 * 11 * 8


def test_product_dims_are_batch_rows_columns_and_depth() -> None:
    left, right = torch.zeros(77, 4), torch.zeros(4, 6)
    dims = opkinds.product_dims(POINT, aten.mm.default, [left, right], [left @ right])
    assert dims == ((1.0, 0, 0, 0), (1.0, 1, 1, 0), (6.0, 0, 0, 0), (4.0, 0, 0, 0))


@pytest.mark.parametrize(
    ("func", "inputs", "expected"),
    [
        (aten.mm.default, (torch.zeros(7, 4), torch.zeros(4, 6)), "matmul"),
        (aten.bmm.default, (torch.zeros(7, 2, 4), torch.zeros(7, 4, 2)), "bmm"),
        (aten._softmax.default, (torch.zeros(7, 4), -1, False), "softmax"),
        (aten.sum.dim_IntList, (torch.zeros(7, 4), [0]), "reduce"),
        (aten.cat.default, ([torch.zeros(7, 4), torch.zeros(7, 4)],), "concat"),
        (aten.zeros_like.default, (torch.zeros(7, 4),), "fill"),
        (aten.view.default, (torch.zeros(7, 4), [28]), "view"),
        (aten.add.Tensor, (torch.zeros(7, 4), torch.zeros(7, 4)), "elementwise"),
        (aten.add.Tensor, (torch.zeros(7, 4), 1.0), "elementwise"),
        (aten.add.Tensor, (torch.zeros(7, 4), torch.zeros(4)), "strided"),  # broadcast
        (aten.add.Tensor, (torch.zeros(4, 7).t(), torch.zeros(7, 4)), "strided"),  # not contiguous
        (aten.add.Tensor, (torch.zeros(7, 4), torch.zeros(7, 4, dtype=torch.bfloat16)), "strided"),  # two dtypes
        (aten.empty_like.default, (torch.zeros(7, 4),), None),
    ],
)
def test_kinds(func: Any, inputs: tuple[Any, ...], expected: str | None) -> None:
    assert kind(func, *inputs) == expected


@pytest.mark.parametrize(
    ("columns", "dtype", "expected"),
    [
        (50304, torch.float32, "aligned"),
        (50257, torch.float32, "odd"),
        (50258, torch.float32, "even"),  # 50258 · 4 bytes are no multiple of 16
        (50252, torch.float32, "aligned"),
        (50252, torch.bfloat16, "even"),  # 50252 · 2 bytes are no multiple of 16
        (50264, torch.bfloat16, "aligned"),
        (7 * 9, torch.float32, "aligned"),  # follows the micro-batch, so says nothing of the real size
    ],
)
def test_padding_is_the_alignment_of_the_leading_dimension(columns: int, dtype: torch.dtype, expected: str) -> None:
    assert opkinds.padding(POINT, [torch.empty(8, columns, dtype=dtype, device="meta")], []) == expected
