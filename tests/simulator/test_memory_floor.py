"""No shipped model under any choice is foretold to need less than its weights and one copy of its logits."""

from itertools import product

import numpy as np
import pytest

from profiles.schema import Fit
from profiles.store import load_workload, preset_names
from simulator.components import Choice
from simulator.memory import OPTIMIZER_STEP, memory, moments_of

WEIGHT_BYTES = {"fp32": 4, "bf16": 4, "bf16_pure": 2}
NUMERICS = {"fp32": "fp32", "bf16": "amp", "bf16_pure": "pure"}
CASTS_LOGITS_TO_FP32 = {"causal_lm"}
CLASSES = 1000
MICRO_BATCHES = (1.0, 3.0, 32.0, 500.0)
LENGTHS = (100.0, 512.0, 2048.0, 16384.0)


def choices(workload):
    """Every traced variant with every way to checkpoint that it takes part in."""
    traced = {(variant.numerics, variant.attention, variant.checkpointed) for variant in workload.variants}
    for precision, attention, checkpointing in product(NUMERICS, ("sdpa", "eager"), ("none", "full", "every_2")):
        needed = {"none": {False}, "full": {True}, "every_2": {False, True}}[checkpointing]
        if {(NUMERICS[precision], attention, how) for how in needed} <= traced:
            yield Choice(
                precision=precision,
                attention=attention,
                compile="off",
                checkpointing=checkpointing,
                optimizer="adamw_fused",
            )


def sizes(workload):
    """Micro-batch, length, decoder's length."""
    lengths = [float(workload.seq)] if workload.fixed_seq else [s for s in LENGTHS if s <= (workload.max_seq or s)]
    shares = (0.2, 1.0) if workload.decoder_seq else (0.0,)
    return np.array([(b, s, np.floor(share * s)) for b, s, share in product(MICRO_BATCHES, lengths, shares)])


def logits_bytes(workload, precision, rows):
    batch, seq, decoder_seq = rows.T
    numbers = {
        "causal_lm": batch * seq * workload.config.get("vocab_size", 0),
        "masked_lm": batch * seq * workload.config.get("vocab_size", 0),
        "seq2seq_lm": batch * decoder_seq * workload.config.get("vocab_size", 0),
        "image_classification": batch * CLASSES,
        "contrastive": batch**2,
    }[workload.task]
    return numbers * (4 if workload.task in CASTS_LOGITS_TO_FP32 else WEIGHT_BYTES[precision])


@pytest.mark.parametrize("name", preset_names())
def test_the_peak_holds_the_weights_and_the_logits(name):
    workload = load_workload(name)
    rows, seen = sizes(workload), set()
    for choice in choices(workload):
        weights = workload.params * WEIGHT_BYTES[choice.precision]
        logits = logits_bytes(workload, choice.precision, rows)
        assert (logits > 0).all()
        for accumulates in (False, True):
            steps = np.full(len(rows), accumulates)
            found = memory(workload, choice, rows, steps, Fit(), 1e18)
            assert (found.peak_bytes >= weights + logits).all(), choice
            moving = [m.moving for m in moments_of(workload, choice, rows, steps) if m.phase != OPTIMIZER_STEP]
            assert (np.min(moving, axis=0) >= -1.0).all(), choice
            passed = np.max([part[:, 1:].sum(axis=1) for part in moving], axis=0)
            assert (passed >= logits).all(), "beside gradients, at some moment of the passes themselves"
        seen.add((NUMERICS[choice.precision], choice.attention, choice.checkpointing != "none"))
    assert seen == {(v.numerics, v.attention, v.checkpointed) for v in workload.variants}
