"""A small HTTP client for one selector loop: one request, one answer, one deadline, nothing that blocks.

HTTP/1.0, so that the end of the answer is the end of the stream. Proxies are never used: a probe of our own engine
must not leave the machine.
"""

import errno
import os
import socket
from typing import NamedTuple

ANSWER_LIMIT = 8 << 20


class Answer(NamedTuple):
    """Status and body of an answer; status None and the reason when there was none."""

    status: int | None
    body: bytes
    why: str = ""


class Exchange:
    """One request under way. Register `fileno` for `wants_write`/read, call `advance` when it is ready."""

    def __init__(self, host: str, port: int, request: bytes, *, deadline: float) -> None:
        self.deadline = deadline
        self.answer: Answer | None = None
        self.wants_write = True
        self._out = request
        self._in = bytearray()
        self._connected = False
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        try:
            code = self._socket.connect_ex((host, port))
        except OSError as error:  # a name that does not resolve
            code = error.errno or errno.EHOSTUNREACH
        if code not in (0, errno.EINPROGRESS):
            self._end(None, os.strerror(code))

    def fileno(self) -> int:
        """The socket, for a selector."""
        return self._socket.fileno()

    def advance(self) -> None:
        """Go on as far as possible without waiting; sets `answer` at the end."""
        try:
            if not self._connected:
                code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    self._end(None, os.strerror(code))
                    return
                self._connected = True
            if self._out:
                self._out = self._out[self._socket.send(self._out) :]
                self.wants_write = bool(self._out)
                return
            chunk = self._socket.recv(65536)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(None, error.strerror or str(error))
            return
        if chunk and len(self._in) < ANSWER_LIMIT:
            self._in += chunk
            return
        self._parse()

    def expire(self) -> None:
        """The deadline has passed."""
        self._end(None, "no answer in time" if self._connected else "no connection in time")

    def close(self) -> None:
        """Give up without an answer."""
        self._socket.close()

    def _parse(self) -> None:
        head, separator, body = bytes(self._in).partition(b"\r\n\r\n")
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if not separator or len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
            self._end(None, "the answer is not HTTP" if self._in else "the connection was closed without an answer")
            return
        self._end(int(words[1]), "", body)

    def _end(self, status: int | None, why: str, body: bytes = b"") -> None:
        self.answer = Answer(status, body, why)
        self._socket.close()


def request(method: str, path: str, host: str, *, body: bytes = b"", api_key: str | None = None) -> bytes:
    """The bytes of one HTTP/1.0 request."""
    lines = [f"{method} {path} HTTP/1.0", f"Host: {host}", "Connection: close", "User-Agent: kdeploy"]
    if api_key:
        lines.append(f"Authorization: Bearer {api_key}")
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
