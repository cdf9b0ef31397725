"""What a dispatched operation is to a device: its kind, the bytes it moves, the shape of its product.

Rules by operator name, in the order of the tables. Bytes are ideal: every input element read once, every output
element written once, with the exceptions that measurements showed to matter (see ``moved_bytes``).
"""

from __future__ import annotations

from typing import Any, Literal

from calibration.monomials import Point, product
from profiles.schema import OpKind, Poly, Term

Dims = tuple[Term, Term, Term, Term]
Pad = Literal["aligned", "even", "odd"]

_BY_NAME: dict[OpKind, tuple[str, ...]] = {
    "matmul": ("mm", "addmm", "_grouped_mm", "grouped_mm", "mv", "addmv", "dot", "linear"),
    "bmm": ("bmm", "baddbmm"),
    "conv": ("convolution", "convolution_backward", "_slow_conv2d_forward"),
    "attention": (
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_backward",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_efficient_attention_backward",
    ),
    "softmax": (
        "_softmax",
        "_softmax_backward_data",
        "_log_softmax",
        "_log_softmax_backward_data",
        "nll_loss_forward",
        "nll_loss_backward",
        "logsumexp",
    ),
    "norm": (
        "native_layer_norm",
        "native_layer_norm_backward",
        "native_group_norm",
        "native_group_norm_backward",
        "native_batch_norm",
        "native_batch_norm_backward",
        "_fused_rms_norm",
        "_fused_rms_norm_backward",
        "_native_batch_norm_legit",
        "cudnn_batch_norm",
        "cudnn_batch_norm_backward",
    ),
    "reduce": (
        "sum",
        "mean",
        "amax",
        "amin",
        "max",
        "min",
        "any",
        "all",
        "argmax",
        "argmin",
        "cumsum",
        "cumprod",
        "prod",
        "norm",
        "linalg_vector_norm",
        "var",
        "var_mean",
        "std",
        "histc",
        "topk",
        "sort",
        "bincount",
    ),
    "embedding": (
        "embedding",
        "embedding_dense_backward",
        "index_select",
        "gather",
        "gather_backward",
        "index",
        "index_put",
        "index_put_",
        "_unsafe_index_put",
        "_index_put_impl_",
        "scatter",
        "scatter_add",
        "scatter_add_",
        "index_add",
        "index_add_",
        "take_along_dim",
        "index_select_backward",
        "scatter_",
        "one_hot",
    ),
    "dropout": ("native_dropout", "native_dropout_backward", "bernoulli_", "bernoulli", "rand_like", "rand"),
    "fill": (
        "zeros",
        "zeros_like",
        "new_zeros",
        "ones",
        "ones_like",
        "new_ones",
        "full",
        "full_like",
        "new_full",
        "fill_",
        "zero_",
        "arange",
        "scalar_tensor",
        "fill",
        "tril",
        "triu",
        "tril_",
        "triu_",
    ),
    "concat": (
        "cat",
        "stack",
        "slice_backward",
        "select_backward",
        "constant_pad_nd",
        "split_with_sizes_copy",
        "slice_scatter",
        "select_scatter",
        "roll",
        "unfold_backward",
        "flip",
        "repeat",
        "repeat_interleave",
        "reflection_pad1d",
        "reflection_pad2d",
        "as_strided_scatter",
    ),
}
_KIND: dict[str, OpKind] = {name: kind for kind, names in _BY_NAME.items() for name in names}
_FREE = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "_local_scalar_dense",
    "is_same_size",
}


def base_name(func: Any) -> str:
    """``aten::add.Tensor`` → ``add``."""
    return str(func._schema.name).split("::")[-1]


def tensors_in(tree: Any) -> list[Any]:
    """The tensors of an argument tree, in order."""
    import torch
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def kind_of(func: Any, inputs: list[Any], outputs: list[Any]) -> OpKind | None:
    """The operation's kind; ``None`` when it costs nothing on host or device."""
    name = base_name(func)
    if name in _FREE or not (inputs or outputs):
        return None
    if name in _KIND:
        return _KIND[name]
    if outputs and _aliases(inputs, outputs) and not func._schema.is_mutable:
        return "view"
    if name == "_to_copy" and inputs[0].is_contiguous():
        return "cast"
    return "elementwise" if _is_plain(inputs, outputs) else "strided"


def _aliases(inputs: list[Any], outputs: list[Any]) -> bool:
    held = {t.untyped_storage()._cdata for t in inputs}
    return all(t.untyped_storage()._cdata in held for t in outputs)


def _is_plain(inputs: list[Any], outputs: list[Any]) -> bool:
    """Contiguous, one dtype, no broadcast beyond scalars: what the vectorised elementwise kernel needs."""
    import torch

    big = [t for t in [*inputs, *outputs] if t.numel() > 1]
    if not big:
        return True
    shape, dtype = big[-1].shape, big[-1].dtype
    return all(t.shape == shape and t.is_contiguous() and (t.dtype == dtype or t.dtype == torch.bool) for t in big)


