"""What a built model contains: parameters in all, active, in look-up tables; buffers. Works on the meta device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiles.errors import InvalidInputError

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedConfig

_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "top_k_experts", "moe_k")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN_BY_TYPE = {"switch_transformers": 1, "nllb-moe": 2}  # fixed in the class, absent from the config


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Sizes of one model. Shared tensors count once; the four ``params`` figures are numbers of elements.

    ``active_params`` leaves out the experts that one token does not visit. ``embedding_params`` are input look-up
    tables that take part in no product: a table that is also the output projection is not one of them.
    """

    params: int
    active_params: int
    embedding_params: int
    parameter_tensors: int
    largest_parameter: int
    buffer_bytes: int


def count(model: nn.Module, config: PreTrainedConfig) -> Counts:
    """Counts a model built from ``config``.

    Raises:
        InvalidInputError: the model has experts, but neither config nor type says how many a token visits.
    """
    sizes = [parameter.numel() for parameter in model.parameters()]
    return Counts(
        params=sum(sizes),
        active_params=sum(sizes) - _inactive(model, config),
        embedding_params=_embeddings(model),
        parameter_tensors=len(sizes),
        largest_parameter=max(sizes, default=0),
        buffer_bytes=sum(buffer.numel() * buffer.element_size() for buffer in model.buffers()),
    )


def _embeddings(model: nn.Module) -> int:
    from torch import nn

    tables: dict[int, int] = {}
    elsewhere: set[int] = set()
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if isinstance(module, nn.Embedding):
                tables[id(parameter)] = parameter.numel()
            else:
                elsewhere.add(id(parameter))
    return sum(size for key, size in tables.items() if key not in elsewhere)


def _inactive(model: nn.Module, config: PreTrainedConfig) -> int:
    """Parameters of the experts that one token does not visit, the router's choice taken from the config."""
    routed = {id(parameter): (parameter.numel(), experts) for parameter, experts in _routed(model, config)}
    if not routed:
        return 0
    chosen = _CHOSEN_BY_TYPE.get(config.model_type) or _find(config, _CHOSEN)
    if chosen is None:
        raise InvalidInputError(
            f"model type {config.model_type}",
            [f"it has experts, but its config does not say how many a token visits; allowed: {', '.join(_CHOSEN)}"],
        )
    return round(sum(size * (experts - min(chosen, experts)) / experts for size, experts in routed.values()))


def _routed(model: nn.Module, config: PreTrainedConfig) -> Iterator[tuple[nn.Parameter, int]]:
    """Parameters of routed experts, each with the number of experts it is one of or holds all of.

    They live in a module called ``experts``, as a list of modules or as tensors with a leading expert dimension, or
    are three-dimensional tensors of a module by another name. Shared experts are always active.
    """
    total = _find(config, _EXPERTS)
    for name, module in model.named_modules():
        path = name.split(".")
        if path[-1] == "experts":
            children = len(list(module.children()))
            experts = total or children
            yield from ((parameter, experts) for parameter in module.parameters())
        elif total and total > 1 and "experts" not in path:
            for parameter in module.parameters(recurse=False):
                if parameter.dim() == 3 and parameter.shape[0] == total:
                    yield parameter, total


def _find(config: object, names: tuple[str, ...]) -> int | None:
    """The first of these fields that the config or one of its parts holds; of a list by layer, the largest."""
    parts = [config, *(part for part in vars(config).values() if hasattr(part, "to_dict"))]
    for part in parts:
        for name in names:
            value = getattr(part, name, None)
            if isinstance(value, list | tuple) and value:
                value = max(value)
            if isinstance(value, int) and value > 0:
                return value
    return None
