#!/usr/bin/env python3
"""An OpenAI-compatible chat server that keeps a schedule and knows what it really did.

    python tests/fakes/openai_server.py '{"port": 0, "itl_s": 0.03}'

Prints {"port": N} when it listens. `GET /truth` tells every request: when it was read, and when each event was handed
to the kernel, on the monotonic clock that all processes of a machine share. So a test compares what was reported with
what happened, however busy the machine is. Options are the fields of `Options`.

The answer's shape is vLLM's (0.32.0): a first chunk with the role and no token, events with the running usage where
asked for, a last chunk with usage and no choice, then [DONE].
"""

import asyncio
import heapq
import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any

WORD = " word"


@dataclass
class Options:
    """What the server does. Times in seconds."""

    port: int = 0
    model: str = "truth"
    max_model_len: int = 8192
    api_key: str = ""
    ttft_s: float = 0.05
    itl_s: float = 0.01  # between events
    tokens_per_event: int = 1
    reasoning: float = 0.0  # share of the tokens that are reasoning
    reasoning_key: str = "reasoning"
    usage: str = "continuous"  # or "final", "none": what stream_options may ask for
    details: bool = True  # completion_tokens_details
    tokenize: bool = True
    metrics: bool = True
    first_slow_s: float = 0.0  # the first request waits so much longer
    seen_fast: bool = False  # a prompt that was seen before has a tenth of the TTFT
    fail_every: int = 0  # each Nth request of a stream fails
    fail_how: str = "500"  # or 429, reset, half (closed in the middle), silent
    refuse: list[str] = field(default_factory=list)  # request keys that are answered with 400
    foreign: int = 0  # requests of others that /metrics tells of
    foreign_after: int = 0  # only after so many requests
    stops_at: int = 0  # ends by itself after so many tokens, unless ignore_eos


class Truth:
    """What happened to one request."""

    def __init__(self, number: int, stream: bool, tokens: int, reasoning: int) -> None:
        self.number = number
        self.stream = stream
        self.tokens = tokens
        self.reasoning = reasoning
        self.read = time.monotonic()
        self.sent: list[float] = []
        self.failed = ""
        self.ended = 0.0

    def told(self) -> dict[str, Any]:
        """For /truth."""
        return vars(self)


