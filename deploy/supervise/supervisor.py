"""The supervisor's loop: one thread, one selector; the world becomes events, actions become system calls.

What to do is decided in `lifecycle.machine`, never here. Every record is journalled before its actions are taken.
"""

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from deploy.engine.diagnosis import context_of, diagnose, with_kernel
from deploy.engine.http import Answer, request
from deploy.engine.knowledge import entries
from deploy.engine.log import LogReader, Sighting
from deploy.engine.trouble import Trouble
from deploy.errors import KdeployError
from deploy.host import cgroups, kernel_log
from deploy.host.gpus import Reading
from deploy.host.listeners import held_sockets, listening_inodes, probe_host
from deploy.host.processes import (
    Identity,
    boot_id,
    identity_of,
    is_alive,
    send_all,
    title,
)
from deploy.host.sysroot import sysroot
from deploy.lifecycle.machine import Input, Limits, Machine, Step, next_deadline, start, step
from deploy.lifecycle.states import FAILED, READY, SERVING, STARTING, STOPPING
from deploy.patching.confirm import Confirmations
from deploy.patching.folder import changed
from deploy.plan.launch_plan import LaunchPlan
from deploy.store import likelihoods
from deploy.store.journal import Journal
from deploy.store.launches import Launch, make_launch
from deploy.store.leases import note_engine, take_over
from deploy.supervise.canary import Canary
from deploy.supervise.exchanges import Exchanges, OnAnswer
from deploy.supervise.gate import Gate, Request
from deploy.supervise.gpu_memory import MemoryProof
from deploy.supervise.ledger import Ledger, Member
from deploy.supervise.leftovers import Leftovers
from deploy.supervise.likelihood import key_of
from deploy.supervise.loading import POLL_S as LOAD_POLL_S
from deploy.supervise.loading import Loading
from deploy.supervise.notify import Notifier
from deploy.supervise.pidfds import Pidfds
from deploy.supervise.serving import Serving
from deploy.supervise.spawn import CannotSpawn, api_key, spawn

LOG_POLL_S = 0.2  # while starting
LOG_POLL_READY_S = 5.0
LOG_CHUNK = 1 << 20
MEMBERS_POLL_S = 0.5  # while starting
MEMBERS_POLL_READY_S = 60.0
GATE_POLL_S = 0.25
GONE_POLL_S = 0.05
RANK_LOST_GRACE_S = 1.0  # a rank's death is followed by vLLM's own words about it

# What a signal asks of us.
STOPS: dict[int, dict[str, Any]] = {
    signal.SIGTERM: {"force": False},
    signal.SIGINT: {"force": False},
    signal.SIGUSR1: {"force": True},
    signal.SIGUSR2: {"force": False, "restart": True},
}


