"""HTTP client of a running SGLang server: one request, and many over N streams.

Prompts are chat messages or token ids. Tokenising is the server's job (``/v1/tokenize`` renders its
own chat template), so this module needs no tokenizer. It does not measure the time to first token.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import httpx

Message = Mapping[str, str]
Prompt = str | Sequence[int]

# One request of a demo takes seconds; a queued one on two busy cores can take minutes.
REQUEST_TIMEOUT_S = 600.0


class RequestFailed(RuntimeError):
    """The server refused or dropped a request. The message is one line."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished request.

    Attributes:
        text: the generated text.
        output_ids: generated token ids; empty where the endpoint does not return them.
        prompt_tokens: tokens of the prompt.
        completion_tokens: generated tokens, as counted by the server.
        latency_s: seconds from sending the request to the whole answer.
        finish_reason: ``stop``, ``length`` or ``abort``.
        verify_steps: verify steps that the request took; 0 without speculation.
        accepted: draft tokens accepted over all steps (bonus tokens excluded).
        meta: the server's ``meta_info`` (``/generate`` only).
    """

    text: str
    output_ids: list[int]
    prompt_tokens: int
    completion_tokens: int
    latency_s: float
    finish_reason: str
    verify_steps: int = 0
    accepted: int = 0
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """Several requests sent over N streams: the answers in prompt order and the wall time."""

    answers: list[Answer]
    wall_s: float

    @property
    def completion_tokens(self) -> int:
        """Generated tokens of all answers."""
        return sum(answer.completion_tokens for answer in self.answers)

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens of all answers per second of wall time, prefill included."""
        return self.completion_tokens / self.wall_s

    @property
    def accepted_length(self) -> float:
        """Mean draft tokens accepted per verify step (bonus excluded); 0 without speculation."""
        steps = sum(answer.verify_steps for answer in self.answers)
        return sum(answer.accepted for answer in self.answers) / steps if steps else 0.0


class Client:
    """Requests to one server. Safe to share between threads; close it, or use it with ``with``."""

    def __init__(self, url: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        # Streams are counted by the caller; the pool must never be what limits them.
        self.url = url
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.Client(base_url=url, timeout=timeout_s, limits=limits, trust_env=False)

    def tokenize(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation under the server's chat template, ready to be continued."""
        tokens = self._post("/v1/tokenize", {"messages": [dict(m) for m in messages]})["tokens"]
        return [int(token) for token in tokens]

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        sampling: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Continue a prompt (text or token ids) with ``/generate``; greedy by default.

        ``options``: more fields of the request's body, such as ``return_logprob``.
        """
        params = {"temperature": 0.0, **(sampling or {}), "max_new_tokens": max_tokens}
        body: dict[str, Any] = {**(options or {}), "sampling_params": params}
        if isinstance(prompt, str):
            body["text"] = prompt
        else:
            body["input_ids"] = list(prompt)
        started = time.perf_counter()
        reply = self._post("/generate", body)
        latency_s = time.perf_counter() - started
        meta = reply["meta_info"]
        return Answer(
            text=reply.get("text", ""),
            output_ids=[int(token) for token in reply.get("output_ids", [])],
            prompt_tokens=meta["prompt_tokens"],
            completion_tokens=meta["completion_tokens"],
            latency_s=latency_s,
            finish_reason=(meta.get("finish_reason") or {}).get("type", "unknown"),
            verify_steps=meta.get("spec_verify_ct", 0),
            accepted=meta.get("spec_num_correct_drafts", 0),
            meta=meta,
        )

    def chat(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        sampling: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Answer a conversation with ``/v1/chat/completions``; greedy by default."""
        body = {
            "model": "default",
            "messages": [dict(m) for m in messages],
            "temperature": 0.0,
            **(sampling or {}),
            "max_tokens": max_tokens,
        }
        started = time.perf_counter()
        reply = self._post("/v1/chat/completions", body)
        latency_s = time.perf_counter() - started
        choice, usage = reply["choices"][0], reply["usage"]
        return Answer(
            text=choice["message"]["content"] or "",
            output_ids=[],
            prompt_tokens=usage["prompt_tokens"],
            completion_tokens=usage["completion_tokens"],
            latency_s=latency_s,
            finish_reason=choice["finish_reason"],
        )

    def run(
        self,
        prompts: Sequence[Prompt],
        *,
        max_tokens: int | Sequence[int],
        streams: int = 1,
        sampling: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Run:
        """Continue every prompt, at most ``streams`` at a time, in order.

        Raises:
            RequestFailed: any request failed; requests already sent are waited for.
        """
        limits = [max_tokens] * len(prompts) if isinstance(max_tokens, int) else list(max_tokens)
        started = time.perf_counter()
        with ThreadPoolExecutor(max_workers=streams) as pool:
            jobs = [
                pool.submit(
                    self.generate, prompt, max_tokens=limit, sampling=sampling, options=options
                )
                for prompt, limit in zip(prompts, limits, strict=True)
            ]
            answers = [job.result() for job in jobs]
        return Run(answers, time.perf_counter() - started)

    def flush_cache(self, timeout_s: float = 30.0) -> None:
        """Empty every cache of the server (prefixes and drafts); waits until it is idle."""
        self._send("/flush_cache", params={"timeout": timeout_s})

    def start_profile(self, options: Mapping[str, Any]) -> None:
        """Start PyTorch's profiler in the server; ``options`` as ``/start_profile`` takes them."""
        self._send("/start_profile", json=dict(options))

    def server_info(self) -> dict[str, Any]:
        """The server's arguments and internal state."""
        try:
            info: dict[str, Any] = self._http.get("/server_info").raise_for_status().json()
        except httpx.HTTPError as error:
            raise RequestFailed(f"/server_info: {error}") from error
        return info

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        reply: dict[str, Any] = self._send(path, json=body).json()
        return reply

    def _send(self, path: str, **content: Any) -> httpx.Response:
        try:
            reply = self._http.post(path, **content)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise RequestFailed(f"{path}: no answer from the server: {reason}") from error
        if reply.status_code != 200:
            detail = " ".join(reply.text.split())[:300]
            raise RequestFailed(f"{path}: the server answered {reply.status_code}: {detail}")
        return reply
