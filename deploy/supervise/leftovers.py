"""Shared memory and socket files of an engine. A vLLM that is ended leaves them, and whose they are is known only while
it lives."""

from collections.abc import Iterable
from typing import Any

from deploy.host.shm import FOLDER, mapped_by, remove_unmapped
from deploy.host.sockets import bound_by, remove_unbound


class Leftovers:
    """The files that were seen in use by the engine's processes."""

    def __init__(self) -> None:
        self.shm: set[str] = set()
        self.sockets: set[str] = set()

    def recall(self, paths: Iterable[str]) -> None:
        """Files that the supervisor before has journalled in this boot."""
        for path in paths:
            (self.shm if path.startswith(FOLDER) else self.sockets).add(path)

    def look(self, pids: Iterable[int], *, sockets: bool) -> list[str]:
        """What these processes use now and did not before. Looking for `sockets` costs more."""
        pids = list(pids)
        shm, bound = mapped_by(pids), bound_by(pids) if sockets else set()
        fresh = (shm - self.shm) | (bound - self.sockets)
        self.shm |= shm
        self.sockets |= bound
        return sorted(fresh)

    def remove(self) -> dict[str, Any]:
        """Remove those that nobody uses any more; what was removed, for the journal."""
        found = {"shared_memory_removed": remove_unmapped(self.shm), "sockets_removed": remove_unbound(self.sockets)}
        return {kind: paths for kind, paths in found.items() if paths}
