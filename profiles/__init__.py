"""What is known about the world: types of everything stored, hardware, prices, models, traces, profiles, records.

Data and its types, no arithmetic. The types are in ``profiles.schema``, the errors in ``profiles.errors``.
"""

from profiles.machines import canonical, parse_machine
from profiles.store import (
    append_measurement,
    energy,
    gpu_names,
    home,
    load_gpu,
    load_preset,
    load_profile,
    load_workload,
    measurement_identity,
    preset_names,
    prices,
    profile_names,
    read_measurements,
    rent_price,
    save_profile,
    save_workload,
)

__all__ = [
    "append_measurement",
    "canonical",
    "energy",
    "gpu_names",
    "home",
    "load_gpu",
    "load_preset",
    "load_profile",
    "load_workload",
    "measurement_identity",
    "parse_machine",
    "preset_names",
    "prices",
    "profile_names",
    "read_measurements",
    "rent_price",
    "save_profile",
    "save_workload",
]
