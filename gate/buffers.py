"""The fixed memory that a model reads and writes: on the host, or on a GPU with a pinned mirror."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hybridspec.gate.errors import GateError
from hybridspec.gate.manifest import INPUT, OUTPUTS

Outputs = tuple[NDArray[np.float32], NDArray[np.float32]]


class Buffers(Protocol):
    """Input float32 ``[max_rows, features]``, outputs ``[max_rows, k]`` and ``[max_rows]``."""

    options: dict[str, str]
    """What the execution provider must be opened with."""
    input: NDArray[np.float32]
    outputs: Outputs

    def bind(self, binding: Any, rows: int) -> None:
        """Point an onnxruntime IOBinding at the first ``rows`` rows."""
        ...

    def before(self, rows: int) -> None:
        """Bring the input to where the model reads it."""
        ...

    def after(self, rows: int) -> None:
        """Bring the outputs to the host; they may be read on return."""
        ...


class HostBuffers:
    """What the CPU provider reads and writes in place."""

    def __init__(self, max_rows: int, features: int, k: int) -> None:
        self.options: dict[str, str] = {}
        self.input = np.zeros((max_rows, features), np.float32)
        self.outputs = np.zeros((max_rows, k), np.float32), np.zeros(max_rows, np.float32)

    def bind(self, binding: Any, rows: int) -> None:
        shape = self.input[:rows].shape
        binding.bind_input(INPUT, "cpu", 0, np.float32, shape, self.input.ctypes.data)
        for name, buffer in zip(OUTPUTS, self.outputs, strict=True):
            shape = buffer[:rows].shape
            binding.bind_output(name, "cpu", 0, np.float32, shape, buffer.ctypes.data)

    def before(self, rows: int) -> None:
        """Nothing to move."""

    def after(self, rows: int) -> None:
        """Nothing to move."""


class CudaBuffers:
    """Tensors on the current GPU, copied from and to pinned host memory on a stream of their own.

    The model runs on the same stream, so nothing waits for the engine's work and the host waits
    once, for the outputs. Not run on a GPU by the authors.
    """

    def __init__(self, max_rows: int, features: int, k: int) -> None:
        """Allocate everything.

        Raises:
            GateError: torch has no GPU here.
        """
        torch: Any = importlib.import_module("torch")
        if not torch.cuda.is_available():
            raise GateError("gate: provider 'cuda' needs a GPU that torch can use; use 'cpu'")
        self._stream = torch.cuda.Stream()
        self._device = torch.cuda.current_device()
        self.options = {
            "device_id": str(self._device),
            "user_compute_stream": str(self._stream.cuda_stream),
        }
        self._on_stream: Callable[[], AbstractContextManager[Any]] = partial(
            torch.cuda.stream, self._stream
        )
        shapes = (max_rows, features), (max_rows, k), (max_rows,)
        self._there = [torch.zeros(shape, device="cuda") for shape in shapes]
        self._here = [torch.zeros(shape, pin_memory=True) for shape in shapes]
        torch.cuda.synchronize()
        self.input = self._here[0].numpy()
        self.outputs = self._here[1].numpy(), self._here[2].numpy()

    def bind(self, binding: Any, rows: int) -> None:
        device = ("cuda", self._device, np.float32)
        source, *results = self._there
        binding.bind_input(INPUT, *device, tuple(source[:rows].shape), source.data_ptr())
        for name, tensor in zip(OUTPUTS, results, strict=True):
            binding.bind_output(name, *device, tuple(tensor[:rows].shape), tensor.data_ptr())

    def before(self, rows: int) -> None:
        with self._on_stream():
            self._there[0][:rows].copy_(self._here[0][:rows], non_blocking=True)

    def after(self, rows: int) -> None:
        with self._on_stream():
            for here, there in zip(self._here[1:], self._there[1:], strict=True):
                here[:rows].copy_(there[:rows], non_blocking=True)
        self._stream.synchronize()
