"""Start-up checks of a HYBRID server: everything that could fail later fails here, in one line.

Runs in the launching process while SGLang resolves its arguments, before any worker starts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from hybridspec.adapters import eagle3_head
from hybridspec.adapters.sglang import compat, config, cpu
from hybridspec.gate import store
from hybridspec.gate.cost import StepTimeModel
from hybridspec.gate.errors import GateError

logger = logging.getLogger(__name__)

# SGLang gates these by algorithm name or we have not made them work: refused rather than wrong.
_REFUSED_FLAGS: dict[str, str] = {
    "speculative_adaptive": "HYBRID chooses its own width",
    "enable_lora": "SGLang allows LoRA only with its own algorithms",
    "enable_watermark": "SGLang allows it only with its own algorithms",
    "enable_unified_memory": "SGLang allows it only with its own algorithms",
    "speculative_use_rejection_sampling": "HYBRID verifies against the target's distribution alone",
    "enable_multi_layer_eagle": "HYBRID drives a single-layer EAGLE3 head",
    "enable_dp_attention": "not supported by HYBRID yet",
    "enable_two_batch_overlap": "not supported by HYBRID yet",
    "is_embedding": "embeddings are not decoded",
}


BACKENDS = ("fa3", "flashinfer", "triton", "portable")
"""Attention backends whose verify takes its width from the step or from the state that we build for
it (read in SGLang 0.5.23; ``portable`` is ours for CPUs)."""
_BACKEND_FLAGS = (
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "speculative_draft_attention_backend",
)

DEFAULT_STEPS = 3
"""EAGLE3 draft steps when ``--speculative-num-steps`` is not given: of one to six the best for the
demo's head on code edits and chat together (``hybridspec demo eval-head``, two CPU cores)."""


def server_args(args: Any) -> None:
    """Check that a HYBRID server can start with these SGLang arguments; log warnings.

    Raises:
        SystemExit: the first problem, as one line that says what to do.
    """
    for warning in _warnings(_problems(args)):
        logger.warning("hybridspec: %s", warning)


def _warnings(problems: Iterable[str]) -> list[str]:
    """Those problems that a server can start with; the first other one ends the process."""
    warnings = []
    for problem in problems:
        if not problem.startswith(eagle3_head.WARNING):
            raise SystemExit(f"hybridspec: {problem}")
        warnings.append(problem.removeprefix(eagle3_head.WARNING))
    return warnings


def given(settings: config.HybridConfig, namespace: Any) -> None:
    """Check flags as the user gave them, and a head and target that are folders here.

    Raises:
        SystemExit: the first problem, as one line that says what to do.
    """
    _warnings(_given_problems(settings, namespace))  # logged when all is checked


def _given_problems(settings: config.HybridConfig, namespace: Any) -> Iterator[str]:
    yield from _flag_problems(namespace)
    yield from _backend_problems(settings, namespace)
    yield from _draft_problems(settings, namespace)
    head = getattr(namespace, "speculative_draft_model_path", None)
    target = getattr(namespace, "model_path", None)
    try:
        check_given_folder(head)
    except FileNotFoundError as error:
        yield str(error)
        return
    if all(model and Path(model).expanduser().is_dir() for model in (head, target)):
        yield from head_problems(head, str(target))


def _problems(args: Any) -> Iterator[str]:
    try:
        settings = config.current()
    except config.ConfigError as error:
        yield str(error)
        return
    if problem := compat.version_problem(settings.allow_untested_sglang):
        yield problem
    yield from compat.hook_problems()
    yield from _flag_problems(args)
    yield from _backend_problems(settings, args)
    yield from _draft_problems(settings, args)
    yield from head_problems(args.speculative_draft_model_path, args.model_path)
    if settings.gate is not None:
        try:
            # "auto" refuses nothing that the CPU takes, and a session on the GPU would keep memory
            # there in a process that never uses it.
            device = "cpu" if settings.gate_device == "auto" else settings.gate_device
            store.load_gate(Path(settings.gate), provider=device)
        except GateError as error:
            yield str(error)
    if settings.profile is not None:
        try:
            StepTimeModel.named(settings.profile)
        except GateError as error:
            yield str(error)
    if settings.trace_dir is not None:
        try:
            Path(settings.trace_dir).mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=settings.trace_dir):
                pass
        except OSError as error:
            yield f"--hybrid-trace-dir {settings.trace_dir} cannot be written: {error.strerror}"


