"""Starting a process of ours that outlives us: its order comes on stdin, and it says when it has taken over."""

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from typing import Any


def hand_over(
    module: str, order: dict[str, Any], fds: Sequence[int], log_fd: int, limit_s: float
) -> tuple[subprocess.Popen[bytes], str]:
    """Run `python -P -m module` in a session of its own, and wait for its answer.

    Args:
        module: what runs.
        order: one JSON document; `answer_fd` is added, where it writes "ok" or why not.
        fds: descriptors that become its own; ours are closed.
        log_fd: its standard output and error; ours is closed.
        limit_s: seconds that it has to answer.

    Returns:
        The process, and what it answered, empty when nothing came in time. The caller keeps Popen from waiting for it.
    """
    answer_read, answer_write = os.pipe()
    process = subprocess.Popen(
        # -P: a user's own ./deploy folder must not become our program
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=log_fd,
        stderr=log_fd,
        start_new_session=True,
        pass_fds=(answer_write, *fds),
        cwd="/",
    )
    for fd in (log_fd, answer_write, *fds):
        os.close(fd)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps({**order, "answer_fd": answer_write}).encode())
        process.stdin.close()
    try:
        # a Ctrl-C from here on must not look like a failure: the process has everything it needs
        readable, _, _ = select.select([answer_read], [], [], limit_s)
        answer = os.read(answer_read, 4096) if readable else b""
    finally:
        os.close(answer_read)
    return process, answer.decode(errors="replace").strip()
