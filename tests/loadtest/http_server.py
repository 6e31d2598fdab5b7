"""A small real HTTP server that speaks the part of SGLang's interface that the client uses.

It is run as a program, in place of SGLang, and answers with set delays:
``python http_server.py [--fail LINE] [--hang] --host H --port P``.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECONDS_PER_REQUEST = 0.1
CHUNKS, FIRST_CHUNK_S, CHUNK_S = 4, 0.05, 0.03


class State:
    """What the tests ask about afterwards."""

    lock = threading.Lock()
    running = 0
    most_running = 0
    flushed = 0
    key = ""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/server_info":
            self._reply(200, {"most_running": State.most_running, "flushed": State.flushed})
        elif self.path == "/v1/models":
            self._reply(200, {"data": [{"id": "small"}]})
        else:
            self._reply(200, {})

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}")
        route = self.path.partition("?")[0]
        if route == "/v1/tokenize":
            text = "".join(message["content"] for message in body["messages"])
            self._reply(200, {"tokens": [ord(letter) for letter in text], "count": len(text)})
        elif route == "/flush_cache":
            State.flushed += 1
            self._reply(200, {})
        elif route == "/generate":
            self._generate(body)
        elif State.key and self.headers.get("Authorization") != f"Bearer {State.key}":
            self._reply(401, {"error": {"message": "no key"}})
        elif body.get("stream"):
            self._stream(route, body)
        elif route == "/v1/chat/completions":
            choice = {"message": {"content": "hello"}, "finish_reason": "stop"}
            usage = {"prompt_tokens": 3, "completion_tokens": 1}
            self._reply(200, {"choices": [choice], "usage": usage})
        else:
            self._reply(404, {})

    def _generate(self, body: dict[str, Any]) -> None:
        ids = body.get("input_ids") or [ord(letter) for letter in body["text"]]
        if not ids or ids[0] == 0:
            self._reply(400, {"error": {"message": "token 0 is refused"}})
            return
        with State.lock:
            State.running += 1
            State.most_running = max(State.most_running, State.running)
        time.sleep(SECONDS_PER_REQUEST)
        with State.lock:
            State.running -= 1
        count = body["sampling_params"]["max_new_tokens"]
        meta = {
            "prompt_tokens": len(ids),
            "completion_tokens": count,
            "finish_reason": {"type": "length", "length": count},
            "spec_verify_ct": 2,
            "spec_num_correct_drafts": 5,
        }
        self._reply(200, {"text": "x", "output_ids": ids[:1] * count, "meta_info": meta})

    def _stream(self, route: str, body: dict[str, Any]) -> None:
        """``CHUNKS`` pieces of three tokens each; a prompt with "fail" breaks off after one."""
        chat = route == "/v1/chat/completions"
        asked = json.dumps(body["messages"] if chat else body["prompt"])
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for index in range(CHUNKS):
            time.sleep(FIRST_CHUNK_S if index == 0 else CHUNK_S)
            piece: dict[str, Any] = {"delta": {"content": "a b c"}} if chat else {"text": "a b c"}
            self._event({"choices": [{**piece, "finish_reason": None}]})
            if "fail" in asked:
                self._chunk(b"")
                return
        self._event({"choices": [{"delta": {}, "text": "", "finish_reason": "length"}]})
        usage = {"prompt_tokens": 5, "completion_tokens": 3 * CHUNKS}
        self._event({"choices": [], "usage": usage})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, content: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(content).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _reply(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--fail")
    parser.add_argument("--hang", action="store_true")
    parser.add_argument("--key", default="")
    args = parser.parse_args()
    State.key = args.key
    if args.fail:
        print(args.fail.replace("|", "\n"), flush=True)
        sys.exit(3)
    while args.hang:
        time.sleep(0.1)
    ThreadingHTTPServer((args.host, args.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
