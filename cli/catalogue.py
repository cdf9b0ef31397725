"""``models``, ``machines`` and ``prices``: what is known, with its source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import profiles
from cli import contract

if TYPE_CHECKING:
    from profiles.schema import Gpu, Preset, Price, Workload


def show_models(as_json: bool) -> None:
    """Every preset."""
    presets = [profiles.load_preset(name) for name in profiles.preset_names()]
    if as_json:
        return contract.show({"models": [{**contract.plain(one), "layers": None} for one in presets]})
    from cli import human, render

    rows = [
        (one.name, one.task, human.count(one.params), f"{one.seq:,}", _trained_on(one), _batch(one)) for one in presets
    ]
    columns = ("model", "task", "params", "seq", "trained on", "batch")
    render.show_rows(columns, rows, right=columns[2:], folds=["model"])
    render.show_lines(["", "Published runs where there is one; sources: paceline models --json."])


def _trained_on(preset: Preset) -> str:
    from cli import human

    run = preset.run
    if run is None:
        return ""
    return f"{human.count(run.tokens)} tokens" if run.tokens else f"{human.count(run.samples)} samples"


def _batch(preset: Preset) -> str:
    return f"{preset.run.global_batch:,}" if preset.run and preset.run.global_batch else ""


def show_model(model: str, as_json: bool) -> None:
    """One model's counts, traced now if nobody traced it before."""
    from calibration.question import load_or_trace

    workload = load_or_trace(model)
    facts = _facts(workload)
    if as_json:
        return contract.show(facts)
    from cli import human, render

    shown = {
        **facts,
        "params": f"{human.count(workload.params)} ({workload.params:,})",
        "active_params": f"{human.count(workload.active_params)} ({workload.active_params:,})",
        "flops_per_token": f"{facts['flops_per_token']:.4g} forward and backward, causal attention at half",
    }
    rows = [(name, str(value)) for name, value in shown.items() if value not in (None, [], {})]
    render.show_rows(("", workload.name), rows, folds=[workload.name])


def _facts(workload: Workload) -> contract.Json:
    from simulator.outlook import model_flops

    positions = workload.seq + (workload.decoder_seq or 0)
    flops = model_flops(workload, workload.seq, workload.decoder_seq or 0)
    return {
        "name": workload.name,
        "task": workload.task,
        "model_type": workload.model_type,
        "params": workload.params,
        "active_params": workload.active_params,
        "embedding_params": workload.embedding_params,
        "layers": workload.layers,
        "heads": workload.heads,
        "seq": workload.seq,
        "decoder_seq": workload.decoder_seq,
        "max_seq": workload.max_seq,
        "flops_per_token": flops / positions,
        "unavailable": workload.unavailable,
        "warnings": list(workload.warnings),
    }


def show_gpus(as_json: bool) -> None:
    """Every GPU, and every machine that has a profile."""
    gpus = [profiles.load_gpu(name) for name in profiles.gpu_names()]
    known = profiles.profile_names()
    if as_json:
        return contract.show({"gpus": gpus, "profiles": known})
    from cli import human, render

    rows = [
        (one.name, human.gib(one.memory_bytes), *map(human.count, _rates(one)), human.digits(one.power_w))
        for one in gpus
    ]
    columns = ("GPU", "GiB", "B/s", "bf16 FLOP/s", "fp16", "fp32", "W")
    render.show_rows(columns, rows, right=columns[1:], folds=["GPU"])
    render.show_lines(
        [
            "",
            "Dense rates from data sheets; sources: paceline machines 1xNAME.",
            f"Profiles: {', '.join(known) or 'none'}",
        ]
    )


def _rates(gpu: Gpu) -> tuple[float | None, ...]:
    return gpu.memory_bytes_per_s, gpu.bf16_flops_per_s, gpu.fp16_flops_per_s, gpu.fp32_flops_per_s


def show_machine(text: str, as_json: bool) -> None:
    """One machine and the best profile for it."""
    from calibration.question import best_profile

    machine = profiles.parse_machine(text)
    profile = best_profile(machine)
    if as_json:
        return contract.show({**contract.plain(machine), "profile": contract.profile_json(profile)})
    from cli import render

    rows = [(field, _said(value)) for field, value in contract.plain(machine.gpu).items() if value not in ("", [])]
    nodes = f"{machine.nodes} × {machine.gpus_per_node} GPUs" + (f", {machine.network}" if machine.network else "")
    render.show_rows(("", machine.name), [("nodes", nodes), *rows], folds=[machine.name])
    render.show_lines(["", render.profile_line(profile)])


def _said(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(str(part) for part in value)
    if value is None:
        return "not supported"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value) if isinstance(value, bool | str) else f"{value:,}"


def show_prices(as_json: bool) -> None:
    """Every price and the energy defaults."""
    known = profiles.prices()
    energy = profiles.energy()
    if as_json:
        return contract.show({"prices": known, "energy": energy, "used": _rents()})
    from cli import human, render

    rows = [
        (
            one.gpu,
            one.provider,
            human.usd(one.rent_usd_per_gpu_h),
            human.usd(one.purchase_usd_per_gpu),
            one.basis,
            one.date,
        )
        for one in known
    ]
    columns = ("GPU", "provider", "$/h", "buy", "basis", "date")
    render.show_rows(columns, rows, right=("$/h", "buy"), folds=["provider"])
    used = ", ".join(f"{gpu} {human.usd(rent.rent_usd_per_gpu_h)}" for gpu, rent in _rents().items() if rent)
    render.show_lines(
        [
            "",
            f"rents used per GPU-hour unless --price is given: {used}",
            f"electricity {energy.electricity_usd_per_kwh:g} USD/kWh, grid {energy.grid_g_co2e_per_kwh:g} g CO2e/kWh, "
            f"PUE {energy.pue:g}, host {energy.host_w_per_gpu:g} W per GPU ({energy.date}; {energy.source})",
            "sources of prices: paceline prices --json",
        ]
    )


def _rents() -> dict[str, Price | None]:
    return {name: profiles.rent_price(name) for name in profiles.gpu_names()}