class Chat(asyncio.Protocol):
    """One connection, one request: it is closed afterwards, as asked."""

    def __init__(self, server: "FakeServer") -> None:
        self.server = server
        self.data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, separator, body = self.data.partition(b"\r\n\r\n")
        if not separator:
            return
        lowered = head.lower()
        at = lowered.find(b"content-length:")
        length = int(lowered[at + 15 :].split(b"\r\n")[0]) if at >= 0 else 0
        if len(body) < length:
            return
        self.data = b""
        method, path = head.split(b" ")[:2]
        self.server.route(self, method.decode(), path.decode(), head.decode(), body)

    def answer(self, status: int, document: Any) -> None:
        """A whole answer."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        kind = "text/plain" if isinstance(document, bytes) else "application/json"
        head = (
            f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


class FakeServer:
    """The server: one heap of what is due, one timer."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.truths: list[Truth] = []
        self.seen: set[str] = set()
        self.due: list[tuple[float, int, Any]] = []
        self.order = 0
        self.running = 0
        self.finished = 0
        self.loop = asyncio.get_running_loop()
        self.timer: asyncio.TimerHandle | None = None
        self.shapes: dict[tuple[Any, ...], bytes] = {}

    def at(self, when: float, action: Any) -> None:
        """Do `action` at `when`."""
        self.order += 1
        heapq.heappush(self.due, (when, self.order, action))
        if self.due[0][1] == self.order:
            self.arm()

    def arm(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.loop.call_at(self.due[0][0], self.tick) if self.due else None

    def tick(self) -> None:
        self.timer = None
        while self.due and self.due[0][0] <= time.monotonic():
            heapq.heappop(self.due)[2]()
        if self.timer is None and self.due:
            self.arm()

    # ------------------------------------------------------------------ requests

    def route(self, chat: Chat, method: str, path: str, head: str, body: bytes) -> None:
        options = self.options
        if path == "/truth":
            chat.answer(200, [truth.told() for truth in self.truths])
        elif path == "/metrics" and options.metrics:
            others = options.foreign if len(self.truths) >= options.foreign_after else 0
            chat.answer(
                200,
                f'vllm:num_requests_running{{engine="0"}} {float(self.running + others)}\n'
                f'vllm:num_requests_waiting{{engine="0"}} 0.0\n'
                f'vllm:request_success_total{{finished_reason="stop"}} {float(self.finished)}\n'.encode(),
            )
        elif options.api_key and f"Bearer {options.api_key}" not in head and path.startswith("/v1"):
            chat.answer(401, {"error": "Unauthorized"})
        elif path == "/v1/models":
            entry = {"id": options.model, "object": "model", "max_model_len": options.max_model_len}
            chat.answer(200, {"object": "list", "data": [entry]})
        elif path == "/tokenize" and options.tokenize:
            chat.answer(200, {"count": len(json.loads(body)["prompt"].split()), "max_model_len": 8192, "tokens": []})
        elif path == "/v1/chat/completions" and method == "POST":
            self.chat(chat, json.loads(body))
        else:
            chat.answer(404, {"detail": "Not Found"})

    def chat(self, chat: Chat, request: dict[str, Any]) -> None:
        options = self.options
        refused = [key for key in options.refuse if key in request]
        if refused:
            chat.answer(400, {"error": {"message": f"unknown field {refused[0]}", "code": 400}})
            return
        content = request["messages"][0]["content"]  # a text, or a list of parts
        prompt = content if isinstance(content, str) else "".join(part["text"] for part in content)
        count = request.get("max_completion_tokens") or request["max_tokens"]
        if options.stops_at and not request.get("ignore_eos"):
            count = min(count, options.stops_at)
        truth = Truth(len(self.truths), bool(request.get("stream")), count, round(count * options.reasoning))
        self.truths.append(truth)
        ttft = options.ttft_s * (0.1 if options.seen_fast and prompt in self.seen else 1.0)
        self.seen.add(prompt)
        if truth.number == 0:
            ttft += options.first_slow_s
        self.running += 1
        if options.fail_every and truth.number % options.fail_every == options.fail_every - 1:
            truth.failed = options.fail_how
            if options.fail_how.isdigit():
                self.over(truth)
                chat.answer(int(options.fail_how), {"error": {"message": "told to fail", "code": options.fail_how}})
                return
        prompt_tokens = len(prompt.split()) + 5
        stream = request.get("stream_options") or {}
        Answer(self, chat, truth, prompt_tokens, stream).begin(ttft)

    def over(self, truth: Truth) -> None:
        """The request has ended, well or not."""
        truth.ended = time.monotonic()
        self.running -= 1
        self.finished += 1


class Answer:
    """One chat completion under way."""

    def __init__(
        self, server: FakeServer, chat: Chat, truth: Truth, prompt_tokens: int, stream_options: dict[str, Any]
    ) -> None:
        self.server = server
        self.options = server.options
        self.out = chat.transport
        self.chat = chat
        self.truth = truth
        self.prompt_tokens = prompt_tokens
        self.done = 0
        self.start = time.monotonic()
        self.step = 0
        asked = "continuous" if stream_options.get("continuous_usage_stats") else "final"
        asked = asked if stream_options.get("include_usage") else "none"
        order = ("none", "final", "continuous")
        self.usage = min(asked, self.options.usage, key=order.index)

    def begin(self, ttft: float) -> None:
        if not self.truth.stream:
            events = -(-self.truth.tokens // self.options.tokens_per_event)
            self.server.at(self.start + ttft + (events - 1) * self.options.itl_s, self.whole)
            return
        self.out.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        )
        self.send({"role": "assistant", "content": ""}, 0)
        self.first = self.start + ttft
        self.server.at(self.first, self.event)

    def whole(self) -> None:
        if self.out.is_closing():
            self.server.over(self.truth)
            return
        truth = self.truth
        message = {
            "role": "assistant",
            "content": WORD * (truth.tokens - truth.reasoning),
            self.options.reasoning_key: WORD * truth.reasoning,
        }
        self.truth.sent.append(time.monotonic())
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        self.server.over(truth)
        self.chat.answer(200, {"choices": [choice], "usage": self.counted(truth.tokens)})

    def counted(self, tokens: int) -> dict[str, Any]:
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + tokens,
            "completion_tokens": tokens,
        }
        if self.options.details and self.options.reasoning:
            usage["completion_tokens_details"] = {"reasoning_tokens": min(tokens, self.truth.reasoning)}
        return usage

    def event(self) -> None:
        """The next tokens: one kind an event, as a reasoning parser gives them."""
        truth, options = self.truth, self.options
        if self.out.is_closing():
            truth.failed = truth.failed or "client left"
            self.server.over(truth)
            return
        if truth.failed and self.done * 2 >= truth.tokens:
            if truth.failed == "silent":
                return
            self.server.over(truth)
            if truth.failed == "reset":
                self.out.abort()
            else:
                self.out.close()
            return
        thinking = self.done < truth.reasoning
        room = (truth.reasoning if thinking else truth.tokens) - self.done
        number = min(options.tokens_per_event, room)
        self.done += number
        last = self.done >= truth.tokens
        truth.sent.append(time.monotonic())
        key = options.reasoning_key if thinking else "content"
        self.send({key: WORD * number}, self.done, "length" if last else None)
        if last:
            self.finish()
            return
        self.step += 1
        self.server.at(self.first + self.step * options.itl_s, self.event)

    def send(self, delta: dict[str, Any], tokens: int, finish: str | None = None) -> None:
        shape = (*delta.items(), tokens if self.usage == "continuous" else -1, finish, self.prompt_tokens)
        data = self.server.shapes.get(shape)
        if data is None:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            base = {"id": "chatcmpl-1234567890abcdef", "object": "chat.completion.chunk", "created": 1764700000}
            event: dict[str, Any] = {**base, "model": self.options.model, "choices": [choice]}
            if self.usage == "continuous":
                event["usage"] = self.counted(tokens)
            data = self.server.shapes[shape] = chunk(event)
        self.out.write(data)

    def finish(self) -> None:
        tail = b""
        if self.usage != "none":
            tail = chunk({"choices": [], "usage": self.counted(self.done)})
        self.out.write(tail + chunk("[DONE]") + b"0\r\n\r\n")
        self.server.over(self.truth)
        self.out.close()


def chunk(event: Any) -> bytes:
    """One event in one HTTP chunk."""
    text = event if isinstance(event, str) else json.dumps(event, separators=(",", ":"))
    data = f"data: {text}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


async def main() -> None:
    """Serve until stdin is closed."""
    options = Options(**json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}"))
    loop = asyncio.get_running_loop()
    fake = FakeServer(options)
    server = await loop.create_server(lambda: Chat(fake), "127.0.0.1", options.port, backlog=4096)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
