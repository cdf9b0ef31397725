"""Machine names: ``4xA100-80GB``, ``2x8xH100-80GB@8xib400``, ``cpu`` and back.

    [NODESx][GPUSx]GPU[@[PORTSx]NETWORKGBIT]

A node's network is so many ports of so many Gbit/s each; ``@ib400`` is one port per node.
"""

from __future__ import annotations

import re

from profiles.catalogue import load_gpu
from profiles.errors import InvalidInputError, UnknownNameError
from profiles.schema import Gpu, Machine

NETWORKS = ("ib", "roce", "eth", "efa")
_COUNT = re.compile(r"\s*([+-]?\d*\.?\d+)\s*[xX×*]\s*")
_LINK = re.compile(r"(?:(?P<ports>[+-]?\d+)\s*[xX×*]\s*)?(?P<kind>[a-zA-Z]+)\s*(?P<gbit>\d{1,6}(?:\.\d{1,3})?)")
_MIG = re.compile(r"\bmig\b|\b\d+g\.\d+gb\b", re.IGNORECASE)
_FORM = "write NODESxGPUSxGPU@PORTSxNETWORKGBIT, for example 4xA100-80GB or 2x8xH100-80GB@8xib400"
_NETWORK_FORM = f"write PORTSxNETWORKGBIT with one of {', '.join(NETWORKS)}, for example 8xib400, roce200 or eth10"


def parse_machine(text: str) -> Machine:
    """The machine that a text names.

    Raises:
        UnknownNameError: only the GPU's name is wrong.
        InvalidInputError: anything else, with every problem found.
    """
    head, at, tail = text.partition("@")
    problems: list[str] = []
    nodes, gpus, gpu_name = _split(head, problems)
    network, bytes_per_s = _network(tail.strip(), problems) if at else (None, None)
    if nodes > 1 and not at:
        problems.append(f"{nodes} nodes need a network: add @ and {_NETWORK_FORM}")
    gpu = _gpu(gpu_name, problems)
    if problems or gpu is None:
        raise InvalidInputError(f"machine {text!r}", problems)
    name = _name(nodes, gpus, gpu, network)
    return Machine(
        name=name, gpu=gpu, gpus_per_node=gpus, nodes=nodes, network=network, network_bytes_per_s_per_node=bytes_per_s
    )


def canonical(machine: Machine) -> str:
    """The text that ``parse_machine`` reads back as this machine."""
    return _name(machine.nodes, machine.gpus_per_node, machine.gpu, machine.network)


def _name(nodes: int, gpus: int, gpu: Gpu, network: str | None) -> str:
    if gpu.kind == "cpu" and nodes == gpus == 1 and network is None:
        return gpu.name
    count = f"{nodes}x{gpus}x" if nodes > 1 else f"{gpus}x"
    return f"{count}{gpu.name}" + (f"@{network}" if network else "")


def _split(head: str, problems: list[str]) -> tuple[int, int, str]:
    counts: list[str] = []
    rest = head.strip()
    while found := _COUNT.match(rest):
        counts.append(found[1])
        rest = rest[found.end() :]
    if len(counts) > 2:
        problems.append(f"{len(counts)} counts before the GPU, at most two are allowed: {_FORM}")
        return 1, 1, rest.strip()
    numbers = [_count(count, problems) for count in counts]
    nodes, gpus = [1, 1, *numbers][-2:]
    return nodes, gpus, rest.strip()


def _count(text: str, problems: list[str]) -> int:
    if re.fullmatch(r"\+?\d{1,6}", text) and int(text) > 0:
        return int(text)
    problems.append(f"a count must be a whole number from 1 to 999999, got {text}")
    return 1


def _gpu(name: str, problems: list[str]) -> Gpu | None:
    if not name:
        problems.append(f"names no GPU: {_FORM}")
    elif re.search(r"[+,;&/]", name):
        problems.append(f"{name!r} mixes GPU types: a machine has one; plan for each type on its own")
    elif _MIG.search(name):
        problems.append(
            f"{name!r} is a MIG slice: a process sees one slice and slices have no peer-to-peer, so only one can "
            "train; describe the slice as a GPU of its own (its memory, multiprocessors and share of the peaks) in "
            "gpus/NAME.toml of the user folder and plan 1xNAME"
        )
    else:
        return _known_gpu(name, problems)
    return None


def _known_gpu(name: str, problems: list[str]) -> Gpu | None:
    try:
        return load_gpu(name)
    except UnknownNameError as error:
        if not problems:
            raise
        problems.extend(error.problems)
        return None


def _network(text: str, problems: list[str]) -> tuple[str | None, float | None]:
    found = _LINK.fullmatch(text)
    if not found or found["kind"].lower() not in NETWORKS or float(found["gbit"]) == 0:
        problems.append(f"{text!r} is not a network: {_NETWORK_FORM}")
        return None, None
    ports = _count(found["ports"] or "1", problems)
    gbit = float(found["gbit"])
    prefix = f"{ports}x" if ports > 1 else ""
    return f"{prefix}{found['kind'].lower()}{gbit:.15g}", ports * gbit * 1e9 / 8
