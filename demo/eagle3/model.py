"""The EAGLE-3 head in plain PyTorch, with the parameter names that SGLang's loader expects.

One decoder layer whose attention reads the normed embedding of the newest token beside the normed
fusion of three target states (arXiv 2503.01840). Training runs several draft steps over all
positions of a packed batch at once: from the second step on the head is fed its own hidden state,
and a position sees the target-fed keys before it plus its own keys of the earlier steps (the
paper's training-time test). A server gets the same result one position at a time.

This module does not know where states come from or how the head is served.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from hybridspec.demo.eagle3.llama import LlamaShape, LlamaTarget, rms_norm, rope_tables, rotate


@dataclass(frozen=True, slots=True)
class Packed:
    """Several sequences laid end to end.

    Attributes:
        ids: int64 ``[rows]``, the token *after* each state (what the head reads beside it).
        states: ``[rows, 3 * hidden]`` tapped target states.
        positions: int64 ``[rows]``, position inside the sequence.
        spans: per sequence ``(first row, rows, first query)``; queries are the rows from
            ``first row + first query`` on: those a server would draft from.
    """

    ids: Tensor
    states: Tensor
    positions: Tensor
    spans: tuple[tuple[int, int, int], ...]


class RMSNorm(nn.Module):
    """Root-mean-square norm with a learned weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    """Projections of the head's attention; the input is twice as wide as the hidden size."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        wide, kv = 2 * shape.hidden, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(wide, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(wide, kv, bias=False)
        self.v_proj = nn.Linear(wide, kv, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)


class MLP(nn.Module):
    """Gated feed-forward layer."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Midlayer(nn.Module):
    """The decoder layer: norms, attention, feed-forward."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden, shape.norm_eps)
        self.hidden_norm = RMSNorm(shape.hidden, shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.norm_eps)
        self.mlp = MLP(shape.hidden, shape.intermediate)


class Eagle3Head(nn.Module):
    """The trainable head. The token embedding is the target's and stays outside."""

    def __init__(self, shape: LlamaShape, taps: tuple[int, ...], draft_vocab: int) -> None:
        """Build a head with PyTorch's random start; see :func:`start_from_target`."""
        super().__init__()
        self.shape, self.taps = shape, taps
        self.fc_norm = nn.ModuleList(RMSNorm(shape.hidden, shape.norm_eps) for _ in taps)
        self.fc = nn.Linear(len(taps) * shape.hidden, shape.hidden, bias=False)
        self.midlayer = Midlayer(shape)
        self.norm = RMSNorm(shape.hidden, shape.norm_eps)
        self.lm_head = nn.Linear(shape.hidden, draft_vocab, bias=False)
        self._rope: tuple[Tensor, Tensor] | None = None

    def unroll(self, embed: Tensor, batch: Packed, steps: int) -> list[Tensor]:
        """Run ``steps`` draft steps from every query row.

        Step ``j`` at a row that stands for position ``t`` reads the true token ``t + 1 + j`` and
        predicts token ``t + 2 + j``. Rows too near the end of their sequence read token 0 and
        their output means nothing.

        Args:
            embed: the target's embedding ``[vocab, hidden]``.
            batch: packed sequences.
            steps: at least 1.

        Returns:
            Per step, normed hidden states ``[queries, hidden]``, ready for ``lm_head``.
        """
        device = batch.ids.device
        queries = torch.cat(
            [torch.arange(at + first, at + rows) for at, rows, first in batch.spans]
        ).to(device)
        layer = self.midlayer
        chunks = batch.states.chunk(len(self.taps), -1)
        fused = self.fc(
            torch.cat([norm(x) for norm, x in zip(self.fc_norm, chunks, strict=True)], -1)
        )
        wide = torch.cat(
            [layer.input_layernorm(F.embedding(batch.ids, embed)), layer.hidden_norm(fused)], -1
        )
        keys = self._heads(layer.self_attn.k_proj(wide), batch.positions)
        values = self._heads(layer.self_attn.v_proj(wide), None)
        hidden, wide = fused[queries], wide[queries]
        own: list[tuple[Tensor, Tensor]] = []
        outputs: list[Tensor] = []
        for step in range(steps):
            positions = batch.positions[queries] + step
            if step:
                ids = _shifted(batch, step)[queries]
                e = layer.input_layernorm(F.embedding(ids, embed).to(hidden.dtype))
                wide = torch.cat([e, layer.hidden_norm(hidden)], -1)
                k = self._heads(layer.self_attn.k_proj(wide), positions)
                own.append((k, self._heads(layer.self_attn.v_proj(wide), None)))
            q = self._heads(layer.self_attn.q_proj(wide), positions)
            mixed = self._attend(q, keys, values, own, batch)
            hidden = hidden + layer.self_attn.o_proj(mixed.flatten(-2))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            outputs.append(self.norm(hidden))
        return outputs

    def _heads(self, flat: Tensor, positions: Tensor | None) -> Tensor:
        """``[rows, heads * dim]`` to ``[rows, heads, dim]``, rotated when positions are given."""
        x = flat.view(flat.shape[0], -1, self.shape.head_dim)
        if positions is None:
            return x
        if self._rope is None or self._rope[0].device != flat.device:
            tables = rope_tables(self.shape, self.shape.max_positions, torch.float32)
            self._rope = (tables[0].to(flat.device), tables[1].to(flat.device))
        cos, sin = (table[positions][:, None].to(x.dtype) for table in self._rope)
        return rotate(x, cos, sin)

    def _attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        own: list[tuple[Tensor, Tensor]],
        batch: Packed,
    ) -> Tensor:
        """Attention of the query rows; ``[queries, heads, dim]``."""
        group = self.shape.heads // self.shape.kv_heads
        scale = self.shape.head_dim**-0.5
        outputs, done = [], 0
        for at, rows, first in batch.spans:
            count = rows - first
            # [kv_heads, group, count, dim]
            mine = slice(done, done + count)
            query = q[mine].view(count, self.shape.kv_heads, group, -1).permute(1, 2, 0, 3)
            key = keys[at : at + rows].permute(1, 2, 0)[:, None]
            scores = torch.matmul(query, key).float() * scale
            ahead = torch.arange(rows, device=q.device) > torch.arange(
                first, rows, device=q.device
            ).unsqueeze(1)
            scores = scores.masked_fill(ahead, float("-inf"))
            extra = [
                (query * k[mine].permute(1, 0, 2)[:, None]).sum(-1, keepdim=True).float() * scale
                for k, _ in own
            ]
            weights = torch.softmax(torch.cat([scores, *extra], -1), -1).to(q.dtype)
            value = values[at : at + rows].permute(1, 0, 2)[:, None]
            out = torch.matmul(weights[..., :rows], value)
            for index, (_, v) in enumerate(own):
                part = weights[..., rows + index : rows + index + 1]
                out = out + part * v[mine].permute(1, 0, 2)[:, None]
            outputs.append(out.permute(2, 0, 1, 3).reshape(count, self.shape.heads, -1))
            done += count
        return torch.cat(outputs)


