"""Shared memory and socket files of an engine. A vLLM that is ended leaves them, and whose they are is known only while
it lives; its sockets are therefore sent into a folder of the launch's own."""

import contextlib
import os
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from deploy.host.shm import FOLDER, mapped_by, remove_unmapped
from deploy.host.sockets import bound_by, files_in, remove_unbound
from deploy.plan.environment import TMPDIR_LIMIT

FOLDER_PREFIX = "kdeploy-sockets-"


class Leftovers:
    """The files that were seen in use by the engine's processes, and the folder made for its sockets."""

    def __init__(self) -> None:
        self.shm: set[str] = set()
        self.sockets: set[str] = set()
        self.folder: str | None = None

    def choose_folder(self, env: Mapping[str, str]) -> list[str]:
        """Where the sockets of an engine with the environment `env` shall lie; to be journalled before it is made.

        Nothing where no place will do: then only sockets that were seen are removed.
        """
        named = env.get("VLLM_RPC_BASE_PATH")
        for place in (named,) if named else (env.get("TMPDIR", "/tmp"), "/tmp"):
            folder = os.path.join(place, FOLDER_PREFIX + secrets.token_hex(4))
            if len(os.fsencode(folder)) <= TMPDIR_LIMIT and os.access(place, os.W_OK | os.X_OK):
                self.folder = folder
                return [folder]
        return []

    def make_folder(self) -> dict[str, str]:
        """Make it; the variable that sends vLLM's sockets there."""
        if self.folder is not None:
            try:
                os.mkdir(self.folder, 0o700)
                return {"VLLM_RPC_BASE_PATH": self.folder}
            except OSError:
                self.folder = None
        return {}

    def recall(self, paths: Iterable[str]) -> None:
        """Files that the supervisor before has journalled in this boot."""
        for path in paths:
            if path.startswith(FOLDER):
                self.shm.add(path)
            elif os.path.basename(path).startswith(FOLDER_PREFIX):
                self.folder = path
            else:
                self.sockets.add(path)

    def look(self, pids: Iterable[int], *, sockets: bool) -> list[str]:
        """What these processes use now and did not before. Looking for `sockets` costs more."""
        pids = list(pids)
        shm, bound = mapped_by(pids), bound_by(pids) if sockets else set()
        bound = {path for path in bound if self.folder is None or os.path.dirname(path) != self.folder}
        fresh = (shm - self.shm) | (bound - self.sockets)
        self.shm |= shm
        self.sockets |= bound
        return sorted(fresh)

    def remove(self) -> dict[str, Any]:
        """Remove those that nobody uses any more; what was removed, for the journal."""
        sockets = self.sockets | (files_in(self.folder) if self.folder else set())
        found = {"shared_memory_removed": remove_unmapped(self.shm), "sockets_removed": remove_unbound(sockets)}
        if self.folder is not None:
            with contextlib.suppress(OSError):  # gone, or what is still in it is not ours to remove
                os.rmdir(self.folder)
        return {kind: paths for kind, paths in found.items() if paths}
