"""The machine under us, as a ``Machine``."""

from __future__ import annotations

import os
from dataclasses import replace

from profiles.errors import CampaignError, UnknownNameError
from profiles.machines import parse_machine
from profiles.schema import Machine
from profiles.store import load_gpu


def this_device() -> str:
    """``cuda`` if torch sees a GPU here, else ``cpu``."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def this_machine() -> Machine:
    """One device of this host, with the host's memory and cores. Calibration measures one device.

    Raises:
        CampaignError: the GPU is none that a data sheet is shipped for; says how to add one.
    """
    if this_device() == "cpu":
        return replace(parse_machine("cpu"), host_memory_bytes=host_memory_bytes(), host_cores=os.cpu_count())
    import torch

    name = torch.cuda.get_device_name(0)
    try:
        gpu = load_gpu(name)
    except UnknownNameError as error:
        raise CampaignError(f"{error}\nAdd a GPU file for {name!r} (CONTRIBUTING, 'a GPU') and calibrate again.") from None
    total = torch.cuda.get_device_properties(0).total_memory
    machine = parse_machine(f"1x{gpu.name}")
    return replace(
        machine, gpu=replace(machine.gpu, memory_bytes=int(total)), host_memory_bytes=host_memory_bytes(),
        host_cores=os.cpu_count(),
    )  # fmt: skip


def host_memory_bytes() -> int:
    """Physical memory of this host in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
