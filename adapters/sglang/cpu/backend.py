"""SGLang attention backend over :mod:`.attention`, for any CPU that PyTorch runs on.

The plan of a forward depends only on that batch: the number of draft tokens of a verify step is
read from its ``spec_info``, so steps of different widths may follow each other. Multi-head and
grouped-query attention with a plain KV pool; it refuses what it cannot do (latent attention,
sliding windows, sinks, soft caps, cross and bidirectional attention) by name instead of computing
something else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.runtime_context import get_parallel
from torch import Tensor

from hybridspec.adapters.sglang.cpu.attention import Workspace, attend
from hybridspec.adapters.sglang.cpu.plan import (
    Bools,
    Ints,
    Plan,
    Shape,
    plan_ragged,
    plan_uniform,
)

NAME = "portable"


class PortableAttnBackend(AttentionBackend):  # type: ignore[misc]
    """Attention for one model runner.

    Raises:
        ValueError: the model needs a kind of attention that this backend does not compute.
    """

    def __init__(self, model_runner: Any) -> None:
        super().__init__()
        if model_runner.use_mla_backend or isinstance(model_runner.token_to_kv_pool, SWAKVPool):
            raise ValueError(
                f"attention backend '{NAME}' serves models with plain multi-head or grouped-query "
                "attention; this model uses latent attention or a sliding-window KV pool"
            )
        self.req_to_token = model_runner.req_to_token_pool.req_to_token
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        config = model_runner.model_config
        tp_size = get_parallel().attn_tp_size
        heads = config.num_attention_heads // tp_size
        pool = self.token_to_kv_pool.get_key_buffer(self.token_to_kv_pool.start_layer)
        group = heads // config.get_num_kv_heads(tp_size)
        self.shape = Shape(group, model_runner.dtype, pool.shape[0])
        self.workspace = Workspace()
        self.plan: Plan | None = None
        self._checked: set[int] = set()

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        """Plan this batch's attention; must run before the layers of every forward."""
        mode = forward_batch.forward_mode
        if mode.is_idle():
            self.plan = None
            return
        lens = forward_batch.seq_lens.numpy().astype(np.int64)
        if mode.is_decode():
            self.plan = self._uniform(forward_batch, lens, 1)
        elif mode.is_target_verify():
            spec_info = forward_batch.spec_info
            width = int(spec_info.draft_token_num)
            # A chain (tree_topk 1) is what causal attention does; anything else brings a mask.
            tree = None
            if spec_info.tree_topk != 1 and width > 1:
                flat = spec_info.custom_mask.numpy()
                tree = flat[: len(lens) * width * width].reshape(len(lens), width, width)
            self.plan = self._uniform(forward_batch, lens + width, width, tree)
        else:
            queries = forward_batch.extend_seq_lens.numpy().astype(np.int64)
            width = int(queries.max(initial=0))
            if width <= 64 and bool((queries == width).all()):
                self.plan = self._uniform(forward_batch, lens, width)
            else:
                table = self._table(forward_batch, lens)
                self.plan = plan_ragged(table, lens, queries, self.shape)

    def _table(self, forward_batch: ForwardBatch, lens: Ints) -> Ints:
        rows = forward_batch.req_pool_indices.numpy()
        table: Ints = self.req_to_token.numpy()[rows, : int(lens.max(initial=0))]
        return table

    def _uniform(
        self,
        forward_batch: ForwardBatch,
        lens: Ints,
        width: int,
        tree: Bools | None = None,
    ) -> Plan:
        table = self._table(forward_batch, lens)
        return plan_uniform(table, lens, width, self.shape, tree)

    def forward_decode(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> Tensor:
        """Attention of one layer: ``q`` ``[tokens, heads * dim]`` to ``[tokens, heads * dim]``."""
        self._check(layer, kwargs)
        if self.plan is None:
            raise RuntimeError("init_forward_metadata has not run for this batch")
        keys = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        values = self.token_to_kv_pool.get_value_buffer(layer.layer_id)
        if save_kv_cache and k is not None and v is not None:
            loc = forward_batch.out_cache_loc
            keys.index_copy_(0, loc, k.view(-1, layer.tp_k_head_num, layer.qk_head_dim))
            values.index_copy_(0, loc, v.view(-1, layer.tp_v_head_num, layer.v_head_dim))
        query = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        return attend(self.plan, query, keys, values, layer.scaling, self.workspace)

    forward_extend = forward_decode

    def _check(self, layer: RadixAttention, kwargs: dict[str, Any]) -> None:
        if layer.layer_id in self._checked:
            return
        unsupported = [
            name
            for name, present in (
                ("cross attention", layer.is_cross_attention),
                ("a logit soft cap", bool(layer.logit_cap)),
                ("a sliding window", layer.sliding_window_size not in (-1, None)),
                ("bidirectional attention", layer.attn_type != AttentionType.DECODER),
                ("attention sinks", kwargs.get("sinks") is not None),
            )
            if present
        ]
        if unsupported:
            raise ValueError(
                f"attention backend '{NAME}' does not compute {', '.join(unsupported)} "
                f"(layer {layer.layer_id})"
            )
        self._checked.add(layer.layer_id)

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1

    def support_triton(self) -> bool:
        return False


class PortableMultiStepDraftBackend:
    """One :class:`PortableAttnBackend` for each draft step after the first.

    Step ``s`` of branch ``k`` sees the request's prefix and the branch's own first ``s + 1`` draft
    slots, as SGLang lays them out (``topk`` runs of ``num_steps`` slots after the prefix).
    """

    def __init__(self, model_runner: Any, topk: int, num_steps: int) -> None:
        self.topk = topk
        self.speculative_num_steps = num_steps
        self.attn_backends = [PortableAttnBackend(model_runner) for _ in range(num_steps - 1)]
        for backend in self.attn_backends[1:]:
            backend.workspace = self.attn_backends[0].workspace

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        """Plan every draft step of the batch; ``seq_lens`` are the prefixes."""
        first = self.attn_backends[0]
        lens = forward_batch.seq_lens.numpy().astype(np.int64)
        if not len(lens):
            return
        steps, topk = self.speculative_num_steps, self.topk
        rows = forward_batch.req_pool_indices.numpy()
        pool = first.req_to_token.numpy()
        longest = int(lens.max())
        branches = np.arange(topk) * steps
        table = np.empty((len(lens), topk, longest + steps), dtype=np.int64)
        table[:, :, :longest] = pool[rows, None, :longest]
        for place, (row, length) in enumerate(zip(rows.tolist(), lens.tolist(), strict=True)):
            own = length + branches[:, None] + np.arange(steps)
            table[place, :, length : length + steps] = pool[row, np.minimum(own, pool.shape[1] - 1)]
        flat = table.reshape(len(lens) * topk, -1)
        prefix = np.repeat(lens, topk)
        for step, backend in enumerate(self.attn_backends):
            backend.plan = plan_uniform(flat, prefix + step + 1, 1, backend.shape)
