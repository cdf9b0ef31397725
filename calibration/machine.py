"""The machine under us, as a ``Machine``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

from profiles.errors import CampaignError, UnknownNameError
from profiles.machines import parse_machine
from profiles.schema import Machine
from profiles.store import load_gpu


def this_device() -> str:
    """``cuda`` if torch sees a GPU here, else ``cpu``. Asks the driver's library, so no context is made."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def this_machine() -> Machine:
    """One device of this host, with the host's memory and cores. Calibration measures one device.

    Raises:
        CampaignError: the GPU is none that a data sheet is shipped for; says how to add one.
    """
    if this_device() == "cpu":
        return replace(parse_machine("cpu"), host_memory_bytes=host_memory_bytes(), host_cores=os.cpu_count())
    name, total = _cuda_device()
    try:
        gpu = load_gpu(name)
    except UnknownNameError as error:
        raise CampaignError(
            f"{error}\nAdd a GPU file for {name!r} (CONTRIBUTING, 'a GPU') and calibrate again."
        ) from None
    machine = parse_machine(f"1x{gpu.name}")
    return replace(
        machine,
        gpu=replace(machine.gpu, memory_bytes=total),
        host_memory_bytes=host_memory_bytes(),
        host_cores=os.cpu_count(),
    )


def _cuda_device() -> tuple[str, int]:
    """The first GPU's name and bytes, asked in a process of its own: a CUDA context here would take from its memory."""
    done = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, check=False)
    if done.returncode:
        raise CampaignError(f"the GPU does not answer: {done.stderr.strip()[-400:]}")
    name, total = json.loads(done.stdout)
    return str(name), int(total)


_ASK = "import json, torch; p = torch.cuda.get_device_properties(0); print(json.dumps([p.name, p.total_memory]))"


def host_memory_bytes() -> int:
    """Physical memory of this host in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
