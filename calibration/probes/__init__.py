"""Micro-measurements that give a machine's physical rates, seconds each."""

from __future__ import annotations

from collections.abc import Sequence

from calibration.probes.attention import AttentionProbe
from calibration.probes.base import Probe, ProbeResult, Row
from calibration.probes.bmm import BmmProbe
from calibration.probes.conv import ConvProbe
from calibration.probes.copies import ConcatProbe, FillProbe, StridedProbe
from calibration.probes.dispatch import DispatchProbe
from calibration.probes.dispatch_optimizer import DispatchOptimizerProbe
from calibration.probes.elementwise import ElementwiseProbe
from calibration.probes.kernel_floor import KernelFloorProbe
from calibration.probes.lookups import DropoutProbe, EmbeddingProbe
from calibration.probes.matmul import MatmulProbe
from calibration.probes.optimizer import OptimizerProbe
from calibration.probes.report import ProbeReport, Progress, read_report, run_all, write_report
from calibration.probes.rows import NormProbe, ReduceProbe, SoftmaxProbe
from calibration.probes.transfer import TransferProbe
from calibration.probes.vocabulary import VocabularyProbe

__all__ = ["PROBES", "Probe", "ProbeReport", "ProbeResult", "Row", "read_report", "run_probes", "write_report"]

PROBES: tuple[Probe, ...] = (
    KernelFloorProbe(),
    DispatchProbe(),
    DispatchOptimizerProbe(),
    MatmulProbe(),
    AttentionProbe(),
    BmmProbe(),
    VocabularyProbe(),
    ElementwiseProbe(),
    StridedProbe(),
    ConcatProbe(),
    SoftmaxProbe(),
    NormProbe(),
    ReduceProbe(),
    EmbeddingProbe(),
    DropoutProbe(),
    FillProbe(),
    ConvProbe(),
    OptimizerProbe(),
    TransferProbe(),
)


def run_probes(
    device: str, budget_s: float = 60.0, on_progress: Progress | None = None, names: Sequence[str] | None = None
) -> ProbeReport:
    """Runs all probes, or those named, on a torch device within about ``budget_s`` seconds; grids shrink with it.

    Raises:
        UnknownNameError: a name that no probe has.
        InvalidInputError: a device that is not there, or a budget that is not positive.
    """
    return run_all(PROBES, device, budget_s, on_progress, names)
