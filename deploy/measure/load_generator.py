"""The load: many streams in one loop, which only stamps bytes with the time and keeps them.

Reading what they say is done afterwards (timeline.py): a client that parses while it measures is late for the next
bytes. One connection a request, as most clients of a gateway have it; its set-up counts as waiting.
"""

import contextlib
import errno
import gc
import heapq
import os
import resource
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from deploy.errors import environment
from deploy.measure.timeline import Exchange, Timeline, read

SILENCE_S = 300.0  # a stream that brings nothing for so long has failed
SPARE_FILES = 64
KEPT_BYTES = 256 << 20  # of answers not read yet; beyond it they are read while others run
RECEIVE = 1 << 16
IN, OUT, HANGUP = select.EPOLLIN, select.EPOLLOUT, select.EPOLLHUP | select.EPOLLERR
LAST_CHUNK = b"\r\n0\r\n\r\n"
WAIT = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Address(NamedTuple):
    """Where to connect: resolved once, so that no request waits for a name."""

    family: int
    address: tuple[Any, ...]
    name: str
    tls: ssl.SSLContext | None = None


class Client(NamedTuple):
    """What the load cost its sender. `busy`: share of the time it computed or waited for a processor."""

    cpu_s: float
    reading_cpu_s: float
    busy: float
    lag_p99_s: float
    lag_max_s: float


class Outcome(NamedTuple):
    """Every request's timeline in the order of the requests, and the client's own cost."""

    timelines: list[Timeline]
    client: Client


class _Stream:
    __slots__ = ("exchange", "heard", "left", "out", "ready", "socket", "tls")

    def __init__(self, exchange: Exchange, out: bytes, connection: socket.socket, tls: bool) -> None:
        self.exchange = exchange
        self.out = out
        self.socket = connection
        self.tls = tls
        self.ready = False
        self.left = -1  # bytes of the answer to come, where it says how many
        self.heard = exchange.asked


