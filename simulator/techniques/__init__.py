"""Techniques: the knobs of a recipe, one file each, listed once in ``TECHNIQUES``.

Their order is the order of the search (first varies slowest) and the order in which rules are asked.
"""

from __future__ import annotations

from simulator.techniques.attention import AttentionTechnique
from simulator.techniques.base import Refusal, Technique, Value
from simulator.techniques.batch import GradAccumTechnique, MicroBatchTechnique
from simulator.techniques.checkpointing import CheckpointingTechnique
from simulator.techniques.compile import CompileTechnique
from simulator.techniques.optimizer import OptimizerTechnique
from simulator.techniques.precision import PrecisionTechnique
from simulator.techniques.sequence import DecoderSeqTechnique, SeqTechnique

__all__ = ["BATCH_KNOBS", "TECHNIQUES", "Refusal", "Technique", "Value"]

TECHNIQUES: tuple[Technique, ...] = (
    SeqTechnique(),
    DecoderSeqTechnique(),
    PrecisionTechnique(),
    AttentionTechnique(),
    CompileTechnique(),
    CheckpointingTechnique(),
    OptimizerTechnique(),
    MicroBatchTechnique(),
    GradAccumTechnique(),
)

BATCH_KNOBS = ("micro_batch", "grad_accum")
"""Knobs that the search walks together, since the global batch ties them."""
