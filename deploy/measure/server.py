"""The server that is measured: what it serves, how it counts, and what it is doing."""

import http.client
import ipaddress
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from deploy import errors
from deploy.measure.load_generator import Address

PATIENCE_S = 30.0
REQUESTS = re.compile(r"^vllm:num_requests_(?:running|waiting)(?:\{[^}]*\})? ([0-9.e+]+)", re.MULTILINE)
FINISHED = re.compile(r"^vllm:request_success_total(?:\{[^}]*\})? ([0-9.e+]+)", re.MULTILINE)


class Activity(NamedTuple):
    """What the engine says of itself: requests that it holds now, and requests that it has finished."""

    held: float
    finished: float


class Server:
    """An OpenAI-compatible server by its URL (with or without /v1 at the end)."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise errors.usage(f"{url!r} is no address of a server", fix=["--url http://HOST:PORT"])
        self.host = parts.hostname
        try:
            self.port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as error:
            raise errors.usage(f"{url!r} is no address of a server", evidence=[str(error)]) from None
        self.path = parts.path.rstrip("/").removesuffix("/v1")
        host = f"[{self.host}]" if ":" in self.host else self.host
        self.url = f"{parts.scheme}://{host}:{self.port}{self.path}"
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._api_key = api_key

    def address(self) -> Address:
        """Where the load goes, resolved. Raises KdeployError (exit 3) for a name that does not resolve."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise self._down(str(error)) from None
        family, _, _, _, address = found[0]
        return Address(family, address, self.host, self._tls)

    def request(self, body: bytes) -> bytes:
        """A chat completion request as bytes for the wire."""
        lines = [
            f"POST {self.path}/v1/chat/completions HTTP/1.1",
            f"Host: {self.host}:{self.port}",
            "User-Agent: kdeploy",
            "Accept: text/event-stream, application/json",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Connection: close",
        ]
        if self._api_key:
            lines.append(f"Authorization: Bearer {self._api_key}")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    def model(self, wanted: str | None) -> tuple[str, int | None]:
        """The served name to ask for, and its longest context where told.

        Raises:
            KdeployError: nothing answers (exit 3), it wants a key (6), it serves no such model (2).
        """
        status, body = self._ask("GET", "/v1/models")
        if status in (401, 403):
            raise errors.environment(
                f"{self.url} wants an API key",
                evidence=[f"GET /v1/models: {status} {body[:200].decode(errors='replace')}"],
                fix=["--api-key '${env:NAME}'   names the variable that holds it"],
            )
        try:
            served = [entry for entry in json.loads(body)["data"] if isinstance(entry, dict)]
            names = [str(entry["id"]) for entry in served]
        except (ValueError, KeyError, TypeError):
            raise errors.KdeployError(
                f"{self.url} is no OpenAI-compatible server",
                evidence=[f"GET /v1/models: {status} {body[:200].decode(errors='replace')}"],
            ) from None
        if not names:
            raise errors.KdeployError(f"{self.url} serves no model", evidence=["GET /v1/models: an empty list"])
        name = wanted or names[0]
        if name not in names:
            raise errors.usage(f"{self.url} serves no model {name!r}", evidence=[f"it serves: {', '.join(names)}"])
        longest = served[names.index(name)].get("max_model_len")
        return name, longest if isinstance(longest, int) else None

    def count(self, model: str, text: str) -> int | None:
        """Tokens of a text by the engine's own tokenizer; None where it is not offered."""
        if not text:
            return 0
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        try:
            status, answer = self._ask("POST", "/tokenize", json.dumps(body).encode())
            return int(json.loads(answer)["count"]) if status == 200 else None
        except (errors.KdeployError, ValueError, KeyError, TypeError):
            return None

    def activity(self) -> Activity | None:
        """What the engine holds now; None where it does not tell (no vLLM, no /metrics)."""
        try:
            status, body = self._ask("GET", "/metrics")
        except errors.KdeployError:
            return None
        text = body.decode(errors="replace")
        held = [float(value) for value in REQUESTS.findall(text)]
        if status != 200 or not held:
            return None
        return Activity(sum(held), sum(float(value) for value in FINISHED.findall(text)))

    def await_idle(self, limit_s: float) -> bool | None:
        """Wait until it holds no request: whether it came to that; None where it does not tell."""
        deadline = time.monotonic() + limit_s
        while True:
            now = self.activity()
            if now is None or now.held == 0:
                return None if now is None else True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.1)

    def version(self) -> str | None:
        """The engine's own version, where it has such a page."""
        try:
            status, body = self._ask("GET", "/version")
            return str(json.loads(body)["version"]) if status == 200 else None
        except (errors.KdeployError, ValueError, KeyError, TypeError):
            return None

    def is_local(self) -> bool:
        """Whether it runs on this machine, whose GPUs then are its own."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def _ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        if self._tls is not None:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self.host, self.port, timeout=PATIENCE_S, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE_S)
        headers = {"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, self.path + path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._down(str(error) or type(error).__name__) from None
        finally:
            connection.close()

    def _down(self, why: str) -> errors.KdeployError:
        return errors.not_running(
            f"no server answers at {self.url}", evidence=[why], fix=["kdeploy ps   shows what runs, and where"]
        )


class Watch:
    """Looks at the server's own count of requests once a second, in a thread, while a level runs."""

    def __init__(self, server: Server) -> None:
        self.samples: list[tuple[float, float]] = []
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        pause = 0.2
        while not self._stop.wait(pause):
            pause = 1.0
            before = time.monotonic()
            now = self._server.activity()
            if now is None:
                return
            self.samples.append(((before + time.monotonic()) / 2, now.held))


def finished_by_others(before: Activity | None, after: Activity | None, ours: Sequence[object]) -> float:
    """How many more requests the engine has finished than we have sent."""
    if before is None or after is None:
        return 0.0
    return max(0.0, after.finished - before.finished - len(ours))
