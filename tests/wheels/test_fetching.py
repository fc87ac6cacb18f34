"""`scripts/fetch-vllm-sources` takes the sources out of a wheel without reading the rest of it."""

import io
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.wheels.test_shipped_patches import FETCH

LIBRARY = bytes(range(256)) * 4096 * 8  # 8 MB between the sources


def wheel() -> bytes:
    """A wheel with a large library between its two sources."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("vllm/__init__.py", "first\n")
        archive.writestr("vllm/_C.abi3.so", LIBRARY)
        archive.writestr("vllm/z.py", "last\n", zipfile.ZIP_DEFLATED)
        archive.writestr("vllm-1.dist-info/METADATA", "Version: 1\n")
    return made.getvalue()


class Server:
    """An index's file server, seen through a session of requests."""

    def __init__(self, data: bytes, ranges: bool = True) -> None:
        self.data, self.ranges, self.sent = data, ranges, 0

    def head(self, url: str, headers: dict[str, str]) -> Any:
        return SimpleNamespace(headers={"Content-Length": str(len(self.data))}, raise_for_status=lambda: None)

    def get(self, url: str, headers: dict[str, str]) -> Any:
        start, end = map(int, headers["Range"].removeprefix("bytes=").split("-"))
        content = self.data[start : end + 1] if self.ranges else self.data
        self.sent += len(content)
        code = 206 if self.ranges else 200
        return SimpleNamespace(content=content, status_code=code, raise_for_status=lambda: None)


def test_only_the_sources_are_read(tmp_path: Path) -> None:
    server = Server(wheel())
    assert FETCH["unpack_remote"](server, "wheel", tmp_path) == 3
    assert (tmp_path / "vllm/__init__.py").read_text() == "first\n"
    assert (tmp_path / "vllm/z.py").read_text() == "last\n"
    assert (tmp_path / "vllm-1.dist-info/METADATA").exists()
    assert not (tmp_path / "vllm/_C.abi3.so").exists()
    assert server.sent < len(LIBRARY) / 2


def test_a_server_without_ranges_is_told(tmp_path: Path) -> None:
    with pytest.raises(FETCH["Unavailable"], match="--whole"):
        FETCH["unpack_remote"](Server(wheel(), ranges=False), "wheel", tmp_path)
