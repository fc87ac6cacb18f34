"""What commands do with swaps: begin one, have one go on whose runner has died."""

import os
from typing import Any

from deploy.errors import FAILED, KdeployError, environment
from deploy.host.handover import hand_over
from deploy.store import swaps
from deploy.supervise.client import lock_to_pass

ANSWER_LIMIT_S = 30.0


def take_lock() -> int:
    """The lock of all swaps, or exit 4 while somebody swaps."""
    swaps.make_swaps_dir()
    try:
        fd = lock_to_pass(swaps.lock_path())
    except OSError as error:
        raise environment(
            "cannot write the lock of the swaps",
            evidence=[f"{swaps.lock_path()}: {error.strerror}"],
            fix=["make room or name another folder: export KDEPLOY_STATE_DIR=/path"],
        ) from None
    if fd is None:
        raise swaps.busy(swaps.under_way() or {"old": "?", "new_plan": {"name": "?"}})
    return fd


def begin(order: dict[str, Any], lock_fd: int) -> swaps.Swap:
    """Write the order and start the process that carries it out; returns once it has taken over."""
    swap = swaps.make_swap(order)
    try:
        _start(swap, lock_fd)
    except KdeployError:
        swaps.close(swap)  # it had not begun
        raise
    return swap


def resume() -> swaps.Swap | None:
    """Have an unfinished swap go on that nobody carries out any more; the swap, None when there is none such."""
    swap = swaps.unfinished()
    if swap is None or swaps.is_carried_out() or os.stat(swap.folder).st_uid != os.geteuid():
        return None
    lock_fd = lock_to_pass(swaps.lock_path())
    if lock_fd is None:
        return None
    if swaps.unfinished() != swap:  # it came to its end meanwhile
        os.close(lock_fd)
        return None
    _start(swap, lock_fd)
    return swap


def _start(swap: swaps.Swap, lock_fd: int) -> None:
    try:
        log_fd = os.open(swap.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise environment(
            "the swap cannot go on", evidence=[f"{swap.log}: {error.strerror}"], fix=["make room on that disk"]
        ) from None
    order = {"swap": swap.id, "lock_fd": lock_fd}
    process, answer = hand_over("deploy.swap", order, [lock_fd], log_fd, ANSWER_LIMIT_S)
    if answer != "ok":
        process.kill()  # it must not begin after we have said that it did not
        process.wait()
        raise KdeployError(
            "the process that carries the swap out did not start; it has done nothing",
            evidence=[answer or f"{swap.log} says why"],
            code=FAILED,
        )
    process.returncode = 0  # it lives on without us
