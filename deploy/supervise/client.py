"""What commands do with supervisors: start one, have one adopt, ask one to stop, follow its journal."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from typing import NoReturn

from deploy.errors import FAILED, KdeployError, environment, refused
from deploy.host.handover import hand_over
from deploy.host.processes import send
from deploy.lifecycle.events import Event
from deploy.plan.launch_plan import LaunchPlan
from deploy.store import deployments
from deploy.store.deployments import Deployment
from deploy.store.journal import Tail
from deploy.store.launches import Launch, launches, lock_path, make_deployment, make_launch
from deploy.store.locks import read_holder, try_lock, write_holder

ANSWER_LIMIT_S = 30.0
POLL_S = 0.05
LETTING_GO_S = 5.0


def take_lock(name: str) -> int:
    """The deployment's lock, or exit 4 naming who holds it and since when."""
    make_deployment(name)
    try:
        fd = _lock(name)
        if fd is not None:
            write_holder(fd, {"role": "command", "pid": os.getpid()})
    except OSError as error:
        raise environment(
            f"cannot write the lock of {name}",
            evidence=[f"{lock_path(name)}: {error.strerror}"],
            fix=["make room or name another folder: export KDEPLOY_STATE_DIR=/path"],
        ) from None
    if fd is None:
        raise held(name)
    return fd


def _lock(name: str) -> int | None:
    return lock_to_pass(lock_path(name))


def lock_to_pass(path: str) -> int | None:
    """A lock that can be passed on. Started with 0, 1 or 2 closed, it would get one of these numbers, and lose it to
    the supervisor's own streams."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(fd)
    return try_lock(path)


def held(name: str) -> KdeployError:
    """The refusal for a deployment that another operation holds."""
    holder = read_holder(lock_path(name))
    deployment = deployments.observe(name)
    state = f"already {deployment.state}" if deployment else "being started"
    if deployment and deployment.observed.retry and not deployment.observed.over:
        state = "failed and about to be restarted by its policy"
    who = f"{holder.get('role', 'process')} pid {holder.get('pid', '?')} since {holder.get('since', '?')}"
    return refused(
        f"{name} is {state}",
        evidence=[f"{lock_path(name)}: held by {who}"],
        fix=[f"kdeploy wait {name}   waits until it is ready", f"kdeploy down {name}   stops it"],
    )


def launch(plan: LaunchPlan, lock_fd: int, lease_fds: Iterable[int] = ()) -> Launch:
    """Make the launch folder, write the plan, start the supervisor, and return once it has taken over.

    The caller's lock and leases pass to the supervisor; the caller's copies are closed.
    """
    folder = launch_folder(plan)
    _start("launch", folder, lock_fd, [*lease_fds])
    return folder


def launch_folder(plan: LaunchPlan) -> Launch:
    """A new launch's folder with its plan in it."""
    try:
        return make_launch(plan.name, plan.to_json())
    except OSError as error:
        raise environment(f"cannot write the plan: {error.strerror}", evidence=[str(error.filename)]) from None


def adopt(deployment: Deployment) -> bool:
    """Start a supervisor that takes `deployment` over. False when somebody else was quicker."""
    lock_fd = _lock(deployment.name)
    if lock_fd is None:
        return False
    _start("adopt", deployment.launch, lock_fd, [])
    return True


def become_supervisor(action: str, folder: Launch, lock_fd: int, lease_fds: Iterable[int]) -> NoReturn:
    """Turn this process into the supervisor, in the foreground: for a service manager that wants to own it."""
    order = {
        "action": action,
        "deployment": folder.deployment,
        "launch": folder.id,
        "answer_fd": None,
        "lock_fd": lock_fd,
        "lease_fds": [*lease_fds],
        "echo": True,
    }
    order_fd = os.memfd_create("kdeploy-order")
    os.write(order_fd, json.dumps(order).encode())
    os.lseek(order_fd, 0, os.SEEK_SET)
    os.dup2(order_fd, 0)
    for fd in (lock_fd, *lease_fds):
        os.set_inheritable(fd, True)
    os.chdir("/")
    os.execv(sys.executable, [sys.executable, "-P", "-m", "deploy.supervise"])


def _start(action: str, folder: Launch, lock_fd: int, lease_fds: list[int]) -> None:
    order = {
        "action": action,
        "deployment": folder.deployment,
        "launch": folder.id,
        "lock_fd": lock_fd,
        "lease_fds": lease_fds,
    }
    log_fd = _private_append(folder.supervisor_log)
    process, answer = hand_over("deploy.supervise", order, [lock_fd, *lease_fds], log_fd, ANSWER_LIMIT_S)
    if answer != "ok":
        raise KdeployError(
            "the supervisor did not start",
            evidence=[f"{folder.supervisor_log}: {_last_line(folder.supervisor_log)}"],
            fix=["this is a fault of kdeploy; the file above says more"],
            code=FAILED,
        )
    # it lives on without us; not a leak
    process.returncode = 0


def _private_append(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _last_line(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
    except OSError:
        return "cannot be read"
    return lines[-1] if lines else "empty"


def ensure_supervised(deployment: Deployment) -> tuple[Deployment, bool]:
    """The deployment with a supervisor that writes its journal, and whether one had to be started for it."""
    # root looking at a user's deployments must not leave files of root's among them
    ours = os.stat(deployment.launch.folder).st_uid == os.geteuid()
    if not deployment.orphaned or not ours or not adopt(deployment):
        return deployment, False
    fresh = deployments.observe(deployment.name)
    assert fresh is not None
    return fresh, True


def ask_to_stop(deployment: Deployment, *, force: bool) -> bool:
    """Signal the supervisor to stop the engine. False when there is no supervisor."""
    return signal_supervisor(deployment, signal.SIGUSR1 if force else signal.SIGTERM)


def signal_supervisor(deployment: Deployment, number: signal.Signals) -> bool:
    """Send the supervisor a signal (and wake it if somebody stopped it). False when there is none."""
    identity = deployments.supervisor_of(deployment.name)
    if identity is None:
        return False
    send(identity, signal.SIGCONT)
    return send(identity, number)


def wait_for_lock(name: str, seconds: float = LETTING_GO_S) -> int:
    """The lock of a deployment that is about to let go of it."""
    deadline = time.monotonic() + seconds
    while (fd := _lock(name)) is None:
        if time.monotonic() > deadline:
            raise held(name)
    return fd


class Follower:
    """Reads a deployment's journals on, through restarts: each `poll` gives the records that are new."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.tail = Tail(launch.events)

    def poll(self) -> Iterator[Event]:
        """New records, those of the next launch after those of this one."""
        yield from self.tail.poll()
        later = [item for item in launches(self.launch.deployment) if item.id != self.launch.id]
        if later and later[-1].folder > self.launch.folder and os.path.exists(later[-1].events):
            yield from self.tail.poll()
            self.launch = later[-1]
            self.tail = Tail(self.launch.events)
            yield from self.tail.poll()
