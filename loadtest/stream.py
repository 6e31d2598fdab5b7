"""What a streamed answer of an OpenAI-compatible server says, and when. Opens no connection.

A chunk may carry several tokens under speculation, so tokens are taken from ``usage`` alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


class StreamError(RuntimeError):
    """The stream is no answer; one line."""


@dataclass(slots=True)
class StreamedAnswer:
    """Feed it the body as it arrives, then read the figures; all times are seconds since
    ``started``.

    Attributes:
        started: when the request was sent, on any clock.
        arrivals: when each piece of text came.
        output_tokens: generated tokens by ``usage``; None before it came.
        prompt_tokens: the same of the prompt.
        finish_reason: as the server gave it.
        ended: whether the stream's end mark has come.
    """

    started: float
    arrivals: list[float] = field(default_factory=list)
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    finish_reason: str | None = None
    ended: bool = False
    _rest: bytes = b""

    def feed(self, data: bytes, now: float) -> None:
        """Take in bytes of the body that arrived at ``now``.

        Raises:
            StreamError: the server reports an error, or sends what is no event stream.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            text = line.strip()
            if text.startswith(b"data:"):
                self._event(text[5:].strip(), now)

    @property
    def ttft(self) -> float:
        """Time to the first piece of text."""
        return self.arrivals[0]

    @property
    def gaps(self) -> list[float]:
        """Times between pieces of text, each of one token or more."""
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None for answers of one token or one piece."""
        if self.output_tokens is None or self.output_tokens < 2 or len(self.arrivals) < 2:
            return None
        return (self.arrivals[-1] - self.arrivals[0]) / (self.output_tokens - 1)

    def check(self) -> None:
        """Refuse an answer that is not whole. One without text is: its token ended it at once.

        Raises:
            StreamError: it broke off, or does not say how many tokens it has.
        """
        if not self.ended:
            raise StreamError("the stream ended before its end mark")
        if self.output_tokens is None:
            raise StreamError("no usage in the stream: the server must honour include_usage")

    def _event(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self.ended = True
            return
        try:
            event = json.loads(data)
        except ValueError:
            raise StreamError(f"not JSON in the stream: {data[:80]!r}") from None
        if "error" in event:
            raise StreamError(f"the server says: {str(event['error'])[:200]}")
        if usage := event.get("usage"):
            self.output_tokens = int(usage["completion_tokens"])
            self.prompt_tokens = int(usage["prompt_tokens"])
        for choice in event.get("choices", ()):
            self._choice(choice, now)

    def _choice(self, choice: dict[str, Any], now: float) -> None:
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if choice.get("text") or (choice.get("delta") or {}).get("content"):
            self.arrivals.append(now - self.started)
