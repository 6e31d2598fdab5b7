"""Stands in for SGLang's compiled ``sgl_kernel`` where that cannot load; see ``cpu/module.py``."""

from hybridspec.adapters.sglang.cpu.module import *  # noqa: F403
from hybridspec.adapters.sglang.cpu.module import register_ops

register_ops()
