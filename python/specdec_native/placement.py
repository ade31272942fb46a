"""Where models run: the devices of a Generator, and whether weights and caches fit there."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from specdec_native import _core
from specdec_native.device_arguments import CUDA_NAME, checked_gpu_layers
from specdec_native.errors import OutOfMemoryError
from specdec_native.inspection import ModelFacts

__all__ = ["Devices", "Place", "same_device"]


@dataclass(frozen=True)
class Place:
    """What a model is loaded on.

    Attributes:
        device: The backend's name.
        layers: So many of the first layers are there, and everything if they are more than the
            model has; the others and the output head are on the CPU. None: everything.
    """

    device: str
    layers: int | None = None


class Devices:
    """The backends of a Generator, each made when it is first asked for."""

    def __init__(self, threads: int | None) -> None:
        """Makes none yet.

        Args:
            threads: Threads of the CPU; None: one per physical core.

        Raises:
            ValueError: `threads` is out of range.
        """
        if threads is not None and (type(threads) is not int or not 1 <= threads <= 1024):
            raise ValueError(f"threads is {threads!r}; it must be a whole number from 1 to 1024")
        self._threads = threads or 0
        self._made: dict[str, _core.Backend] = {}
        # Device -> bytes that loaded models will need there for caches and scratch.
        self._promised: dict[str, int] = {}

    def place(self, device: str, gpu_layers: int | None = None) -> Place:
        """What a `device` and a `gpu_layers` argument mean.

        Raises:
            ValueError: An unknown device, a number that makes no sense, or layers without a device.
        """
        gpu_layers = checked_gpu_layers(gpu_layers)
        if device in ("auto", "cpu", "ref"):
            if gpu_layers:
                raise ValueError(
                    f"gpu_layers is {gpu_layers}, but device={device!r} has no GPU; name one, such "
                    "as device='cuda'"
                )
            # A CUDA device has to be asked for until the backend has been run on one.
            return Place("ref" if device == "ref" else "cpu")
        if not isinstance(device, str) or not CUDA_NAME.fullmatch(device):
            shown = repr(device)[:80]
            raise ValueError(f"device is {shown}; known are 'auto', 'cpu', 'cuda' and 'cuda:N'")
        if gpu_layers == 0:
            return Place("cpu")
        return Place(device, None if gpu_layers in (None, -1) else gpu_layers)

    def backend(self, name: str) -> _core.Backend:
        """The backend of that name.

        Raises:
            BackendUnavailableError: It is not to be had.
        """
        if name not in self._made:
            self._made[name] = _core.make_backend(name, self._threads if name == "cpu" else 1)
        return self._made[name]

    def load(
        self,
        path: str | os.PathLike[str],
        place: Place,
        progress: Callable[[float], None] | None,
        *,
        n_ctx: int | None,
        kv_type: str,
    ) -> _core.Model:
        """Loads a model.

        Args:
            path: The file.
            place: Where it goes.
            progress: Called with the share of the weights that is loaded.
            n_ctx: Positions of the context it will have; None: as `Generator`.
            kv_type: Type of its cache.

        Raises:
            OutOfMemoryError: It does not fit; says how many layers would.
            BackendUnavailableError: The device is not to be had.
            GgufError: The file is damaged or not supported.
        """
        backend = self.backend(place.device)
        free = backend.free_bytes
        if free is not None:
            key = _first_name(place.device)
            promised = self._promised.get(key, 0)
            needed = _checked_fit(str(path), place, free - promised, n_ctx, kv_type)
            self._promised[key] = promised + needed
        if place.layers is None:
            return _core.Model.load(str(path), backend, progress)
        return _core.Model.load(str(path), backend, progress, self.backend("cpu"), place.layers)


def same_device(one: str, other: str) -> bool:
    """Whether two names mean one device: ``"cuda"`` is ``"cuda:0"``."""
    return _first_name(one) == _first_name(other)


def _first_name(device: str) -> str:
    return device.removesuffix(":0")


def _checked_fit(path: str, place: Place, free: int, n_ctx: int | None, kv_type: str) -> int:
    """Bytes that are needed beside the weights; raises OutOfMemoryError if all does not fit."""
    facts = ModelFacts(_core.GgufFile(path))
    context = facts.context(n_ctx)
    total = facts.needed("block_count")
    wanted = total + 1 if place.layers is None else min(place.layers, total + 1)

    def use(layers: int) -> dict[str, int]:
        return facts.device_bytes(layers, context, kv_type)

    parts = use(wanted)
    if sum(parts.values()) <= free:
        return parts["cache"] + parts["scratch"]
    fitting = next((n for n in range(wanted - 1, 0, -1) if sum(use(n).values()) <= free), 0)
    advice = (
        f"gpu_layers={fitting} would fit (of {total} layers; the others run on the CPU)"
        if fitting
        else "not even one layer fits: use device='cpu'"
    )
    raise OutOfMemoryError(
        f"{path} does not fit on device {place.device!r}: it needs "
        f"{_mib(sum(parts.values()))} MiB ({_mib(parts['weights'])} of weights, "
        f"{_mib(parts['cache'])} of cache for {context} positions, {_mib(parts['scratch'])} of "
        f"scratch) and {_mib(max(free, 0))} MiB are free; {advice}, or lower n_ctx"
    )


def _mib(count: int) -> int:
    return -(-count // 2**20)
