"""Files of /proc and /sys below a root: the machine's own, or a copy of another machine's."""

import os
from typing import NamedTuple

VARIABLE = "KDEPLOY_SYSROOT"


class Sysroot(NamedTuple):
    """Reads below `root`. A file that is missing or unreadable is None, never an error."""

    root: str = "/"

    @property
    def live(self) -> bool:
        """Whether this is the running machine."""
        return self.root == "/"

    def path(self, path: str) -> str:
        """Where `path` (absolute, as on the machine) lies."""
        return os.path.join(self.root, path.lstrip("/"))

    def data(self, path: str) -> bytes | None:
        """The bytes of a file."""
        try:
            with open(self.path(path), "rb") as file:
                return file.read()
        except OSError:
            return None

    def text(self, path: str) -> str | None:
        """The text of a file, without the white space around it."""
        data = self.data(path)
        return None if data is None else data.decode(errors="replace").strip()

    def number(self, path: str) -> int | None:
        """The whole number that a file holds, hexadecimal with 0x."""
        try:
            return int(self.text(path) or "", 0)
        except ValueError:
            return None

    def names(self, path: str) -> list[str]:
        """The entries of a folder, sorted; empty where there is none."""
        try:
            return sorted(os.listdir(self.path(path)))
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        return os.path.exists(self.path(path))

    def resolve(self, path: str) -> str | None:
        """Where a link leads, as a path of the machine; None when it leads nowhere, or out of the root."""
        real, top = os.path.realpath(self.path(path)), os.path.realpath(self.root)
        if not os.path.exists(real) or os.path.commonpath([real, top]) != top:
            return None
        return "/" + os.path.relpath(real, top)


def sysroot() -> Sysroot:
    """The machine, or the copy of one that KDEPLOY_SYSROOT names."""
    return Sysroot(os.environ.get(VARIABLE) or "/")
