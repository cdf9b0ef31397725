"""Peak memory by the closed form of the literature: 16 bytes a parameter plus activations by a rule of thumb.

Source: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (2022), without parallelism:
a layer keeps s b h (34 + 5 a s / h) bytes, 34 s b h where the attention core is recomputed (as fused attention does),
2 s b h where all of it is; embedding and head keep s b h (1 + 4 (1 + v / h)). Its bytes are of 16-bit operands; 32-bit
ones double the layers'. s: length, b: micro-batch, h: width, a: heads, v: vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from calibration.scores import Score, peak_scores, with_peak
from calibration.verdicts import Verdicts, decided, limit_bytes, oom_scores
from profiles.schema import Measurement, Profile, Recipe, Workload
from simulator.techniques.checkpointing import checkpointed_blocks
from simulator.techniques.precision import PRECISIONS

FloatArray = NDArray[np.float64]
STATE_BYTES_PER_PARAM = 16.0
"""Weights, gradients, two moments and, in mixed precision, master weights."""
WIDTHS = ("hidden_size", "n_embd", "d_model")


def peak_bytes(workload: Workload, recipe: Recipe) -> float | None:
    """Bytes at the peak; ``None`` for a model without a width and heads in its config."""
    width = next((workload.config[name] for name in WIDTHS if name in workload.config), None)
    if width is None or workload.heads is None:
        return None
    lengths = _lengths(workload, recipe)
    kept = sum(_layers_bytes(recipe, s, width, workload.heads, workload.layers / len(lengths)) for s in lengths)
    vocabulary = workload.config.get("vocab_size", 0)
    head = lengths[-1] * recipe.micro_batch * width * (1 + 4 * (1 + vocabulary / width))
    return float(STATE_BYTES_PER_PARAM * workload.params + kept + head)


def _lengths(workload: Workload, recipe: Recipe) -> list[int]:
    """One length a stack: of the encoder and the decoder where there are both."""
    seq = workload.seq if workload.fixed_seq else recipe.seq or workload.seq
    if workload.decoder_seq is None:
        return [seq]
    return [seq, recipe.decoder_seq or recipe.seq or workload.decoder_seq]


def _layers_bytes(recipe: Recipe, seq: int, width: int, heads: int, layers: float) -> float:
    """What a stack of layers keeps; with checkpointing, one layer at a time is whole again."""
    scale = seq * recipe.micro_batch * width * PRECISIONS[recipe.precision].bits / 16
    core = 5 * heads * seq / width if recipe.attention == "eager" else 0.0
    dropped = checkpointed_blocks(recipe.checkpointing, round(layers))
    return float(scale * ((layers - dropped) * (34 + core) + dropped * 2 + (34 + core if dropped else 0.0)))


def closed_form_scores(
    records: Sequence[Measurement], workloads: Mapping[str, Workload], profile: Profile
) -> dict[str, object]:
    """Scores of memory and of out-of-memory as the model gets them, without records that no formula is for."""
    known = [r for r in records if peak_bytes(workloads[r.model], r.recipe) is not None]
    return {"memory": _memory(with_peak(known), workloads), "oom": _oom(decided(known), workloads, profile)}


def _memory(records: Sequence[Measurement], workloads: Mapping[str, Workload]) -> Score | None:
    return peak_scores(_peaks(records, workloads), [r.peak_bytes for r in records])


def _peaks(records: Sequence[Measurement], workloads: Mapping[str, Workload]) -> FloatArray:
    return np.array([peak_bytes(workloads[r.model], r.recipe) or 0.0 for r in records])


def _oom(records: Sequence[Measurement], workloads: Mapping[str, Workload], profile: Profile) -> dict[str, object]:
    load = _peaks(records, workloads) / limit_bytes(profile)
    ran = np.array([r.status == "ok" for r in records], dtype=bool)
    return oom_scores(Verdicts(load=load, fits=load <= 1.0, ran=ran))
