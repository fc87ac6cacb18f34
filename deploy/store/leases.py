"""GPU leases: one lock file for each GPU, shared by all users of the machine; they die with their holder."""

import contextlib
import os
from collections.abc import Sequence
from typing import Any

from deploy.errors import environment, refused
from deploy.homes import lease_dir
from deploy.host.processes import Identity, boot_id, is_alive
from deploy.store.locks import is_held, read_holder, try_lock, write_holder


def lease_path(uuid: str) -> str:
    """The lease file of a GPU."""
    return os.path.join(lease_dir(), f"{uuid}.lease")


def holder_of(uuid: str) -> dict[str, Any] | None:
    """Who leases the GPU, None when nobody does.

    A lease whose lock is free is still held while the engine it was taken for lives: its supervisor may have died.
    """
    path = lease_path(uuid)
    holder = read_holder(path)
    if is_held(path):
        return holder or {"deployment": "?"}
    engine = holder.get("engine")
    if engine and holder.get("boot_id") == boot_id() and is_alive(Identity(*engine)):
        return holder
    return None


def try_lease(uuid: str) -> int | None:
    """A descriptor that holds the lease of a GPU, or None when somebody else does. Other users must see it and take
    it later, hence its mode."""
    return try_lock(lease_path(uuid), 0o666)


def take(uuids: Sequence[str], deployment: str) -> list[int]:
    """Descriptors that hold the leases of all these GPUs, or exit 4 naming the holders; all or none."""
    folder = lease_dir()
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise environment(f"cannot make the lease folder {folder}", evidence=[error.strerror or ""]) from None
    fds: list[int] = []
    taken: list[str] = []
    for uuid in uuids:
        holder = holder_of(uuid)
        try:
            fd = None if holder else try_lease(uuid)
            if fd is not None:
                fds.append(fd)
                write_holder(fd, {"deployment": deployment, "pid": os.getpid(), "boot_id": boot_id()})
        except OSError as error:
            release(fds)
            raise environment(
                f"cannot write the lease of {uuid}",
                evidence=[f"{lease_path(uuid)}: {error.strerror}"],
                fix=["export KDEPLOY_LEASE_DIR=/a/folder/that/you/can/write"],
            ) from None
        if fd is None:
            holder = holder or read_holder(lease_path(uuid))
            taken.append(f"{uuid}: {holder.get('deployment', '?')}, since {holder.get('since', '?')}")
    if taken:
        release(fds)
        raise refused(
            f"{len(taken)} of the GPUs {'is' if len(taken) == 1 else 'are'} leased",
            evidence=taken,
            fix=["kdeploy ps shows the deployments", "choose others: --gpus LIST"],
        )
    return fds


def release(fds: Sequence[int]) -> None:
    """Let the leases go."""
    for fd in fds:
        os.close(fd)


def note_engine(fds: Sequence[int], deployment: str, engine: Identity) -> None:
    """Write into the leases which engine they are for: it goes on holding them if we die."""
    for fd in fds:
        with contextlib.suppress(OSError):  # a full disk must not end us
            write_holder(fd, {"deployment": deployment, "engine": engine, "boot_id": boot_id(), "pid": os.getpid()})


def take_over(uuids: Sequence[str], deployment: str, engine: Identity) -> list[int]:
    """The leases of an engine whose supervisor has died, as far as they can be had."""
    fds = []
    for uuid in uuids:
        with contextlib.suppress(OSError):
            if (fd := try_lease(uuid)) is not None:
                fds.append(fd)
    note_engine(fds, deployment, engine)
    return fds
