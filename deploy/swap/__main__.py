"""The process that carries a swap out: `python -P -m deploy.swap`, its order as JSON on stdin, its answer on a
descriptor.

The order: {"swap": ID, "answer_fd": N, "lock_fd": N}. The lock of all swaps is held by inheriting its descriptor; it is
free when this process has died, and then the next command starts another one.
"""

import contextlib
import json
import os
import signal
import sys

from deploy.errors import KdeployError
from deploy.store import swaps
from deploy.store.locks import write_holder
from deploy.swap.runner import Runner


def main() -> int:
    """Read the order, carry the swap out; its exit code."""
    text = sys.stdin.read()
    if not text:
        return 0  # whoever started us was killed before it could say what for
    order = json.loads(text)
    for fd in (order["answer_fd"], order["lock_fd"]):
        os.set_inheritable(fd, False)
    os.umask(0o077)
    # a swap is not cut short half-way by a terminal that closes
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        # a handler, since what is ignored stays ignored in engines that we start
        signal.signal(number, _pass_over)
    write_holder(order["lock_fd"], {"role": "swap", "pid": os.getpid(), "swap": order["swap"]})
    swap = swaps.named(order["swap"])
    try:
        runner = Runner(swap)
        runner.begin()
    except (KdeployError, OSError, ValueError) as error:  # ValueError: plans of a newer version
        _answer(order["answer_fd"], f"{error}")
        return 1
    _answer(order["answer_fd"], "ok")
    return runner.run()


def _pass_over(number: int, frame: object) -> None:
    """Not now."""


def _answer(fd: int, text: str) -> None:
    # whoever asked may be gone already; that changes nothing here
    with contextlib.suppress(OSError):
        os.write(fd, text.encode() + b"\n")
    os.close(fd)


if __name__ == "__main__":
    sys.exit(main())
