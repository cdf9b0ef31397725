"""Sequence: positions per sample, of the encoder (or the only stack) and of a decoder of its own."""

from __future__ import annotations

from profiles.schema import Recipe, Workload
from simulator.case import Case
from simulator.techniques.base import Refusal, parse_whole


class SeqTechnique:
    """The run's length, else the model's own training length. Any length counts, not only powers of two."""

    knob = "seq"
    allowed = "a whole number of positions from 1"

    def default(self, case: Case) -> int:
        """The run's, else the model's."""
        return case.run.seq or case.workload.seq

    def values(self, case: Case) -> tuple[int, ...]:
        """The default alone: another length is another run."""
        return (self.default(case),)

    def parse(self, text: str) -> int:
        """A length from 1."""
        return parse_whole(self.knob, text)

    def refuse(self, recipe: Recipe, case: Case) -> Refusal | None:
        """Lengths that the model cannot take."""
        return _refuse_length(self.knob, case.seq(recipe), case.workload.seq, case.workload)


class DecoderSeqTechnique:
    """The run's decoder length, else the encoder's if that was chosen, else the model's; none without a decoder."""

    knob = "decoder_seq"
    allowed = "a whole number of positions from 1, for a model with an encoder and a decoder"

    def default(self, case: Case) -> int | None:
        """As above, ``None`` without a decoder of its own."""
        fixed = case.fixed.get("seq")
        return case.decoder_seq(Recipe(seq=fixed if isinstance(fixed, int) else None)) or None

    def values(self, case: Case) -> tuple[int | None, ...]:
        """The default alone."""
        return (self.default(case),)

    def parse(self, text: str) -> int:
        """A length from 1."""
        return parse_whole(self.knob, text)

    def refuse(self, recipe: Recipe, case: Case) -> Refusal | None:
        """A decoder length for a model without one, or lengths that the model cannot take."""
        own = case.workload.decoder_seq
        if own is not None:
            return _refuse_length(self.knob, case.decoder_seq(recipe), own, case.workload)
        if recipe.decoder_seq is None and case.run.decoder_seq is None:
            return None
        reason = f"{case.workload.name} has one stack and no decoder_seq; its length is seq"
        return Refusal(knob=self.knob, rule="decoder_seq_needs_decoder", reason=reason)


def _refuse_length(knob: str, length: int, own: int, workload: Workload) -> Refusal | None:
    """Why a length is illegal: an image's size fixes it, or a learned position table ends before it."""
    if workload.fixed_seq and length != own:
        reason = f"{workload.name} has {own} positions, fixed by its config, not {length}"
        return Refusal(knob=knob, rule="seq_fixed_by_config", reason=reason, nearest=f"{knob}={own}")
    if not workload.fixed_seq and workload.max_seq is not None and length > workload.max_seq:
        reason = f"{knob} {length} is beyond the position table of {workload.name}, which ends at {workload.max_seq}"
        return Refusal(knob=knob, rule="seq_beyond_positions", reason=reason, nearest=f"{knob}={workload.max_seq}")
    return None
