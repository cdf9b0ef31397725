"""Where a row of a table ran: its GPU, its machine, and how the global batch was spread over it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from calibration.table_columns import Cells
from calibration.table_gpus import Cards, card_bytes
from profiles.errors import InvalidInputError
from profiles.machines import parse_machine
from profiles.schema import Gpu

DEGREES = ("tp", "pp", "cp", "dp")
BATCH = ("micro_batch", "grad_accum", "global_batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A row's machine in words, its card, its degrees and batches; ``notes`` say what was taken for granted."""

    machine: str
    gpu: Gpu
    card_bytes: float
    gpus: int
    degrees: dict[str, int]
    micro_batch: int
    grad_accum: int
    global_batch: int
    notes: tuple[str, ...]


def layout_of(cells: Cells, cards: Cards, problems: list[str]) -> Layout | None:
    """The layout of a row; ``None`` if it is unknown or impossible, with every reason added to ``problems``."""
    notes: list[str] = []
    name, _, network = cells.text.get("gpu", "").partition("@")
    gpu = cards.find(cells, name.strip(), problems, notes)
    degrees = _degrees(cells, problems)
    if degrees is None:
        return None
    gpus = math.prod(degrees.values())
    batch = _batch(cells, degrees["dp"], problems)
    nodes = _nodes(cells, gpus, problems)
    if gpu is None or batch is None or nodes is None:
        return None
    machine = _machine(gpu, nodes, gpus // nodes, network.strip(), problems, notes)
    return Layout(
        machine=machine,
        gpu=gpu,
        card_bytes=card_bytes(cells, gpu),
        gpus=gpus,
        degrees=degrees,
        notes=tuple(notes),
        **batch,
    )


def _degrees(cells: Cells, problems: list[str]) -> dict[str, int] | None:
    """The four degrees; those that are blank follow from the others and the number of GPUs, where they do."""
    told = {"dp": cells.whole("dp"), **{name: cells.count(name) for name in DEGREES if name != "dp"}}
    known = {name: value for name, value in told.items() if value is not None}
    unknown = [name for name in DEGREES if name not in known]
    product = math.prod(known.values())
    gpus = cells.whole("num_gpus") or (None if unknown else product)
    if gpus is None:
        problems.append(f"num_gpus and {', '.join(unknown)} are blank, and do not follow from the rest")
    elif gpus % product or (gpus != product and not unknown):
        problems.append(f"{_product(known)} = {product}, which is not num_gpus {gpus}")
    elif gpus != product and len(unknown) > 1:
        problems.append(f"{', '.join(unknown)} are blank, and do not follow from num_gpus {gpus}")
    else:
        return {**dict.fromkeys(unknown, gpus // product), **known}
    return None


def _batch(cells: Cells, dp: int, problems: list[str]) -> dict[str, int] | None:
    """Micro-batch, accumulation and global batch; one that is blank follows from the other two."""
    told = {name: cells.whole(name) for name in BATCH}
    if told["global_batch"] is None:
        told["grad_accum"] = cells.count("grad_accum")
    unknown = [name for name, value in told.items() if value is None]
    if len(unknown) > 1:
        problems.append(f"{', '.join(unknown)} are blank, and do not follow from the rest")
        return None
    known = {name: value for name, value in told.items() if value is not None}
    factors = {"dp": dp, **{name: value for name, value in known.items() if name != "global_batch"}}
    product = math.prod(factors.values())
    total = known.setdefault("global_batch", product)
    if total % product or (total != product and not unknown):
        problems.append(f"{_product(factors)} = {product}, which does not give global_batch {total}")
        return None
    return {**dict.fromkeys(unknown, total // product), **known}


def _product(factors: Mapping[str, int]) -> str:
    return " × ".join(f"{name} {value}" for name, value in factors.items())


def _nodes(cells: Cells, gpus: int, problems: list[str]) -> int | None:
    nodes = cells.count("num_nodes") or (1 if gpus == 1 else None)
    if nodes is None:
        problems.append(f"num_nodes is blank, and {gpus} GPUs may stand in one node or several")
    elif gpus % nodes:
        problems.append(f"num_gpus {gpus} is not a multiple of num_nodes {nodes}")
        return None
    return nodes


def _machine(gpu: Gpu, nodes: int, gpus: int, network: str, problems: list[str], notes: list[str]) -> str:
    """The machine in words. Several nodes without a network have no known machine, and keep the text."""
    if nodes > 1 and not network:
        notes.append("several nodes without a network; write it behind the GPU, such as H100@8xib400")
        return f"{nodes}x{gpus}x{gpu.name}"
    count = f"{nodes}x{gpus}x" if nodes > 1 else f"{gpus}x"
    try:
        return parse_machine(f"{count}{gpu.name}" + (f"@{network}" if network else "")).name
    except InvalidInputError as error:
        problems.extend(error.problems)
        return ""
