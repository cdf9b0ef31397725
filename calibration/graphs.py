"""Whether a compiled model really ran compiled: what the graph capture of torch counted in this process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Graphs:
    """Counts since the process began: graphs captured, breaks between them, frames tried and frames captured."""

    captured: int
    breaks: int
    frames: int
    frames_captured: int

    @property
    def fell_back(self) -> bool:
        """Whether nothing ran compiled."""
        return self.captured == 0 or self.frames_captured == 0

    def describe(self, before_timing: Graphs) -> str:
        """What a record's note says: graphs and breaks, and captures that happened while timing."""
        text = f"compiled into {self.captured} graphs with {self.breaks} graph breaks"
        late = self.captured - before_timing.captured
        return f"{text}; {late} of them captured again while timing" if late else text


def strict_compile() -> None:
    """Make torch raise where it would quietly run eagerly: a failing backend, or too many recompilations."""
    import torch._dynamo

    torch._dynamo.config.disable = False
    torch._dynamo.config.suppress_errors = False
    torch._dynamo.config.fail_on_recompile_limit_hit = True


def count_graphs() -> Graphs:
    """The counts of this process now."""
    from torch._dynamo.utils import counters

    return Graphs(
        captured=counters["stats"]["unique_graphs"],
        breaks=sum(counters["graph_break"].values()),
        frames=counters["frames"]["total"],
        frames_captured=counters["frames"]["ok"],
    )