def _draft_problems(settings: config.HybridConfig, args: Any) -> Iterator[str]:
    """Flags of SGLang's own that say how drafts are made and judged; ``args`` as the user gave
    them."""
    topk = getattr(args, "speculative_eagle_topk", None)
    steps = getattr(args, "speculative_num_steps", None)
    if topk not in (None, 1):
        yield f"--speculative-eagle-topk {topk}: HYBRID verifies chains; set it to 1 or drop it"
    most = settings.widths[-1] - 1
    if steps is not None and not 1 <= steps <= most:
        yield (
            f"--speculative-num-steps {steps} must be from 1 to {most}, one less than the widest "
            "of HYBRID's widths"
        )
    tokens = getattr(args, "speculative_num_draft_tokens", None)
    if tokens is not None and tokens != (steps or DEFAULT_STEPS) + 1:
        yield (
            f"--speculative-num-draft-tokens {tokens}: HYBRID chooses the width of every step; "
            "drop it, or set 'widths' in --hybrid-config"
        )
    for name in ("single", "acc"):
        if (getattr(args, f"speculative_accept_threshold_{name}", None) or 1.0) < 1.0:
            yield (
                f"--speculative-accept-threshold-{name} below 1 changes what is said; HYBRID keeps "
                "the target's distribution"
            )


def _backend_problems(settings: config.HybridConfig, args: Any) -> Iterator[str]:
    for name in _BACKEND_FLAGS:
        chosen = getattr(args, name, None)
        if problem := backend_problem(settings, chosen):
            yield f"--{name.replace('_', '-')} {problem}"


def backend_problem(settings: config.HybridConfig, chosen: str | None) -> str | None:
    """What is wrong with an attention backend, if SGLang or the user has chosen one."""
    if chosen is None or chosen in BACKENDS or settings.allow_untested_backend:
        return None
    return (
        f"{chosen}: nobody has tried HYBRID's changing verify widths with this attention backend; "
        f"choose one of {', '.join(BACKENDS[:-1])}, or set allow_untested_backend in "
        "--hybrid-config"
    )


def _flag_problems(args: Any) -> Iterator[str]:
    if (getattr(args, "page_size", None) or 1) > 1 and cpu.needed():
        yield (
            f"--page-size {args.page_size}: SGLang allocates pages with Triton kernels, which need "
            "a GPU; drop it"
        )
    for name, reason in _REFUSED_FLAGS.items():
        if getattr(args, name, None):
            yield f"--{name.replace('_', '-')} cannot be used with HYBRID: {reason}"
    for name in ("pp_size", "dp_size", "attn_dcp_size"):
        if (getattr(args, name, None) or 1) > 1:
            yield f"{name.replace('_', ' ')} above 1 is not supported by HYBRID; set it to 1"
    if getattr(args, "disaggregation_mode", "null") != "null":
        yield "prefill/decode disaggregation is not supported by HYBRID"


def head_problems(head: str | None, target: str) -> Iterator[str]:
    """Problems of an EAGLE3 head for a target, both as SGLang gets them (folder or hub id)."""
    if head is None:
        yield "HYBRID needs an EAGLE3 head: add --speculative-draft-model-path <folder or model id>"
        return
    try:
        folders = local_folder(head), local_folder(target)
    except FileNotFoundError as error:
        yield str(error)
        return
    yield from eagle3_head.check_head(*folders)


def check_given_folder(model: str | None) -> None:
    """Refuse a path to a folder that is not there; a hub id, or nothing at all, passes.

    Raises:
        FileNotFoundError: one line.
    """
    if model is None or Path(model).expanduser().is_dir():
        return
    if Path(model).is_absolute() or model.startswith((".", "~")) or model.count("/") != 1:
        raise FileNotFoundError(f"model folder {model} does not exist")


def local_folder(model: str) -> Path:
    """The folder that holds ``model``: itself if it is one, else the hub's local snapshot.

    Raises:
        FileNotFoundError: neither a folder nor a model that the hub client can provide.
    """
    check_given_folder(model)
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, allow_patterns=["*.json", "*.safetensors"]))
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FileNotFoundError(
            f"model {model} is neither a local folder nor available from the model hub ({first})"
        ) from None