class Load:
    """One level of load against one server."""

    def __init__(self, address: Address, *, silence_s: float = SILENCE_S) -> None:
        self._address = address
        self._silence_s = silence_s
        self._poll = select.epoll()
        self._streams: dict[int, _Stream] = {}
        self._unread: deque[Exchange] = deque()
        self._kept = 0
        self._timelines: list[Timeline] = []
        self._reading_cpu = 0.0

    def closed(self, requests: Iterable[bytes], concurrency: int) -> Outcome:
        """`concurrency` users, each of whom asks again as soon as the answer is there."""
        return self._run(iter(requests), concurrency, None)

    def open(self, requests: Iterable[bytes], due: list[float]) -> Outcome:
        """Requests at given times (seconds from now), however many are under way. A late one counts from its time."""
        return self._run(iter(requests), len(due), due)

    def _run(self, requests: Iterator[bytes], most: int, due: list[float] | None) -> Outcome:
        allow_files(most)
        lags: list[float] = []
        collecting = gc.isenabled()
        gc.disable()
        start, cpu, waited = time.monotonic(), time.thread_time(), _runqueue_s()
        when = [start + seconds for seconds in due] if due is not None else []
        heapq.heapify(when)
        number, more, looked = 0, True, start
        try:
            while more or self._streams:
                now = time.monotonic()
                while more and len(self._streams) < most and (due is None or (when and when[0] <= now)):
                    body = next(requests, None)
                    if body is None or (due is not None and not when):
                        more = False
                        break
                    self._start(Exchange(number, heapq.heappop(when) if due is not None else time.monotonic()), body)
                    number += 1
                    more = due is None or bool(when)
                if now - looked >= 1:
                    looked = now
                    self._drop_silent(now)
                if self._kept > KEPT_BYTES:
                    self._read_one()
                pause = 1.0 if not when or not more else min(1.0, max(0.0, when[0] - now))
                if not self._streams and not (more and when):
                    continue  # nothing to wait for
                events = self._poll.poll(pause)
                got = time.monotonic()
                for fd, mask in events:
                    stream = self._streams.get(fd)
                    if stream is not None:
                        self._advance(stream, mask)
                if events:
                    lags.append(time.monotonic() - got)
            wall = max(time.monotonic() - start, 1e-9)
            spent, queued = time.thread_time() - cpu, _runqueue_s() - waited
            while self._unread:
                self._read_one()
        finally:
            for stream in list(self._streams.values()):
                stream.socket.close()
            self._poll.close()
            if collecting:
                gc.enable()
        lags.sort()
        client = Client(
            spent,
            self._reading_cpu,
            min(1.0, (spent + queued) / wall),
            lags[int(0.99 * (len(lags) - 1))] if lags else 0.0,
            lags[-1] if lags else 0.0,
        )
        return Outcome(sorted(self._timelines, key=lambda timeline: timeline.number), client)

    def _start(self, exchange: Exchange, out: bytes) -> None:
        connection = socket.socket(self._address.family, socket.SOCK_STREAM)
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            code = connection.connect_ex(self._address.address)
        except OSError as error:
            code = error.errno or errno.EHOSTUNREACH
        if self._address.tls is not None and code in (0, errno.EINPROGRESS):
            stream = _Stream(exchange, out, connection, True)
        else:
            stream = _Stream(exchange, out, connection, False)
        self._streams[connection.fileno()] = stream
        self._poll.register(connection.fileno(), OUT)
        if code not in (0, errno.EINPROGRESS):
            self._end(stream, f"no connection: {os.strerror(code)}")

    def _advance(self, stream: _Stream, mask: int) -> None:
        try:
            if not stream.ready and not self._connect(stream):
                return
            if stream.out:
                stream.out = stream.out[stream.socket.send(stream.out) :]
                if stream.out:
                    return
                self._poll.modify(stream.socket.fileno(), IN)
                if not mask & HANGUP:
                    return
            while True:
                data = stream.socket.recv(RECEIVE)
                now = time.monotonic()
                if self._take(stream, data, now) or not (stream.tls and stream.socket.pending()):  # type: ignore[attr-defined]
                    return
        except WAIT:
            return
        except OSError as error:
            self._end(stream, f"connection broke: {error.strerror or error}")

    def _connect(self, stream: _Stream) -> bool:
        """Go on with connection and handshake; True when requests can be sent."""
        if stream.exchange.connected is None and stream.tls and not isinstance(stream.socket, ssl.SSLSocket):
            if code := stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._end(stream, f"no connection: {os.strerror(code)}")
                return False
            assert self._address.tls is not None
            self._poll.unregister(stream.socket.fileno())
            del self._streams[stream.socket.fileno()]
            stream.socket = self._address.tls.wrap_socket(
                stream.socket, server_hostname=self._address.name, do_handshake_on_connect=False
            )
            self._streams[stream.socket.fileno()] = stream
            self._poll.register(stream.socket.fileno(), IN | OUT)
        if isinstance(stream.socket, ssl.SSLSocket):
            try:
                stream.socket.do_handshake()
            except ssl.SSLWantReadError:
                self._poll.modify(stream.socket.fileno(), IN)
                return False
            except ssl.SSLWantWriteError:
                self._poll.modify(stream.socket.fileno(), OUT)
                return False
            self._poll.modify(stream.socket.fileno(), OUT)
        elif code := stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._end(stream, f"no connection: {os.strerror(code)}")
            return False
        stream.ready = True
        stream.exchange.connected = stream.heard = time.monotonic()
        return True

    def _take(self, stream: _Stream, data: bytes, now: float) -> bool:
        """Keep what came; True when that was the end."""
        pieces = stream.exchange.pieces
        stream.heard = now
        if not data:
            self._end(stream, "")
            return True
        if not pieces:
            stream.left = _length(data)
        pieces.append((now, data))
        if stream.left >= 0:
            stream.left -= len(data)
            if stream.left <= 0:
                self._end(stream, "")
                return True
        elif data.endswith(LAST_CHUNK) or data == LAST_CHUNK[2:]:
            self._end(stream, "")
            return True
        return False

    def _end(self, stream: _Stream, fault: str) -> None:
        stream.exchange.ended = time.monotonic()
        stream.exchange.fault = fault
        del self._streams[stream.socket.fileno()]
        with contextlib.suppress(OSError):
            self._poll.unregister(stream.socket.fileno())
        stream.socket.close()
        self._unread.append(stream.exchange)
        self._kept += sum(len(data) for _, data in stream.exchange.pieces)

    def _drop_silent(self, now: float) -> None:
        for stream in [one for one in self._streams.values() if now - one.heard > self._silence_s]:
            what = "nothing came" if stream.ready else "no connection"
            self._end(stream, f"{what} for {self._silence_s:g} s")

    def _read_one(self) -> None:
        cpu = time.thread_time()
        exchange = self._unread.popleft()
        self._kept -= sum(len(data) for _, data in exchange.pieces)
        self._timelines.append(read(exchange))
        self._reading_cpu += time.thread_time() - cpu


def _length(data: bytes) -> int:
    """Bytes of the whole answer, head included, where it says so; else -1."""
    head, separator, _ = data.partition(b"\r\n\r\n")
    lowered = head.lower()
    at = lowered.find(b"\r\ncontent-length:")
    if not separator or at < 0:
        return -1
    value = lowered[at + 17 :].split(b"\r\n", 1)[0].strip()
    return len(head) + 4 + int(value) if value.isdigit() else -1


def _runqueue_s() -> float:
    """How long this thread has waited for a processor; 0 where the kernel does not tell."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def allow_files(streams: int) -> None:
    """Raise the limit of open files for so many streams, or say that it cannot be (exit 6)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = streams + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            raise environment(
                f"{streams} streams need {wanted} open files, and this process may have {hard}",
                evidence=[f"RLIMIT_NOFILE: soft {soft}, hard {hard}"],
                fix=[f"ulimit -Hn {wanted}   as root, or LimitNOFILE= of the service", "or a lower --concurrency"],
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
