"""GPU leases: one lock file for each GPU, shared by all users of the machine; they die with their holder."""

import contextlib
import os
import pwd
from collections.abc import Sequence
from typing import Any

from deploy.errors import environment, refused
from deploy.homes import lease_dir, make_lease_dir
from deploy.host.processes import Identity, boot_id, identity_of, is_alive
from deploy.store.locks import is_held, read_holder, try_lock, write_holder

WRITABLE = [
    "name a folder that every user of these GPUs can write: export KDEPLOY_LEASE_DIR=/a/folder",
    "or have it made for all: install -d -m 1777 /run/lock/kdeploy",
]


def _me() -> dict[str, Any]:
    """The holder as it writes itself into a lease."""
    me = identity_of(os.getpid())
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = f"uid {os.getuid()}"
    return {"user": user, "pid": os.getpid(), "ticks": me.ticks if me else None, "boot_id": boot_id()}


def lease_path(uuid: str, folder: str | None = None) -> str:
    """The lease file of a GPU, in `folder` or in the one of this environment."""
    return os.path.join(folder or lease_dir(), f"{uuid}.lease")


def holder_of(uuid: str, folder: str | None = None) -> dict[str, Any] | None:
    """Who leases the GPU, None when nobody does.

    A lease whose lock is free is still held while the engine it was taken for lives: its supervisor may have died.
    """
    path = lease_path(uuid, folder)
    holder = read_holder(path)
    if is_held(path):
        return holder or {"deployment": "?"}
    engine = holder.get("engine")
    if engine and holder.get("boot_id") == boot_id() and is_alive(Identity(*engine)):
        return holder
    return None


def try_lease(uuid: str, folder: str | None = None) -> int | None:
    """A descriptor that holds the lease of a GPU, or None when somebody else does. Other users must see it and take
    it later, hence its mode."""
    return try_lock(lease_path(uuid, folder), 0o666)


def take(uuids: Sequence[str], deployment: str, folder: str | None = None) -> list[int]:
    """Descriptors that hold the leases of all these GPUs, or exit 4 naming the holders; all or none.

    Args:
        uuids: the GPUs.
        deployment: whom they are for.
        folder: where the leases lie; None for the one of this environment.
    """
    folder = folder or lease_dir()
    try:
        make_lease_dir(folder)
    except OSError as error:
        raise environment(
            f"cannot make the lease folder {folder}",
            evidence=[f"{error.filename or folder}: {error.strerror}"],
            fix=WRITABLE,
        ) from None
    fds: list[int] = []
    taken: list[str] = []
    for uuid in uuids:
        holder = holder_of(uuid, folder)
        try:
            fd = None if holder else try_lease(uuid, folder)
            if fd is not None:
                fds.append(fd)
                write_holder(fd, {"deployment": deployment, **_me()})
        except OSError as error:
            release(fds)
            raise environment(
                f"cannot write the lease of {uuid}",
                evidence=[f"{lease_path(uuid, folder)}: {error.strerror}"],
                fix=WRITABLE,
            ) from None
        if fd is None:
            holder = holder or read_holder(lease_path(uuid, folder))
            user = f" of {holder['user']}" if holder.get("user") else ""
            taken.append(f"{uuid}: {holder.get('deployment', '?')}{user}, since {holder.get('since', '?')}")
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
            write_holder(fd, {"deployment": deployment, "engine": engine, **_me()})


def take_over(uuids: Sequence[str], deployment: str, engine: Identity, folder: str | None = None) -> list[int]:
    """The leases of an engine whose supervisor has died, as far as they can be had. `folder` is the one that they were
    taken in: the environment of whoever adopts may name another."""
    fds = []
    for uuid in uuids:
        with contextlib.suppress(OSError):
            if (fd := try_lease(uuid, folder)) is not None:
                fds.append(fd)
    note_engine(fds, deployment, engine)
    return fds