def _size(point: Point, tensor: Any) -> Term:
    """Bytes that reading or writing the tensor touches: expanded dimensions count once."""
    count = product(*(point.term(n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if s != 0 or n == 1))
    return (count[0] * tensor.element_size(), *count[1:])


def moved_bytes(point: Point, func: Any, inputs: list[Any], outputs: list[Any]) -> list[Term]:
    """Bytes read plus written, a term per tensor.

    A look-up reads only the rows it returns; its dense backward fills the table and writes rows on top. Backward of a
    norm reads its inputs twice. Slice backward fills its output before it copies. Softmax backward on CUDA multiplies
    gradient and output into a buffer of its own first (see ``hidden_buffer``).
    """
    name = base_name(func)
    read = [_size(point, t) for t in inputs]
    written = [_size(point, t) for t in outputs]
    if name in {"embedding", "index_select", "index", "gather"}:
        return [*written, *written, *read[1:]]
    if name in {"native_layer_norm_backward", "_fused_rms_norm_backward", "native_group_norm_backward"}:
        return [*read, *read[:2], *written]
    if name == "_softmax_backward_data":
        return [*read, *read, *written, *written]
    if name in {"slice_backward", "select_backward", "embedding_dense_backward"}:
        return [*read, *(read if name == "embedding_dense_backward" else ()), *read[:1], *written]
    if name.endswith("_") or func._schema.is_mutable:
        return [*read, *read[:1]]
    return [*read, *written]


def hidden_buffer(func: Any, outputs: list[Any]) -> int:
    """Bytes that a CUDA kernel allocates beside its outputs and frees before it returns.

    Source: PyTorch's ``SoftMax.cu``: softmax backward first forms gradient × output, of the output's size.
    """
    return outputs[0].untyped_storage().nbytes() if base_name(func) == "_softmax_backward_data" else 0


def product_dims(point: Point, func: Any, inputs: list[Any], outputs: list[Any]) -> Dims | None:
    """(batch, m, n, k) of a matrix product, (batch · heads, queries, keys, head size) of attention, else ``None``."""
    name = base_name(func)
    if name in {"mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "grouped_mm", "linear"}:
        left, right = inputs[-2:] if name in {"addmm", "baddbmm"} else inputs[:2]
        return _matrix_dims(point, name, left, right, outputs[0])
    if "scaled_dot_product" in name:
        query, key = inputs[1:3] if name.endswith("backward") else inputs[:2]
        batch, heads, length, size = query.shape
        return (
            product(point.term(batch), point.term(heads)),
            point.term(length),
            point.term(key.shape[-2]),
            point.term(size),
        )
    return None


def _matrix_dims(point: Point, name: str, left: Any, right: Any, out: Any) -> Dims:
    one = (1.0, 0, 0, 0)
    if "grouped_mm" in name and left.dim() == 2 and right.dim() == 2:
        # Weight gradients: the contraction runs over all rows, split among the groups.
        return (one, point.term(out.shape[-2]), point.term(out.shape[-1]), point.term(left.shape[-1]))
    batch = point.term(left.shape[0]) if left.dim() == 3 else one
    return (batch, point.term(left.shape[-2]), point.term(right.shape[-1]), point.term(left.shape[-1]))


def flops(point: Point, func: Any, inputs: list[Any], outputs: list[Any], kwargs: dict[str, Any]) -> Poly:
    """Floating-point operations, a multiply and an add counted as two.

    Attention counts all keys (2 products forward, 5 backward, as flash attention executes them); who halves it for
    causality says so. Convolutions count as torch's own counter does.
    """
    name = base_name(func)
    dims = product_dims(point, func, inputs, outputs)
    if dims is not None:
        factor = 2.0
        if "scaled_dot_product" in name:
            factor = 10.0 if name.endswith("backward") else 4.0
        return (product((factor, 0, 0, 0), *dims),)
    if name == "convolution":
        return (_conv_flops(point, inputs[1], outputs[0]),)
    if name == "convolution_backward":
        grad, weight = inputs[0], inputs[2]
        once = _conv_flops(point, weight, grad)
        gradients = sum(t.dim() > 1 for t in outputs)  # of input and weight, as asked for; the bias's is no product
        return (product((float(gradients), 0, 0, 0), once),)
    return ()


def _conv_flops(point: Point, weight: Any, out: Any) -> Term:
    per_output = 2.0
    for n in weight.shape[1:]:
        per_output *= n
    return product((per_output, 0, 0, 0), *(point.term(n) for n in out.shape))


def padding(point: Point, inputs: list[Any], outputs: list[Any]) -> Pad:
    """How well the operands' leading dimensions are aligned: 16 bytes, an even number of elements, or odd."""
    worst: Pad = "aligned"
    for tensor in [*inputs, *outputs]:
        if tensor.dim() < 2:
            continue
        leading = max(tensor.stride()[-2:])
        _, *exponents = point.term(leading)
        if any(exponents) or leading * tensor.element_size() % 16 == 0:
            continue
        if leading % 2:
            return "odd"
        worst = "even"
    return worst