class Supervisor:
    """Owns one deployment from spawn (or adoption) to its end."""

    def __init__(
        self,
        plan: LaunchPlan,
        launch: Launch,
        limits: Limits,
        tell_parent: Callable[[str], None],
        leases: Sequence[int] = (),
        *,
        echo: bool = False,
    ) -> None:
        self.plan = plan
        self.echo = echo
        self.notifier = Notifier()
        self.leases = leases
        self.limits = limits
        self.tell_parent = tell_parent
        self.selector = selectors.DefaultSelector()
        self.finished = False
        self.exchanges = Exchanges(self.selector)
        self.journal_tried = 0.0
        self._begin(launch, start(time.monotonic()))
        self._install_signals()

    # ------------------------------------------------------------------ one launch

    def _begin(self, launch: Launch, machine: Machine) -> None:
        """Everything that belongs to one launch, empty."""
        self.launch = launch
        self.machine = machine
        self.journal = Journal(launch.events)
        self.ledger = Ledger(launch.log)
        self.reader = LogReader()
        self.trouble = Trouble(entries())
        self.log_offset = 0
        self.kernel_since = kernel_log.now_s()
        self.confirmations = Confirmations(self.plan.patches)
        self.checkpoint = key_of(self.plan)
        self.gate = Gate(self.plan, likelihoods.recall(self.checkpoint), likelihoods.path_of(self.checkpoint))
        self.serving = Serving(self.plan, self._send, self._input, self._again)
        self.memory = MemoryProof(self.plan.gpus, self._watch_reading, self._unwatch_reading)
        self.foreign_told = False
        self.load_words = ""
        self.loading = Loading(self.plan, self.limits.stall_s)
        self.leftovers = Leftovers()
        self.rank_lost: tuple[float, Member] | None = None
        self.pidfds = Pidfds(self.selector)
        self.leader_status: int | None = None
        self.leader_reaped = False
        self.due: dict[str, float] = {}

    def run_new(self) -> None:
        """Spawn the engine and stay until the deployment is over."""
        self._spawn()
        self._loop()

    def _spawn(self) -> None:
        self._record(
            "launch",
            {
                "state": STARTING,
                "phase": "spawn",
                "launch": self.launch.id,
                "supervisor": identity_of(os.getpid()),
                "boot_id": boot_id(),
                "restarts": list(self.machine.restarts),
                "failures": list(self.machine.failures),
                "url": self.plan.url,
            },
        )
        self.ledger.group = cgroups.make(f"kdeploy-{self.launch.deployment}-{self.launch.id}-{os.getpid()}")
        files = self.leftovers.choose_folder(self.plan.env)
        self._record("spawning", {"argv0": self.plan.argv[0], "cgroup": self.ledger.group, "files": files})
        if self.journal.pending:
            # an engine that nobody could find again must not be started
            cgroups.remove(self.ledger.group)
            self.tell_parent(f"cannot write {self.launch.events}")
            self.finished = True
            return
        self.tell_parent("ok")
        self._tell_manager()
        try:
            damage = changed(self.plan.patch_folder) if self.plan.patch_folder else None
            if damage:
                raise CannotSpawn(f"{damage}; kdeploy up makes it again")
            engine = spawn(
                self.plan, self.launch.log, self.launch.folder, self.ledger.group, self.leftovers.make_folder()
            )
        except CannotSpawn as error:
            diagnosis = {
                "cause": "cannot-spawn",
                "summary": f"the engine could not be started: {error}",
                "evidence": [],
                "fix": ["kdeploy render PROFILE shows the command"],
                "retryable": False,
            }
            self.leader_reaped = True
            self._input("exited", {"diagnosis": diagnosis, "exit_code": None, "signal": None})
            return
        engine.process.returncode = 0  # we reap it ourselves; this keeps Popen from trying
        self._record("spawned", {"pid": engine.identity.pid, "identity": engine.identity})
        warmer = self.loading.begin()
        if warmer is not None:
            self.ledger.spared.add(warmer)
            self._record("prewarm", {"state": "started", "pid": warmer})
        note_engine(self.leases, self.launch.deployment, engine.identity)
        self._watch_leader(engine.identity)
        self._schedule_all()

    def run_adopted(
        self,
        leader: Identity | None,
        members: dict[Identity, Member],
        machine: Machine,
        why: str,
        *,
        unrecorded: bool = False,
        group: str | None = None,
    ) -> None:
        """Take over an engine whose supervisor is gone, and stay until the deployment is over.

        `unrecorded`: the journal does not name `leader` yet. `group`: the engine's cgroup.
        """
        self.machine = machine
        self.ledger.parent_of_engine = False
        self.ledger.group = group
        self.ledger.members = dict(members)
        self._record(
            "adopted",
            {
                "supervisor": identity_of(os.getpid()),
                "boot_id": boot_id(),
                "pid": leader.pid if leader else None,
                "why": why,
            },
        )
        if leader is not None and unrecorded:
            self._record("spawned", {"pid": leader.pid, "identity": leader})
        if machine.state in SERVING:
            self._skip_log()
        for member in members.values():
            self._watch_member(member)
        if leader is None or not is_alive(leader):
            self.ledger.leader = leader
            self._gone_unseen(why)
        else:
            uuids = [gpu.uuid for gpu in self.plan.gpus]
            self.leases = take_over(uuids, self.launch.deployment, leader, self.plan.lease_dir or None)
            self._watch_leader(leader)
        self._note_files()
        self.memory.ask()
        self.tell_parent("ok")  # now, not before: whoever asked reads the journal next
        self._tell_manager()
        self._schedule_all()
        if self.machine.state == STOPPING:
            self._signal_tree("SIGTERM")
        self._loop()

    def _skip_log(self) -> None:
        """Pass over what an adopted engine has written; its lines are counted, so that evidence keeps its numbers."""
        with contextlib.suppress(OSError), open(self.launch.log, "rb") as file:
            while chunk := file.read(LOG_CHUNK):
                self.log_offset += len(chunk)
                self.reader.newlines += chunk.count(b"\n")

    def _gone_unseen(self, why: str) -> None:
        """Adopted too late: the engine's first process had ended before. No restart comes of that by itself."""
        self._read_log(to_end=True)
        diagnosis = self._diagnose()
        if diagnosis["cause"] == "engine-died":
            diagnosis["summary"] = f"the engine ended while nobody supervised it ({why})"
        diagnosis["retryable"] = False
        self._input("exited", {"exit_code": None, "signal": None, "diagnosis": diagnosis})

    def _schedule_all(self) -> None:
        now = time.monotonic()
        for name in ("log", "members", "probe", "load"):
            self.due[name] = now
        if self.notifier.watchdog_s is not None:
            self.due["watchdog"] = now
        if self.machine.ending is not None:
            self.due["gone"] = now

    # ------------------------------------------------------------------ the loop

    def _loop(self) -> None:
        while not self.finished:
            now = time.monotonic()
            deadline = self._deadline()
            if deadline is not None and deadline <= now:
                self._input("tick", self._at_a_deadline())
                continue
            self._run_due(now)
            if self.finished:
                return
            for key, _ in self.selector.select(self._timeout()):
                # what was handled just before may have closed this one: a stop drops the probe under way
                if self.selector.get_map().get(key.fd) is key:
                    key.data()
                if self.finished:
                    return

    def _deadline(self) -> float | None:
        # once every process is gone, only memory is waited for, and that has a limit of its own
        return None if self.memory.waiting else next_deadline(self.machine, self.limits)

    def _timeout(self) -> float:
        moments = list(self.due.values())
        deadline = self._deadline()
        if deadline is not None:
            moments.append(deadline)
        moments += self.exchanges.deadlines()
        if self.memory.reading is not None:
            moments.append(self.memory.reading.deadline)
        if self.rank_lost is not None:
            moments.append(self.rank_lost[0])
        if self.journal.pending:
            moments.append(self.journal_tried + 1.0)
        return max(0.0, min(moments, default=time.monotonic() + 60.0) - time.monotonic())

    def _run_due(self, now: float) -> None:
        tasks = {
            "log": self._follow_log,
            "members": self._look_at_members,
            "load": self._look_at_load,
            "probe": self._probe,
            "counters": self._read_counters,
            "gone": self._check_gone,
            "drain": self._probe_drain,
            "watchdog": self._feed_watchdog,
        }
        for name, task in tasks.items():
            if self.due.get(name, now + 1) <= now and not self.finished:
                del self.due[name]
                task()
        if self.journal.pending and self.journal_tried + 1.0 <= now:
            self.journal_tried = now
            self.journal.flush()
        if self.memory.reading is not None and self.memory.reading.deadline <= now:
            self.memory.advance(self.ledger.members)
        self.exchanges.expire(now)
        if self.rank_lost is not None and self.rank_lost[0] <= now:
            self._fail_by_lost_rank(self.rank_lost[1])

    def _feed_watchdog(self) -> None:
        self.notifier.watchdog()
        if self.notifier.watchdog_s is not None:
            self._again("watchdog", self.notifier.watchdog_s)

    def _again(self, name: str, seconds: float) -> None:
        self.due[name] = time.monotonic() + seconds

    # ------------------------------------------------------------------ events and actions

    def _record(self, kind: str, data: dict[str, Any]) -> None:
        event = self.journal.append(kind, data)
        if self.echo:
            with contextlib.suppress(OSError):
                os.write(1, event.to_line())

    def _input(self, kind: str, data: dict[str, Any] | None = None) -> None:
        """Hand an event to the machine; journal what it says; do what it says."""
        event = Input(kind, time.monotonic(), time.time(), data or {})
        before = self.machine
        outcome: Step = step(before, event, self.limits)
        self.machine = outcome.machine
        for record in outcome.records:
            if record.kind == "ready":
                self._remember_load(record.data)
            self._record(record.kind, record.data)
            if record.kind == "phase":
                last_word = self.loading.phase(record.data["after"], record.data["seconds"], record.data["phase"])
                if last_word is not None:
                    self._record("progress", last_word)
        if (self.machine.state, self.machine.phase) != (before.state, before.phase):
            self._tell_manager()
            self.memory.ask()
        if self.machine.ending is not None and before.ending is None:
            self._enter_ending()
        for action in outcome.actions:
            self._act(action.kind, action.data)
        if self.plan.rehearsal and self.machine.state == READY != before.state:
            self._input("stop_asked", {"force": True})  # here, since whoever follows it may be killed

    def _remember_load(self, ready: dict[str, Any]) -> None:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.loading.end()
        entry = self.loading.remember(at, ready["after"], ready["seconds"], ready["total_seconds"])
        self._record("load-remembered", entry)

    def _tell_manager(self) -> None:
        """What systemd shows of us, and how long it lets us be."""
        state = self.machine.state
        if state == STARTING:
            self.notifier.starting(f"loading: {self.machine.phase}{self.load_words}")
        elif state == READY:
            self.notifier.ready(f"ready: {self.plan.url}")
        elif state == STOPPING:
            self.notifier.stopping("stopping")
        else:
            cause = (self.machine.diagnosis or {}).get("cause")
            self.notifier.status(f"{state}: {cause}" if cause else state)

    def _act(self, kind: str, data: dict[str, Any]) -> None:
        if kind == "signal" and data["scope"] == "leader":
            self._signal_leader(data["signal"])
        elif kind == "signal":
            self._signal_tree(data["signal"])
        elif kind == "drain":
            self.due["drain"] = time.monotonic()
        elif kind == "relaunch":
            self._relaunch()
        elif kind == "finish":
            self.finished = True

    def _enter_ending(self) -> None:
        """The tree is to end: see once more who belongs to it, and stop probing."""
        self.loading.end()
        self.serving.end()
        self.exchanges.drop_all()
        self.due.pop("probe", None)
        self.due.pop("counters", None)
        self.rank_lost = None
        self._look_at_members()
        self._note_files()
        self.due["gone"] = time.monotonic()

    def _signal_leader(self, name: str) -> None:
        leader = self.ledger.leader
        if leader is None or not is_alive(leader):
            self._signal_tree(name)
            return
        self._record("signal", {"signal": name, "pids": [leader.pid]})
        send_all([leader], signal.Signals[name])
        send_all([leader], signal.SIGCONT)  # a stopped process takes SIGTERM only when it runs again

    def _signal_tree(self, name: str) -> None:
        living = self.ledger.living()
        if not living:
            return
        self._record("signal", {"signal": name, "pids": [process.pid for process in living]})
        send_all([process.identity for process in living], signal.Signals[name])
        send_all([process.identity for process in living if process.state in "Tt"], signal.SIGCONT)
        if name == "SIGKILL":
            cgroups.kill(self.ledger.group)

    def _survivors(self) -> list[str]:
        return [f"pid {p.pid} state {p.state} {title(p.pid)[:60]}" for p in self.ledger.living()]

    def _check_gone(self) -> None:
        """While the tree is being ended: is it gone?"""
        if self.machine.ending in (None, "done"):
            return
        self._reap()
        if self.machine.ending == "drain" or self.ledger.living():
            self._again("gone", GONE_POLL_S)
            return
        if self.ledger.leader is not None and not self.machine.leader_gone:
            self._leader_gone()  # its pidfd would tell in a moment; how it ended comes before that all is gone
        account = self.memory.settled(self.limits.kill_s)
        if account is None:
            self._again("gone", GONE_POLL_S)
            return
        data: dict[str, Any] = {"seconds": round(time.monotonic() - self.machine.ending_since, 3), **account}
        data |= self.leftovers.remove()
        cgroups.remove(self.ledger.group)
        self.pidfds.drop_all()
        self._input("tree_gone", data)

    def _watch_reading(self, reading: Reading) -> None:
        self.ledger.spared.add(reading.process.pid)
        self.selector.register(reading, selectors.EVENT_READ, self._memory_read)

    def _memory_read(self) -> None:
        self.memory.advance(self.ledger.members)
        account = self.memory.news() if self.machine.state == READY else None
        if account is not None:
            self._record("gpu-memory", {"gpu_memory": account})

    def _unwatch_reading(self, reading: Reading) -> None:
        self.selector.unregister(reading)

    def _relaunch(self) -> None:
        """A restart: a launch of its own, in a folder of its own, from the recorded plan."""
        machine = self.machine
        if machine.failures:
            failed = machine.failures[-1]._replace(log=self.launch.log)
            machine = replace(machine, failures=(*machine.failures[:-1], failed))
        try:
            launch = make_launch(self.launch.deployment, self.plan.to_json())
        except (OSError, KdeployError) as error:
            self._record("gave-up", {"state": FAILED, "reason": f"no folder for the next launch: {error}"})
            self.finished = True
            return
        self._record("relaunched", {"launch": launch.id})
        self.memory.drop()
        self.exchanges.drop_all()
        self.pidfds.drop_all()
        self._begin(launch, machine)
        self._spawn()

    # ------------------------------------------------------------------ signals to us

    def _install_signals(self) -> None:
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        # a handler, even an empty one, is reset to the default when the engine is executed; an ignore is not
        for number in (*STOPS, signal.SIGQUIT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        self.selector.register(reader, selectors.EVENT_READ, lambda: self._signalled(reader))

    def _signalled(self, reader: int) -> None:
        with contextlib.suppress(BlockingIOError):
            for number in os.read(reader, 4096):
                if number == signal.SIGCHLD:
                    self._reap()
                elif number in STOPS:
                    self._input("stop_asked", STOPS[number])

    # ------------------------------------------------------------------ processes

    def _watch_leader(self, leader: Identity) -> None:
        self.ledger.leader = leader
        self.ledger.members.setdefault(leader, Member(leader, title(leader.pid)[:80]))
        if not self.pidfds.watch(leader, self._leader_gone):
            self._leader_gone()

    def _watch_member(self, member: Member) -> None:
        if member.identity != self.ledger.leader:
            self.pidfds.watch(member.identity, lambda: self._member_gone(member.identity))

    def _reap(self) -> None:
        """Collect every child that has ended: the engine, and orphans that came to us as subreaper."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.ledger.spared.discard(pid)
            if self.ledger.leader is not None and pid == self.ledger.leader.pid and not self.leader_reaped:
                self.leader_status, self.leader_reaped = status, True

    def _leader_gone(self) -> None:
        """The engine's first process has ended."""
        if self.ledger.leader is not None:
            self.pidfds.drop(self.ledger.leader)
        self._reap()
        if self.machine.leader_gone:
            return
        code: int | None = None
        name: str | None = None
        if self.leader_status is not None:
            exit_code = os.waitstatus_to_exitcode(self.leader_status)
            code = exit_code if exit_code >= 0 else None
            name = signal.Signals(-exit_code).name if exit_code < 0 else None
        self._read_log(to_end=True)
        diagnosis = self._diagnose(exit_code=code, signal=name)
        self._fall_back(diagnosis)
        self._input("exited", {"exit_code": code, "signal": name, "diagnosis": diagnosis})

    def _diagnose(self, exit_code: int | None = None, signal: str | None = None) -> dict[str, Any]:
        context = context_of(self.plan.to_json(), self.reader)
        found = diagnose(self.trouble, exit_code=exit_code, signal=signal, tail=self.reader.tail(), context=context)
        records = kernel_log.read(sysroot().path("/dev/kmsg")) or ()
        pids = {identity.pid for identity in self.ledger.members}
        return with_kernel(found, kernel_log.faults(records, self.kernel_since, pids))

    def _fall_back(self, diagnosis: dict[str, Any]) -> None:
        """A loader that was chosen automatically and crashed is tried without, once."""
        if self.machine.state != STARTING:
            return
        plan = self.loading.way_back(self.machine.phase, [told.line.text for told in self.trouble.all()])
        if plan is not None:
            self.plan = plan
            diagnosis["fall_back"] = "started again with the engine's own loader"

    def _member_gone(self, identity: Identity) -> None:
        member = self.ledger.members[identity]
        self.pidfds.drop(identity)
        # compilers and other helpers come and go; a rank does not
        if self.machine.ending is None and member.is_rank:
            self._record("process-ended", {"pid": identity.pid, "title": member.title})
            if self.rank_lost is None:
                self.rank_lost = (time.monotonic() + RANK_LOST_GRACE_S, member)

    def _fail_by_lost_rank(self, member: Member) -> None:
        """A rank died and the engine's server has not followed it: vLLM cannot go on without it."""
        self.rank_lost = None
        self._read_log(to_end=False)
        found = self._diagnose()
        if found["cause"] == "engine-died":
            found["summary"] = f"{member.title} (pid {member.identity.pid}) ended by itself"
        self._input("rank_lost", {"diagnosis": found})

    def _look_at_members(self) -> None:
        fresh = self.ledger.refresh()
        if fresh:
            self._record("members", {"members": [[*m.identity, m.title] for m in fresh]})
            for member in fresh:
                self._watch_member(member)
        self._note_files(sockets=False)
        if self.machine.state == STARTING:
            self._look_for_work()
        self._again("members", MEMBERS_POLL_S if self.machine.state == STARTING else MEMBERS_POLL_READY_S)

    def _note_files(self, *, sockets: bool = True) -> None:
        """Journalled, so that they are removed even when the supervisor dies together with the engine."""
        fresh = self.leftovers.look((identity.pid for identity in self.ledger.members), sockets=sockets)
        if fresh:
            self._record("files", {"files": fresh})

    def _look_for_work(self) -> None:
        """Bytes read or processor time spent are progress too: vLLM may be silent for long and yet move."""
        if self.loading.work(identity.pid for identity in self.ledger.members):
            self._input("progress")
            self._tell_manager()

    def _look_at_load(self) -> None:
        if self.machine.state != STARTING:
            return
        for kind, data in self.loading.look(self.machine.phase, self.ledger.members.values()):
            self._record(kind, data)
        self._again("load", LOAD_POLL_S)

    def _at_a_deadline(self) -> dict[str, Any]:
        """What the machine wants to know when a time is over: who survives, or why nothing moves."""
        if self.machine.ending == "kill":
            return {"survivors": self._survivors()}
        if self.machine.state != STARTING:
            return {}
        self._read_log(to_end=False)
        found = self.loading.stalled(self.machine.phase, self.ledger.members.values(), self.reader.tail())
        self._record("stall-evidence", found)
        return {"stall": found}

    # ------------------------------------------------------------------ the log

    def _follow_log(self) -> None:
        if self.machine.ending is not None:
            return
        self._read_log(to_end=False)
        self._again("log", LOG_POLL_S if self.machine.state == STARTING else LOG_POLL_READY_S)

    def _read_log(self, *, to_end: bool) -> None:
        try:
            with open(self.launch.log, "rb") as file:
                file.seek(self.log_offset)
                while chunk := file.read(LOG_CHUNK):
                    self.log_offset += len(chunk)
                    if self.machine.state == STARTING and self.loading.lines(chunk):
                        self._input("progress")
                    self._see(self.reader.feed(chunk))
        except OSError:
            return
        if to_end:
            self._see(self.reader.finish())

    def _see(self, sightings: list[Sighting]) -> None:
        for sighting in sightings:
            if sighting.kind == "phase":
                self._input("phase_seen", sighting.data)
                self._note_files()  # some live only while it starts
            elif sighting.kind == "trouble":
                self.trouble.append(sighting.data["line"])
            elif sighting.kind == "fact":
                self._record("fact", sighting.data)
            elif sighting.kind == "patch":
                self._patch_seen(sighting.data)
            else:
                self._shards_seen(sighting.data)

    def _patch_seen(self, mark: dict[str, Any]) -> None:
        if self.confirmations.take(mark):
            self._record("patch", {key: mark[key] for key in ("patch", "outcome", "pid", "process", "why")})
        refusal = self.confirmations.refusal(mark)
        if refusal is not None:
            self._input("gate_failed", {"diagnosis": refusal})

    def _shards_seen(self, data: dict[str, Any]) -> None:
        """vLLM's own bar has moved."""
        self._input("progress")
        self.load_words = f" {100 * data['done'] // data['total']} %"
        self._tell_manager()
        progress = self.loading.bar(data)
        if progress is not None:
            self._record("progress", {**progress, "pass": data["pass"]})

    # ------------------------------------------------------------------ HTTP

    def _send(self, purpose: str, ask: Request, on_answer: OnAnswer) -> None:
        if self.exchanges.busy(purpose):
            return
        host = probe_host(self.plan.host)
        data = request(ask.method, ask.path, host, body=ask.body, api_key=api_key(self.plan))
        self.exchanges.send(purpose, host, self.plan.port, data, ask.timeout_s, on_answer)

    def _probe(self) -> None:
        if self.exchanges.busy("probe") or self.machine.ending is not None:
            return
        if self.machine.state == STARTING:
            self._probe_gate()
            return
        self.serving.probe()

    def _probe_gate(self) -> None:
        inodes = listening_inodes(self.plan.port, self.plan.host)
        if not inodes:
            self._again("probe", GATE_POLL_S)
            return
        if not self._listener_is_ours(inodes):
            if not self.foreign_told:
                self.foreign_told = True
                self._record("foreign-listener", {"port": self.plan.port})
            self._again("probe", GATE_POLL_S)
            return
        self._send("probe", self.gate.next_ask(time.monotonic()), self._gate_answered)

    def _listener_is_ours(self, inodes: set[int]) -> bool:
        """Every socket that listens at our address must be held by the engine: with SO_REUSEPORT a stranger's beside
        it would get a share of the requests."""
        held = [held_sockets(process.pid) for process in self.ledger.living()]
        # where no descriptor of the engine can be read, nothing speaks against it
        readable = [sockets for sockets in held if sockets is not None]
        return not readable or inodes <= set().union(*readable)

    def _gate_answered(self, answer: Answer) -> None:
        before = self.gate.stage
        self.gate.take(answer, time.monotonic())
        verdict = self.gate.verdict
        if verdict is not None and self.gate.canary is not None:
            self._record("canary", self.gate.canary.account())
            self._learn(self.gate.canary)
        if isinstance(verdict, dict):
            self._read_log(to_end=False)
            found = self._diagnose()
            if verdict["cause"] == "canary-failed" and found["cause"] != "engine-died":
                verdict = {
                    **verdict,
                    "evidence": [*verdict["evidence"], *found["evidence"]],
                    "fix": [*found["fix"], *verdict["fix"]],
                }
            self._input("gate_failed", {"diagnosis": verdict})
        elif verdict == "passed":
            self._read_log(to_end=False)
            self._look_at_members()
            self._note_files()
            unconfirmed = self.confirmations.unconfirmed(self.ledger.loaders())
            if self.machine.state != STARTING:  # the lines just read have refused one
                return
            if unconfirmed is not None:
                self._input("gate_failed", {"diagnosis": unconfirmed})
                return
            seen: dict[str, Any] = {"url": self.plan.url, "model": self.plan.served_names[0]}
            if self.confirmations.wanted:
                seen["patches"] = self.confirmations.summary()
            if self.gate.reduced:
                seen["reduced"] = self.gate.reduced
            self._input("gate_passed", seen)
            self._again("probe", float(self.plan.health["interval_s"]))
            self._again("members", MEMBERS_POLL_READY_S)
        else:
            if self.gate.stage == "canary" and before != "canary":
                self._input("phase_seen", {"phase": "canary"})
            # nothing to wait for between stages; only a server that is not well yet is asked again later
            moved = self.gate.stage != before or before == "canary"
            self._again("probe", 0.0 if moved else GATE_POLL_S)

    def _learn(self, canary: Canary) -> None:
        """Keep what a checkpoint's likelihood was when it first passed."""
        mean = canary.learnable
        if mean is not None:
            document = {"mean": mean, "model": self.plan.model, "engine": self.plan.engine.get("version")}
            likelihoods.remember(self.checkpoint, {**document, "launch": self.launch.id})

    def _read_counters(self) -> None:
        if self.machine.state in SERVING:
            self.serving.counters()

    def _probe_drain(self) -> None:
        if self.machine.ending == "drain":
            self.serving.drain()
