"""The supervisor's entry: `python -P -m deploy.supervise`, an order as JSON on stdin, the answer on a descriptor.

The order: {"action": "launch"|"adopt", "deployment": …, "launch": …, "answer_fd": N, "lock_fd": N}. The lock and the
leases are held by inheriting their descriptors. The answer is one line: "ok", or what went wrong.
"""

import contextlib
import json
import os
import sys
import time

from deploy.host.processes import Identity, become_subreaper, boot_id, holders_of, identity_of
from deploy.host.shm import FOLDER
from deploy.lifecycle.fold import fold
from deploy.lifecycle.machine import Limits, resume
from deploy.lifecycle.restart import Failure, RestartPolicy
from deploy.lifecycle.states import FAILED
from deploy.plan.launch_plan import LaunchPlan, loads
from deploy.store import journal
from deploy.store.launches import Launch, launches
from deploy.store.locks import write_holder
from deploy.supervise.ledger import Member
from deploy.supervise.supervisor import Supervisor


def limits_of(plan: LaunchPlan) -> Limits:
    """The plan's times as the lifecycle takes them."""
    values = plan.limits
    return Limits(
        stall_s=values["stall_s"],
        limit_s=values["limit_s"],
        health_failures=int(plan.health["failures"]),
        drain_s=values["drain_s"],
        term_s=values["term_s"],
        kill_s=values["kill_s"],
        restart=RestartPolicy(**values["restart"]),
    )


def main() -> int:
    """Read the order, take the deployment over, stay until it is over; 1 when it ended in a failure."""
    text = sys.stdin.read()
    if not text:
        return 0  # whoever started us was killed before it could say what for; the lock goes with us
    order = json.loads(text)
    answer_fd = order["answer_fd"]

    def answer(text: str) -> None:
        nonlocal answer_fd
        if answer_fd is not None:
            # whoever asked may be gone already; that changes nothing here
            with contextlib.suppress(OSError):
                os.write(answer_fd, text.encode() + b"\n")
            os.close(answer_fd)
            answer_fd = None

    launch = next(item for item in launches(order["deployment"]) if item.id == order["launch"])
    with open(launch.plan, "rb") as file:
        plan = loads(file.read())
    for fd in (order["lock_fd"], *([] if answer_fd is None else [answer_fd]), *order["lease_fds"]):
        os.set_inheritable(fd, False)
    become_subreaper()
    os.umask(0o077)
    supervisor = Supervisor(plan, launch, limits_of(plan), answer, order["lease_fds"], echo=order.get("echo", False))
    # signals are handled from here on, so that is when we may be found
    me = identity_of(os.getpid())
    assert me is not None
    write_holder(order["lock_fd"], {"role": "supervisor", "pid": me.pid, "ticks": me.ticks})
    if order["action"] == "adopt":
        _adopt(supervisor, launch)
    else:
        supervisor.run_new()
    return int(supervisor.machine.state == FAILED)


def _adopt(supervisor: Supervisor, launch: Launch) -> None:
    observed = fold(journal.read(launch.events))
    supervisor.memory.recall(observed.gpu_memory)
    supervisor.confirmations.recall(observed.patches)
    machine = resume(
        observed.state,
        observed.phase,
        time.monotonic(),
        restarts=tuple(observed.restarts),
        failures=tuple(Failure(*one) for one in observed.failures),
        diagnosis=observed.diagnosis,
    )
    if observed.boot_id and observed.boot_id != boot_id():
        # pids, start times and shared memory of another boot say nothing about this one; socket files may lie on a disk
        supervisor.leftovers.recall(path for path in observed.files if not path.startswith(FOLDER))
        supervisor.run_adopted(None, {}, machine, "the machine has restarted")
        return
    leader = Identity(*observed.leader) if observed.leader else _find_leader(launch)
    members = {Identity(*key): Member(Identity(*key), title) for key, title in observed.members.items()}
    why = "the supervisor before is gone"
    supervisor.leftovers.recall(observed.files)
    unrecorded = observed.leader is None
    supervisor.run_adopted(leader, members, machine, why, unrecorded=unrecorded, group=observed.cgroup)


def _find_leader(launch: Launch) -> Identity | None:
    """The engine of a launch whose supervisor died between spawning it and recording its pid."""
    for process in holders_of(launch.log):
        if process.sid == process.pid:
            return process.identity
    return None


if __name__ == "__main__":
    sys.exit(main())
