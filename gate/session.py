"""One onnxruntime session with its buffers. Knows matrices, not features, folders or policies."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hybridspec.gate.buffers import Buffers, CudaBuffers, HostBuffers, Outputs
from hybridspec.gate.errors import GateError
from hybridspec.gate.manifest import INPUT, OUTPUTS

_DEVICES: dict[str, tuple[str, Callable[[int, int, int], Buffers]]] = {
    "cpu": ("CPUExecutionProvider", HostBuffers),
    "cuda": ("CUDAExecutionProvider", CudaBuffers),
}
DEVICES = ("auto", *_DEVICES)
PROVIDERS = tuple(provider for provider, _ in _DEVICES.values())
"""onnxruntime's names of the providers that may run a gate."""
# What "auto" times, on each device, after as many calls that are not counted.
_TRIAL_ROWS, _TRIALS = 8, 32


class _Bound(NamedTuple):
    """An IOBinding of some row count, and the views of the output buffers that it fills."""

    binding: Any
    outputs: Outputs


class GateSession:
    """Runs one model on up to ``max_rows`` rows without allocating in steady state.

    Input and outputs live in fixed buffers of the device that runs the model; one IOBinding per row
    count is made at its first use.
    """

    def __init__(
        self, model: bytes, features: int, k: int, *, provider: str = "cpu", max_rows: int = 512
    ) -> None:
        """Load ``model`` (the bytes of an ONNX file).

        Args:
            model: serialised model, input ``features`` float32 ``[rows, features]``, outputs
                ``survival`` ``[rows, k]`` and ``accepted_length`` ``[rows]``.
            features: expected input columns.
            k: expected length of the survival curve.
            provider: ``cpu``, ``cuda``, or ``auto``: the faster of those that are usable here.
            max_rows: largest batch.

        Raises:
            GateError: onnxruntime absent, the provider unknown or unusable, the model not loadable,
                or its names or shapes not the expected ones.
        """
        self._runtime = _import_runtime()
        self.max_rows = max_rows
        self._model, self._shape = model, (max_rows, features, k)
        self._bound: dict[int, _Bound] = {}
        self._session, self._buffers = self._open("cpu" if provider == "auto" else provider)
        self._check(features, k)
        if provider == "auto":
            self._take_faster()

    @property
    def provider(self) -> str:
        """The provider that really runs, as onnxruntime names it."""
        return str(self._session.get_providers()[0])

    def input(self, rows: int) -> NDArray[np.float32]:
        """The buffer to fill before ``run(rows)``: float32 ``[rows, features]``."""
        buffer: NDArray[np.float32] = self._buffers.input[:rows]
        return buffer

    def run(self, rows: int) -> Outputs:
        """Predict the first ``rows`` rows of the input buffer.

        Returns:
            Views of the output buffers, valid until the next run: survival float32 ``[rows, k]``,
            accepted length float32 ``[rows]``.
        """
        bound = self._bound.get(rows)
        if bound is None:
            bound = self._bound[rows] = self._bind(rows)
        if rows:
            self._buffers.before(rows)
            self._session.run_with_iobinding(bound.binding)
            self._buffers.after(rows)
        return bound.outputs

    def _take_faster(self) -> None:
        """Keep the faster device; the CPU's session is open."""
        if _DEVICES["cuda"][0] not in self._runtime.get_available_providers():
            return
        cpu, cpu_seconds = (self._session, self._buffers), self._seconds()
        try:
            self._session, self._buffers = self._open("cuda")
        except GateError:
            return  # listed, but its libraries do not load
        self._bound.clear()
        if self._seconds() >= cpu_seconds:
            self._session, self._buffers = cpu
            self._bound.clear()

    def _seconds(self) -> float:
        """Least time of a run."""
        times = []
        for _ in range(2 * _TRIALS):
            began = time.perf_counter()
            self.run(min(_TRIAL_ROWS, self.max_rows))
            times.append(time.perf_counter() - began)
        return min(times[_TRIALS:])

    def _open(self, provider: str) -> tuple[Any, Buffers]:
        if provider not in _DEVICES:
            raise GateError(f"gate: unknown provider {provider!r}; valid are {', '.join(DEVICES)}")
        wanted, make_buffers = _DEVICES[provider]
        options = self._runtime.SessionOptions()
        # Microseconds of work: one thread is fastest, and spinning threads starve the engine's.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        options.log_severity_level = 4
        buffers = make_buffers(*self._shape)
        try:
            session = self._runtime.InferenceSession(
                self._model, options, providers=[(wanted, buffers.options)]
            )
        except Exception as error:  # onnxruntime raises many types of its own
            reason = str(error).splitlines()[0][:160]
            raise GateError(f"gate: onnxruntime cannot load the model: {reason}") from None
        session.disable_fallback()
        if session.get_providers()[0] != wanted:
            raise GateError(
                f"gate: {wanted} is not usable here (got {session.get_providers()[0]}); "
                "use provider 'cpu' or repair the CUDA libraries"
            )
        return session, buffers

    def _check(self, features: int, k: int) -> None:
        inputs = {node.name: list(node.shape) for node in self._session.get_inputs()}
        outputs = {node.name: list(node.shape) for node in self._session.get_outputs()}
        if list(inputs) != [INPUT] or sorted(outputs) != sorted(OUTPUTS):
            raise GateError(
                f"gate: the model must map {INPUT} to {', '.join(OUTPUTS)}; it maps "
                f"{', '.join(inputs)} to {', '.join(outputs)}"
            )
        shape = inputs[INPUT]
        if len(shape) != 2 or isinstance(shape[0], int) or shape[1] != features:
            raise GateError(
                f"gate: the model's input is {shape}, the manifest has {features} features and "
                "needs a free number of rows"
            )
        if len(outputs[OUTPUTS[0]]) != 2 or outputs[OUTPUTS[0]][1] != k:
            raise GateError(f"gate: the model's survival is {outputs[OUTPUTS[0]]}, expected K={k}")
        if len(outputs[OUTPUTS[1]]) != 1:
            raise GateError(
                f"gate: the model's accepted_length is {outputs[OUTPUTS[1]]}, expected [rows]"
            )

    def _bind(self, rows: int) -> _Bound:
        binding = self._session.io_binding()
        self._buffers.bind(binding, rows)
        survival, accepted = self._buffers.outputs
        return _Bound(binding, (survival[:rows], accepted[:rows]))


def _import_runtime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise GateError(
            f"gate: onnxruntime cannot be imported ({error}); pip install 'hybridspec[gate]'"
        ) from None
    return onnxruntime
