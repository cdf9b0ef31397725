"""From what a person typed to a ``Case``: the model's workload, the machine's best profile, the price.

Imports torch only when a model has to be traced first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from profiles import store
from profiles.errors import InvalidInputError, PacelineError, UnknownNameError
from profiles.machines import parse_machine
from profiles.schema import Machine, Preset, Price, Profile, Provenance, Workload
from simulator.case import Case, Run
from simulator.rates import datasheet_profile


def load_or_trace(model: str) -> Workload:
    """The model's workload: shipped, cached from an earlier question, or traced now and cached.

    Raises:
        UnknownNameError: nothing goes by that name.
        InvalidInputError: the file is no config, or the model cannot be traced.
    """
    known = _cached(model)
    if known is not None:
        return known
    from calibration.models import resolve

    return workload_of(resolve(model))


def workload_of(preset: Preset) -> Workload:
    """The preset's workload: stored, or traced now and stored.

    Raises:
        InvalidInputError: the model cannot be traced.
    """
    from calibration.trace import config_hash, trace

    cached = store.load_workload(preset.name)
    if cached is not None and cached.config_hash == config_hash(preset):
        return cached
    workload = trace(preset)
    store.save_workload(workload)
    return workload


def _cached(model: str) -> Workload | None:
    """A preset's stored workload, without torch; ``None`` for files, unknown names and presets not traced yet."""
    try:
        preset = store.load_preset(model)
    except UnknownNameError:
        return None
    return store.load_workload(preset.name)


def best_profile(machine: Machine, name: str | None = None) -> Profile:
    """The profile that knows the machine best: its own, else that of one such GPU, else the data sheet.

    Raises:
        InvalidInputError: ``name`` is given and there is no such profile, or a profile file is damaged.
    """
    if name is not None:
        named = store.load_profile(name)
        if named is None:
            raise InvalidInputError(f"profile {name}", [f"no such profile; known: {', '.join(store.profile_names())}"])
        if named.machine.gpu.name != machine.gpu.name:
            raise InvalidInputError(f"profile {name}", [f"it is of {named.machine.gpu.name}, not {machine.gpu.name}"])
        moved = named.provenance if named.machine.name == machine.name else _moved(named)
        return replace(named, machine=replace(machine, gpu=named.machine.gpu), provenance=moved)
    own = store.load_profile(machine.name)
    single = own or store.load_profile("cpu" if machine.gpu.kind == "cpu" else f"1x{machine.gpu.name}")
    if single is None:
        return datasheet_profile(machine)
    if own is not None:
        return own
    return replace(single, machine=replace(machine, gpu=single.machine.gpu), provenance=_moved(single))


def _moved(profile: Profile) -> Provenance:
    """What a profile of one GPU is worth on a machine with several of them."""
    return "transferred" if profile.provenance == "measured" else profile.provenance


def build_case(
    model: str,
    machine: str,
    run: Run,
    fixed: Mapping[str, object],
    *,
    price_usd_per_gpu_h: float | None = None,
    profile: str | None = None,
    published_batch: bool = True,
) -> Case:
    """Everything a recipe is judged against. A preset's published run fills what ``run`` leaves open.

    Without ``published_batch`` its global batch does not: one recipe is then judged as it stands.

    Raises:
        InvalidInputError: with the problems of the machine and of the model together.
    """
    problems: list[str] = []
    parsed, workload = None, None
    try:
        parsed = parse_machine(machine)
    except InvalidInputError as error:
        problems += [f"{error.subject}: {problem}" for problem in error.problems]
    try:
        workload = load_or_trace(model)
    except InvalidInputError as error:
        problems += [f"{error.subject}: {problem}" for problem in error.problems]
    if parsed is None or workload is None:
        raise InvalidInputError("question", problems)
    known = best_profile(parsed, profile)
    return Case(
        workload=workload,
        profile=known,
        warnings=tuple(_version_warnings(known)),
        run=published_run(model, run, batch=published_batch),
        fixed=fixed,
        price=_price(parsed, price_usd_per_gpu_h),
        energy=store.energy(),
    )


def _version_warnings(profile: Profile) -> Iterator[str]:
    """What a profile cannot vouch for: several GPUs, and another minor version of torch than is installed."""
    from importlib.metadata import PackageNotFoundError, version

    if profile.machine.gpus_per_node * profile.machine.nodes > 1 and profile.provenance != "measured":
        yield "several GPUs are taken as data-parallel; their exchange of gradients is from the data sheet"
    measured = profile.software.torch
    if measured is None:
        return
    try:
        installed = version("torch")
    except PackageNotFoundError:
        return
    if measured.split(".")[:2] != installed.split(".")[:2]:
        yield f"the profile of {profile.machine.name} was measured with torch {measured}; installed is {installed}"


def published_run(model: str, run: Run, *, batch: bool = True) -> Run:
    """``run`` with the preset's published length, batch and sequence where it says nothing."""
    try:
        known = store.load_preset(model).run
    except PacelineError:
        return run
    if known is None:
        return run
    if run.tokens is None and run.samples is None and run.steps is None:
        run = replace(run, tokens=known.tokens, samples=known.samples if known.tokens is None else None)
    return replace(
        run,
        global_batch=run.global_batch or (known.global_batch if batch else None),
        seq=run.seq or known.seq,
        decoder_seq=run.decoder_seq or (None if run.seq else known.decoder_seq),
    )


def _price(machine: Machine, given_usd_per_gpu_h: float | None) -> Price | None:
    if given_usd_per_gpu_h is None:
        return store.rent_price(machine.gpu.name)
    return Price(
        gpu=machine.gpu.name,
        provider="given",
        rent_usd_per_gpu_h=given_usd_per_gpu_h,
        basis="given by the user",
        source="command line",
        date="",
    )
