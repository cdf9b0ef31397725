"""Types of everything that is stored: models, GPUs, machines, prices, recipes, workloads, measurements, profiles.

Frozen dataclasses without arithmetic. Validation happens at the file edge, in ``profiles.store``.
Units are SI and stand in every name; ``_per_gpu``, ``_per_step`` and the like give the basis.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

Config = dict[str, Any]
_STRICT = {"extra": "forbid"}

Task = Literal["causal_lm", "masked_lm", "seq2seq_lm", "image_classification", "contrastive"]
Provenance = Literal["measured", "predicted", "transferred", "datasheet"]
Numerics = Literal["fp32", "amp", "pure"]
Phase = Literal["forward", "backward", "recompute"]
Status = Literal["ok", "oom", "timeout", "crash", "refused", "invalid"]
OpKind = Literal[
    "matmul",
    "bmm",
    "conv",
    "attention",
    "elementwise",
    "cast",
    "strided",
    "concat",
    "softmax",
    "norm",
    "reduce",
    "embedding",
    "dropout",
    "fill",
    "other",
    "view",
]

Term = tuple[float, int, int, int]
"""``(coefficient, i, j, k)``: coefficient · micro_batch^i · seq^j · decoder_seq^k."""
Poly = tuple[Term, ...]


# ------------------------------------------------------------------------------------------------ hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as the data sheet describes it; rates are dense (no 2:4 sparsity) and of one schedulable device.

    ``None`` means that the device cannot do it. ``link_bytes_per_s`` is one direction of the GPU's own
    GPU-to-GPU link (NVLink, Infinity Fabric; else PCIe); ``host_bytes_per_s`` is one direction to the host.
    """

    __pydantic_config__: ClassVar[Any] = _STRICT
    name: str
    aliases: tuple[str, ...] = ()
    kind: Literal["cuda", "rocm", "cpu"] = "cuda"
    compute_capability: float | None
    fp32_flops_per_s: float
    tf32_flops_per_s: float | None
    fp16_flops_per_s: float | None
    bf16_flops_per_s: float | None
    memory_bytes: int
    memory_bytes_per_s: float
    power_w: float
    multiprocessors: int
    link: str
    link_bytes_per_s: float
    host_bytes_per_s: float
    peer_to_peer: bool = True
    basis: str
    source: str
    date: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """GPUs of one type × GPUs per node × nodes. ``network_bytes_per_s_per_node`` is one direction, all ports."""

    __pydantic_config__: ClassVar[Any] = _STRICT
    name: str
    gpu: Gpu
    gpus_per_node: int = 1
    nodes: int = 1
    network: str | None = None
    network_bytes_per_s_per_node: float | None = None
    host_memory_bytes: int | None = None
    host_cores: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Money for one GPU: rent per GPU-hour or purchase, in USD of ``date``."""

    __pydantic_config__: ClassVar[Any] = _STRICT
    gpu: str
    provider: str
    rent_usd_per_gpu_h: float | None = None
    purchase_usd_per_gpu: float | None = None
    basis: str
    source: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """Defaults for turning watts into money and carbon."""

    __pydantic_config__: ClassVar[Any] = _STRICT
    electricity_usd_per_kwh: float
    grid_g_co2e_per_kwh: float
    pue: float
    host_w_per_gpu: float
    basis: str
    source: str
    date: str


# -------------------------------------------------------------------------------------------------- models


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A published pre-training run. ``global_batch`` counts samples per optimizer step over all ranks."""

    __pydantic_config__: ClassVar[Any] = _STRICT
    tokens: float | None = None
    samples: float | None = None
    seq: int | None = None
    decoder_seq: int | None = None
    global_batch: int | None = None
    source: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A named model: its transformers config as facts, the source of those facts, and its published run."""

    __pydantic_config__: ClassVar[Any] = _STRICT
    name: str
    aliases: tuple[str, ...] = ()
    task: Task
    config: Config
    params: int
    seq: int
    decoder_seq: int | None = None
    source: str
    date: str
    note: str = ""
    run: TrainingRun | None = None


# ------------------------------------------------------------------------------------------------ workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """Operations of one kind in one place, as polynomials in micro-batch, sequence and decoder sequence.

    ``stack`` is the index of the repeated block it lives in, −1 outside. ``launches`` counts kernels of one block
    (or of the outside part, where it may be negative: the first or last block does less) in one micro-batch.
    ``bytes`` are read plus written by all of them. Only products, convolutions and attention keep ``dims``: (batch,
    m, n, k) for products (m rows of output, n columns), (batch × heads, query length, key length, head size) for
    attention; and then ``flops`` is of all ``launches``. ``bits`` is the width of the operands. ``pad``: what the
    leading dimensions of the operands are a multiple of (``aligned`` to 16 bytes, ``even`` number of elements, or
    ``odd``).
    """

    __pydantic_config__: ClassVar[Any] = _STRICT
    kind: OpKind
    phase: Phase
    stack: int = -1
    bits: Literal[16, 32] = 32
    launches: Poly
    bytes: Poly = ()
    flops: Poly = ()
    dims: tuple[Poly, Poly, Poly, Poly] | None = None
    pad: Literal["aligned", "even", "odd"] = "aligned"
    causal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPoint:
    """One moment of a micro-batch at which memory may peak; all polynomials are bytes beyond the static parts.

    ``activations``, ``logits``, ``temporary`` and ``gradients`` add up to the live bytes at the traced depth of three
    blocks a stack; ``gradients`` is what the backward pass has produced so far in a step without accumulation,
    ``gradients_in_flight`` the part of it that an accumulating step holds beside its full gradients.
    ``block_activations[i]`` and ``block_gradients[i]`` are added once per block of stack i beyond the third;
    ``block_activations`` is empty of terms where those blocks hold nothing (not run yet, or walked back).
    """

    __pydantic_config__: ClassVar[Any] = _STRICT
    label: str
    activations: Poly = ()
    logits: Poly = ()
    temporary: Poly = ()
    gradients: Poly = ()
    gradients_in_flight: Poly = ()
    block_activations: tuple[Poly, ...] = ()
    block_gradients: tuple[Poly, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What the device does under one choice of numerics, attention and checkpointing.

    ``block_saved[i]``: bytes that one middle block of stack i keeps for its backward pass.
    """

    __pydantic_config__: ClassVar[Any] = _STRICT
    numerics: Numerics
    attention: Literal["eager", "sdpa"]
    checkpointed: bool
    ops: tuple[Op, ...]
    memory: tuple[MemoryPoint, ...]
    block_saved: tuple[Poly, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A run of identical blocks; ``depth`` of them in the real model. Traced at three."""

    __pydantic_config__: ClassVar[Any] = _STRICT
    name: str
    depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A traced model: everything the simulator needs to know of it, without torch.

    ``params`` counts unique parameters (tied once), ``active_params`` those that one token meets in a mixture of
    experts; ``parameter_tensors`` is their number; ``embedding_params`` are input look-up tables that take part in no
    product. ``seq`` and ``decoder_seq`` are the default lengths; ``fixed_seq`` forbids others (vision).
    ``tokens_per_sample`` is in units of positions, encoder and decoder together, at the default lengths.
    """

    __pydantic_config__: ClassVar[Any] = _STRICT
    name: str
    task: Task
    model_type: str
    config: Config
    config_hash: str
    params: int
    active_params: int
    embedding_params: int
    parameter_tensors: int
    largest_parameter: int
    buffer_bytes: int = 0
    layers: int
    heads: int | None = None
    seq: int
    decoder_seq: int | None = None
    fixed_seq: bool = False
    max_seq: int | None = None
    stacks: tuple[Stack, ...] = ()
    variants: tuple[Variant, ...]
    unavailable: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    transformers_version: str
    torch_version: str
    schema: int = 1


# ----------------------------------------------------------------------------------------- recipe and result


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One point of the configuration space. A knob that a stored record does not name had its default here."""

    __pydantic_config__: ClassVar[Any] = _STRICT
    micro_batch: int = 1
    grad_accum: int = 1
    seq: int | None = None
    decoder_seq: int | None = None
    precision: str = "bf16"
    attention: str = "sdpa"
    compile: str = "off"
    checkpointing: str = "none"
    optimizer: str = "adamw_fused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """Versions a measurement was taken with; ``None`` where the package took no part."""

    __pydantic_config__: ClassVar[Any] = _STRICT
    paceline: str | None = None
    python: str | None = None
    torch: str | None = None
    cuda: str | None = None
    transformers: str | None = None
    deepspeed: str | None = None
    driver: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The device and host as they were during a measurement. Clocks in MHz, power in W, both medians while timing."""

    __pydantic_config__: ClassVar[Any] = _STRICT
    name: str
    memory_bytes: int | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle_reasons: tuple[str, ...] = ()
    host: str | None = None
    threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One real run of one recipe, failures included.

    ``step_s`` is the median over ``samples_s``, each the synchronised seconds per optimizer step of one timed window
    of ``steps_per_sample`` whole steps at ``measured_grad_accum``. Where those differ from the recipe's, ``step_s``
    follows from two smaller accumulations and ``note`` says so. ``session`` names one uptime of one host.
    ``peak_bytes`` is torch's peak allocated, ``peak_reserved_bytes`` what the allocator held, ``peak_device_bytes``
    what the driver saw (CPU: resident set).
    """

    __pydantic_config__: ClassVar[Any] = _STRICT
    model: str
    config_hash: str | None = None
    machine: str
    recipe: Recipe
    status: Status
    reason: str | None = None
    step_s: float | None = None
    step_s_low: float | None = None
    step_s_high: float | None = None
    samples_s: tuple[float, ...] = ()
    steps_per_sample: int | None = None
    measured_grad_accum: tuple[int, ...] = ()
    micro_s: float | None = None
    optimizer_s: float | None = None
    compile_s: float | None = None
    peak_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    peak_device_bytes: int | None = None
    memory_kind: str | None = None
    trial_s: float | None = None
    steady: bool | None = None
    started_at: str | None = None
    session: str | None = None
    software: Software = Software()
    device: Device | None = None
    origin: str = "worker"
    note: str = ""
    schema: int = 1


# ------------------------------------------------------------------------------------------------- profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One physical rate or cost of a machine. ``sd_log`` is its standard deviation on the natural log.

    ``basis`` is ``probe`` (measured here), ``datasheet`` (data sheet × a typical efficiency) or ``default``.
    """

    __pydantic_config__: ClassVar[Any] = _STRICT
    value: float
    sd_log: float
    basis: Literal["probe", "datasheet", "default"]
    source: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """What the fit did to one component: ``log_factor`` multiplies its prior seconds; 0 means left at the prior."""

    __pydantic_config__: ClassVar[Any] = _STRICT
    component: str
    log_factor: float
    identified: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Corrections of the time model and how sure it is of them.

    ``covariance`` is of the log factors, rows in the order of ``corrections``. ``noise_sd_log`` is what is left.
    ``interval_scale`` stretches normalised errors so that nominal 90 % covers 90 % (conformal).
    ``host_sessions``: log factor on host time of each session relative to the newest, which the corrections are of.
    ``calibrated``: per knob, the values or the [low, high] range that measurements covered. ``reserved_factor`` is
    reserved ÷ allocated bytes; the ``full`` ones hold where every block is checkpointed.
    """

    __pydantic_config__: ClassVar[Any] = _STRICT
    corrections: tuple[Correction, ...] = ()
    covariance: tuple[tuple[float, ...], ...] = ()
    noise_sd_log: float = 0.0
    host_sessions: dict[str, float] = field(default_factory=dict)
    host_sd_log: float = 0.0
    interval_scale: float = 1.645
    models: tuple[str, ...] = ()
    measurements: int = 0
    calibrated: dict[str, tuple[str, ...]] = field(default_factory=dict)
    memory_factor: float = 1.0
    memory_sd_log: float = 0.03
    reserved_factor: float = 1.03
    reserved_sd_log: float = 0.02
    full_reserved_factor: float = 1.11
    full_reserved_sd_log: float = 0.06
    workspace_bytes: int = 40_000_000
    device_overhead_bytes: int = 600_000_000
    device_overhead_sd_bytes: int = 150_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What is known of one machine: rates with basis and source, the fit, and the measurements behind it."""

    __pydantic_config__: ClassVar[Any] = _STRICT
    machine: Machine
    provenance: Provenance
    rates: dict[str, Rate]
    fit: Fit = Fit()
    software: Software = Software()
    device: Device | None = None
    created_at: str
    measurement_files: tuple[str, ...] = ()
    verified: tuple[Measurement, ...] = ()
    calibration_s: float | None = None
    note: str = ""
    schema: int = 1
