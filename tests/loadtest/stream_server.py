"""A real HTTP server that streams at an exact rate, for measuring the load generator.

It is run as a program: ``python stream_server.py --chunks N --per-second R --host H --port P``. A
chunk that is late is followed by the next one at its own time, so the offered rate holds.
"""

from __future__ import annotations

import argparse
import asyncio
import json

HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    b"Connection: keep-alive\r\n\r\n"
)


def chunk(content: object) -> bytes:
    data = b"data: " + (content if isinstance(content, bytes) else json.dumps(content).encode())
    data += b"\n\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


PIECE = chunk({"choices": [{"delta": {"content": "a b c"}, "finish_reason": None}]})


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    loop = asyncio.get_running_loop()
    while head := await reader.readuntil(b"\r\n\r\n"):
        lines = head.decode().split("\r\n")
        length = next((int(x[15:]) for x in lines if x.lower().startswith("content-length:")), 0)
        if length:
            await reader.readexactly(length)
        if lines[0].startswith("GET"):
            body = json.dumps({"data": [{"id": "stream"}]}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            continue
        writer.write(HEAD)
        began = loop.time()
        for number in range(ARGS.chunks):
            await asyncio.sleep(max(0.0, began + number / ARGS.per_second - loop.time()))
            writer.write(PIECE)
        finish = {"choices": [{"delta": {}, "finish_reason": "length"}]}
        usage = {"prompt_tokens": 5, "completion_tokens": 3 * ARGS.chunks}
        writer.write(chunk(finish) + chunk({"choices": [], "usage": usage}) + chunk(b"[DONE]"))
        writer.write(b"0\r\n\r\n")


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        await serve(reader, writer)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main() -> None:
    server = await asyncio.start_server(accept, ARGS.host, ARGS.port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--chunks", type=int, default=200)
    parser.add_argument("--per-second", type=float, default=50.0)
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    ARGS = parser.parse_args()
    asyncio.run(main())