def _shifted(batch: Packed, step: int) -> Tensor:
    """``batch.ids`` moved ``step`` rows up inside each sequence; token 0 past the end."""
    ids = torch.zeros_like(batch.ids)
    for at, rows, _ in batch.spans:
        if rows > step:
            ids[at : at + rows - step] = batch.ids[at + step : at + rows]
    return ids


def start_from_target(head: Eagle3Head, target: LlamaTarget, draft_ids: Tensor, seed: int) -> None:
    """Begin from the target's own last layer, final norm and output rows instead of noise.

    The fusion starts as the last tapped state, so that the residual stream already is in the
    space that the output layer reads. What reads the embedding starts small and random.
    """
    random = torch.Generator().manual_seed(seed)
    hidden, last, layer = head.shape.hidden, target.layers[-1], head.midlayer
    kv = head.shape.kv_heads * head.shape.head_dim

    def noise(*size: int) -> Tensor:
        return torch.randn(size, generator=random) * 0.02

    with torch.no_grad():
        head.fc.weight.copy_(noise(*head.fc.weight.shape) * 0.25)
        head.fc.weight[:, -hidden:] += torch.eye(hidden)
        q, k, v = torch.split(last.qkv.float(), [last.qkv.shape[0] - 2 * kv, kv, kv])
        for project, weight in zip("qkv", (q, k, v), strict=True):
            own = getattr(layer.self_attn, f"{project}_proj").weight
            own.copy_(torch.cat([noise(weight.shape[0], hidden), weight], -1))
        layer.self_attn.o_proj.weight.copy_(last.out)
        # The embedding's norm keeps weight one: a first layer's own is so small (0.03) that the
        # newest token would go unnoticed for most of a short training.
        layer.hidden_norm.weight.copy_(last.attention_norm)
        layer.post_attention_layernorm.weight.copy_(last.mlp_norm)
        gate, up = last.gate_up.float().chunk(2)
        layer.mlp.gate_proj.weight.copy_(gate)
        layer.mlp.up_proj.weight.copy_(up)
        layer.mlp.down_proj.weight.copy_(last.down)
        head.norm.weight.copy_(target.norm)
        head.lm_head.weight.copy_(target.head[draft_ids])


def load_head(folder: Path, shape: LlamaShape) -> tuple[Eagle3Head, Tensor]:
    """Load a written head folder; returns the head (float32) and its draft ids ``[draft]``."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    raw = load_file(folder / "model.safetensors")
    layers = config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    head = Eagle3Head(shape, tuple(i + 1 for i in layers), config["draft_vocab_size"])
    d2t = raw.pop("d2t")
    raw.pop("t2d")
    head.load_state_dict({name: tensor.float() for name, tensor in raw.items()})
    return head, d2t + torch.arange(len(d2t))
