"""What was built, and what this machine has."""

from __future__ import annotations

from dataclasses import dataclass

from specdec_native import _core

__all__ = ["BuildInfo", "CpuInfo", "build_info", "cpu_info"]


@dataclass(frozen=True)
class BuildInfo:
    """How the installed extension was built.

    Attributes:
        version: Version of the package.
        cuda: Whether the CUDA backend is built in.
        cuda_reason: Why it is not.
        cuda_toolkit: Version of the CUDA toolkit it was built with.
        cuda_architectures: Compute capabilities that its kernels were compiled for.
        architectures: Model architectures that can be loaded.
        cpu_levels: Instruction-set levels compiled into the CPU backend.
    """

    version: str
    cuda: bool
    cuda_reason: str
    cuda_toolkit: str
    cuda_architectures: tuple[str, ...]
    architectures: tuple[str, ...]
    cpu_levels: tuple[str, ...]


@dataclass(frozen=True)
class CpuInfo:
    """Instruction-set levels of the CPU backend.

    Attributes:
        detected: Levels that this machine has.
        compiled: Levels that this build has.
        active: The level in use; the environment variable ``SPECDEC_CPU_ISA`` forces one.
    """

    detected: tuple[str, ...]
    compiled: tuple[str, ...]
    active: str


def build_info() -> BuildInfo:
    """Says what was built."""
    cuda = _core.cuda_info()
    return BuildInfo(
        version=_core.__version__,
        cuda=cuda.built,
        cuda_reason=cuda.reason,
        cuda_toolkit=cuda.toolkit,
        cuda_architectures=tuple(cuda.architectures.split()),
        architectures=tuple(_core.supported_architectures()),
        cpu_levels=tuple(_core.cpu_info().compiled),
    )


def cpu_info() -> CpuInfo:
    """Says which instruction sets are there and in use.

    Raises:
        BackendUnavailableError: ``SPECDEC_CPU_ISA`` names an unknown or absent level.
    """
    info = _core.cpu_info()
    return CpuInfo(tuple(info.detected), tuple(info.compiled), info.active)
