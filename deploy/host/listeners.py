"""Who listens on a TCP port, read from /proc/net: is a port free, and does our own engine hold it."""

import contextlib
import errno
import os
import socket
import struct
from typing import NamedTuple

LISTEN = "0A"
TIME_WAIT = "06"

WILDCARDS = ("", "0.0.0.0", "::")


class Holder(NamedTuple):
    """What holds a port: `inode` of the listening socket and the pid, None where it cannot be read."""

    inode: int
    pid: int | None


def probe_host(host: str) -> str:
    """The address at which a server bound to `host` answers from this machine."""
    if host in ("", "0.0.0.0"):
        return "127.0.0.1"
    return "::1" if host == "::" else host


class Socket(NamedTuple):
    """One row of /proc/net/tcp: local address, port, state, inode."""

    address: str
    port: int
    state: str
    inode: int


def _sockets(port: int, state: str) -> list[Socket]:
    """The TCP sockets in `state` on local `port`."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as file:
                lines = file.readlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            address, _, number = fields[1].rpartition(":")
            if fields[3] == state and int(number, 16) == port:
                found.append(Socket(_address(address), port, state, int(fields[9])))
    return found


def _address(text: str) -> str:
    """An address of /proc/net/tcp: 32-bit words in hexadecimal, each in the byte order of the machine."""
    packed = b"".join(struct.pack("=I", int(text[at : at + 8], 16)) for at in range(0, len(text), 8))
    return socket.inet_ntop(socket.AF_INET6 if len(packed) == 16 else socket.AF_INET, packed)


def listening_inodes(port: int, host: str | None = None) -> set[int]:
    """Inodes of the sockets that listen on `port`; with `host`, only those that get requests for that address."""
    rows = _sockets(port, LISTEN)
    if host is not None and host not in WILDCARDS:
        rows = [row for row in rows if row.address in (*WILDCARDS, _numeric(host))]
    return {row.inode for row in rows}


def _numeric(host: str) -> str:
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return host


def held_sockets(pid: int) -> set[int] | None:
    """Inodes of the sockets that `pid` has open; None when its descriptors cannot be read."""
    try:
        entries = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return None
    inodes = set()
    for entry in entries:
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/{pid}/fd/{entry}")
            if target.startswith("socket:["):
                inodes.add(int(target[8:-1]))
    return inodes


def holder(port: int, host: str) -> Holder | None:
    """The listener that gets requests for `host:port`, with its pid where it can be found; None when nobody listens."""
    inodes = listening_inodes(port, host)
    if not inodes:
        return None
    for entry in os.listdir("/proc"):
        if entry.isdigit() and inodes & (held_sockets(int(entry)) or set()):
            return Holder(min(inodes), int(entry))
    return Holder(min(inodes), None)


def _can_bind(host: str, port: int, *, reuse: bool) -> OSError | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
    return None


def port_problem(host: str, port: int) -> str | None:
    """Why a server could not use `host:port` now, in words; None when it could.

    A vLLM that loads has bound its port without listening on it. Such a socket lets a second one bind where both
    set SO_REUSEADDR, and shows in no table; a plain bind finds it, and so does everything but a TIME_WAIT.
    """
    bound = host or "0.0.0.0"
    error = _can_bind(bound, port, reuse=True)
    if error is not None and error.errno != errno.EADDRINUSE:
        return f"cannot bind {bound}:{port}: {error.strerror}"
    if error is not None:
        return f"{bound}:{port} is in use"
    # an address of its own beside somebody's wildcard binds, and then requests reach either server
    if listening_inodes(port) and bound not in WILDCARDS and _answers(bound, port):
        return f"{bound}:{port} is answered by another server"
    plain = _can_bind(bound, port, reuse=False)
    if plain is not None and plain.errno == errno.EADDRINUSE and not _sockets(port, TIME_WAIT):
        return f"{bound}:{port} is bound by a server that does not listen yet"
    return None


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((probe_host(host), port), timeout=1.0):
            return True
    except OSError:
        return False
