"""The portable CPU runtime: lets the stock ``sglang`` wheel serve where there is no GPU.

The wheel is a CUDA build: its ``sgl_kernel`` cannot load without a GPU, and SGLang's CPU engine
asks that module for a dozen small kernels and for an attention backend made for Intel AMX. This
package supplies both in plain PyTorch, through SGLang's plugin interface where it has one. It is
inactive on any machine where SGLang's own kernels load. Importing it is cheap and touches nothing;
:func:`install` does the work.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

SPIN_COUNT = "20000"
"""How long OpenMP threads spin between two operators, read by the processes that are started from
here. Plain decoding of the embedded target on two cores: 16 tokens/s without spinning, 22 with this
or with the library's default; but the default spins for so long that another busy process makes
single steps many times as slow."""
_SHIM = Path(__file__).parent / "shim"
_installed = False


def needed() -> bool:
    """Whether SGLang's compiled kernels cannot load here and no accelerator is present.

    Tries to import ``sgl_kernel``; the outcome cannot change within a process.
    """
    import torch

    if torch.accelerator.is_available():
        return False
    if is_ours(sys.modules.get("sgl_kernel")):
        return True
    try:
        importlib.import_module("sgl_kernel")
    except ImportError:
        return True
    return is_ours(sys.modules["sgl_kernel"]) or not hasattr(
        torch.ops.sgl_kernel, "decode_attention_cpu"
    )


def is_ours(module: object) -> bool:
    """Whether a module object is this package's stand-in for ``sgl_kernel``."""
    return str(getattr(module, "__file__", None) or "").startswith(str(_SHIM))


def install() -> None:
    """Put the runtime in place; idempotent, to be called in every SGLang process.

    It must run before SGLang's model code is imported in the main process. Child processes inherit
    the environment and ``sys.path``, so there the stand-in is found from the first import on.
    """
    global _installed
    if _installed:
        return
    _installed = True
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    # SGLang compiles one small function of EAGLE's tree drafting. That takes a second and a C++
    # compiler, which a machine that serves need not have: without one the server died at its first
    # draft. torch reads this in the processes that are started from here.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    if str(_SHIM) not in sys.path:
        sys.path.insert(0, str(_SHIM))
    if not is_ours(sys.modules.get("sgl_kernel")):
        # A failed import of the compiled package leaves its submodules behind.
        for name in [n for n in sys.modules if n.split(".")[0] == "sgl_kernel"]:
            del sys.modules[name]
        importlib.import_module("sgl_kernel")

    from hybridspec.adapters.sglang.cpu import hooks, layers

    hooks.use_cpu_engine()
    hooks.register_backend()
    hooks.register_sampled_verification()
    hooks.register_groups()
    hooks.register_relay()
    layers.register()


def describe() -> list[str]:
    """The kernels that this package supplies, one name a line, for the doctor."""
    from hybridspec.adapters.sglang.cpu import module

    return [
        *(f"sgl_kernel.{name}" for name in module.__all__),
        "attention backend: portable (decode, extend, verify, draft)",
        "sampled verification on the CPU",
        "rotary embedding: angles looked up once a forward",
        "linear layers and language-model head: weights packed for oneDNN",
    ]
