"""The page cache, file by file: what is in it, bringing a range in, letting a file go."""

import ctypes
import errno
import mmap
import os
import random
from collections.abc import Sequence

PAGE = mmap.PAGESIZE
MADV_POPULATE_READ = 22  # Linux 5.14
STRIDE = 2 << 20
PROBES = 50_000  # for one question: about 0.1 s

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
for _name in ("munmap", "madvise", "mincore"):
    getattr(_libc, _name).argtypes = {
        "munmap": (ctypes.c_void_p, ctypes.c_size_t),
        "madvise": (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
        "mincore": (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p),
    }[_name]
_FAILED = ctypes.c_void_p(-1).value


class Unsupported(Exception):
    """The kernel or the filesystem cannot do it this way."""


class _View:
    """A read-only mapping that can be asked and populated without touching it."""

    def __init__(self, fd: int, offset: int, length: int) -> None:
        self.length = length
        address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, fd, offset)
        if address is None or address == _FAILED:
            raise OSError(ctypes.get_errno(), "mmap")
        self.address: int = address

    def __enter__(self) -> "_View":
        return self

    def __exit__(self, *error: object) -> None:
        _libc.munmap(self.address, self.length)

    def has(self, offset: int) -> bool:
        answer = ctypes.create_string_buffer(1)
        if _libc.mincore(self.address + offset, PAGE, answer) != 0:
            raise OSError(ctypes.get_errno(), "mincore")
        return bool(answer.raw[0] & 1)


def can_be_asked(path: str) -> bool:
    """Whether mincore tells the truth about this file: to those who may not write it, it calls every page resident."""
    return os.stat(path).st_uid == os.geteuid() or os.access(path, os.W_OK)


def resident_in(fd: int, offset: int, length: int, stride: int, *, trusted: bool) -> tuple[int, int]:
    """(probed, resident) pages of a range, one page every `stride` bytes. `offset` is page-aligned; `trusted` as of
    `can_be_asked`: without it pages are probed by reading one byte without waiting, at a random place."""
    offsets = range(0, length, stride)
    if not trusted:
        hits = 0
        for start in offsets:
            # a cold probe brings its page in, so the same place must not be asked twice
            place = offset + min(length - 1, start + random.randrange(max(1, min(stride, length - start))))
            hits += _there(fd, place)
        return len(offsets), hits
    with _View(fd, offset, length) as view:
        return len(offsets), sum(view.has(start) for start in offsets)


def _there(fd: int, place: int) -> bool:
    try:
        return os.preadv(fd, [bytearray(1)], place, os.RWF_NOWAIT) == 1
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
            return False
        raise


def resident_share(files: Sequence[tuple[str, int]]) -> float:
    """The share (0 to 1) of these files (path, size in bytes) that is in the page cache, by sampling."""
    total = sum(size for _, size in files)
    stride = max(STRIDE, total // PROBES // PAGE * PAGE)
    probed = hits = 0
    for path, size in files:
        if size == 0:
            continue
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            more = resident_in(fd, 0, size, stride, trusted=can_be_asked(path))
        finally:
            os.close(fd)
        probed, hits = probed + more[0], hits + more[1]
    return hits / probed if probed else 1.0


def populate(fd: int, offset: int, length: int) -> None:
    """Bring a range in, without copying it and without holding the interpreter's lock; returns when it is there.

    Raises:
        Unsupported: this kernel or filesystem does not have it.
        OSError: the range cannot be read.
    """
    with _View(fd, offset, length) as view:
        if _libc.madvise(view.address, length, MADV_POPULATE_READ) != 0:
            number = ctypes.get_errno()
            if number == errno.EINVAL:
                raise Unsupported
            raise OSError(number, os.strerror(number))


def drop(path: str) -> None:
    """Let the kernel forget the file's clean pages; those that a process has mapped stay."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
