"""Carrying a swap out: `decide` says what, this does it. Every decision is journalled before it is acted on."""

import os
import time
from typing import Any

from deploy.errors import FAILED, OK, ROLLED_BACK, TEARDOWN_INCOMPLETE, KdeployError, environment, located
from deploy.host.processes import boot_id
from deploy.lifecycle.states import STOPPED
from deploy.plan.launch_plan import from_json
from deploy.store import journal, swaps
from deploy.store.deployments import Deployment, observe
from deploy.store.journal import Journal
from deploy.supervise.client import ask_to_stop, ensure_supervised
from deploy.swap import decide, starting, warming
from deploy.swap.decide import Move, Now, Order, Told
from deploy.swap.standing import never_begun, standing

POLL_S = 0.1
POLL_LIMIT_S = 1.0  # a load may take half an hour
ANSWER_LIMIT_S = 10.0  # from a supervisor that was asked to stop
ADOPTIONS_LIMIT = 5


class Runner:
    """One swap being carried out. Holds the lock of all swaps."""

    def __init__(self, swap: swaps.Swap) -> None:
        document = swaps.read_order(swap)
        self.swap = swap
        self.order = Order(document["together"], document["rollback"], document["warm"])
        self.force = bool(document["force"])
        self.old: str = document["old"]
        self.old_plan = from_json(document["old_plan"])
        self.new_plan = from_json(document["new_plan"])
        self.new_before: str | None = document["new_before"]  # NEW's newest launch before this swap
        self.told: Told = decide.fold(journal.read(swap.events))
        self.journal = Journal(swap.events)
        self.adoptions: dict[str, int] = {}

    def begin(self) -> None:
        """Write that it has begun."""
        if not self.told.begun:
            self._record("begun", {"boot_id": boot_id(), "old": self.old, "new": self.new_plan.name})
        self._record("runner", {"pid": os.getpid()})

    def run(self) -> int:
        """Stay until it is over; the exit code."""
        try:
            return self._loop()
        except KdeployError as error:
            # not over: the next command goes on from here
            self.journal.append("interrupted", {"reason": _told(error)})
            return error.code

    def _loop(self) -> int:
        pause = POLL_S
        while True:
            move = decide.decide(self.order, self.told, self._now())
            if move.kind == "over":
                swaps.close(self.swap)
                return self.told.exit_code
            if move.kind == "wait":
                time.sleep(pause)
                pause = min(POLL_LIMIT_S, pause * 1.05)
            else:
                pause = POLL_S
                self._make(move)

    # ------------------------------------------------------------------ looking

    def _now(self) -> Now:
        back_after = self.told.back_after
        old = self._look(self.old)
        new = self._look(self.new_plan.name)
        return Now(
            old=decide.ENDED if back_after is not None else standing(old),
            new=standing(new, self.new_before),
            back=standing(old, back_after) if back_after is not None else decide.ABSENT,
            same_boot=self.told.boot_id in (None, boot_id()),
        )

    def _look(self, name: str) -> Deployment | None:
        """The deployment; one whose supervisor has died gets another, a bounded number of times."""
        found = observe(name)
        if found is None or not found.orphaned or never_begun(found):
            return found
        if found.observed.incomplete:
            return found  # the supervisor before has tried long enough to end it
        if self.adoptions.get(name, 0) >= ADOPTIONS_LIMIT:
            raise KdeployError(
                f"{name}: {ADOPTIONS_LIMIT} supervisors have died one after the other",
                evidence=[found.launch.supervisor_log],
                fix=["make room on that disk, then: kdeploy swap   goes on"],
            )
        self.adoptions[name] = self.adoptions.get(name, 0) + 1
        fresh, adopted = ensure_supervised(found)
        if adopted:
            self._record("adopted", {"deployment": name})
        return fresh

    # ------------------------------------------------------------------ doing

    def _record(self, kind: str, data: dict[str, Any]) -> None:
        event = self.journal.append(kind, data)
        if self.journal.pending:
            # what is not written must not be done: whoever takes over would not know of it
            raise environment(
                "the journal of the swap cannot be written",
                evidence=[self.swap.events],
                fix=["make room on that disk, then: kdeploy swap   goes on"],
            )
        decide.apply(self.told, event)

    def _step(self, step: str, name: str) -> None:
        self._record("step", {"step": step, "deployment": name})

    def _make(self, move: Move) -> None:
        if move.kind == "finish":
            self._finish(move)
        elif move.kind == "give-up":
            reason = _plain(move.why) if move.why else self._reason(self.new_plan.name)
            self._record("doomed", {"reason": reason})
        elif move.kind == "back-failed":
            self._record("back-failed", {"reason": self._reason(self.old)})
        elif move.kind in ("stop-old", "stop-new"):
            self._stop(move.kind)
        elif move.kind == "warm":
            self._step("warm", self.new_plan.name)
            self._record("warmed", warming.warm(self.new_plan, self.old_plan.url, self._may_warm, self._warms))
        elif move.kind == "start-new":
            self._start_new()
        elif move.kind == "bring-back":
            self._bring_back()
        else:
            raise AssertionError(move.kind)

    def _stop(self, step: str) -> None:
        old = step == "stop-old"
        name = self.old if old else self.new_plan.name
        found = observe(name)
        if found is None:
            return
        self._step(step, name)
        # a load that is given up has nothing to drain
        asked = ask_to_stop(found, force=self.force if old else True)
        before = (found.launch.id, found.observed.state, found.observed.retry)
        deadline = time.monotonic() + ANSWER_LIMIT_S
        while asked and time.monotonic() < deadline:
            now = observe(name)
            if now is None or not now.supervised or (now.launch.id, now.observed.state, now.observed.retry) != before:
                return
            time.sleep(POLL_S)
        time.sleep(POLL_S)

    def _may_warm(self) -> bool:
        """Whether OLD still serves: nothing is waited for once it does not."""
        return standing(observe(self.old)) in decide.SERVING

    def _warms(self, report: dict[str, Any]) -> None:
        self._record("warming", report)

    def _start_new(self) -> None:
        self._step("start-new", self.new_plan.name)
        try:
            starting.start(self.new_plan)
        except KdeployError as error:
            self._record("doomed", {"reason": _told(error)})

    def _bring_back(self) -> None:
        found = observe(self.old)
        assert found is not None
        if found.launch.id != self.told.back_after:
            self._record("bring-back", {"after": found.launch.id})
        self._step("bring-back", self.old)
        try:
            starting.start(self.old_plan)
        except KdeployError as error:
            self._record("back-failed", {"reason": _told(error)})

    def _reason(self, name: str) -> dict[str, Any]:
        """Why a deployment does not serve, from its own diagnosis where there is one."""
        found = observe(name)
        assert found is not None
        if found.diagnosis is None:
            what = f"{name} was stopped" if found.state == STOPPED else f"{name} is {found.state}"
            return {**_plain(what), "log": found.launch.log}
        evidence = [located(item, found.launch.log) for item in found.diagnosis.get("evidence", ())]
        return {
            "what": f"{found.diagnosis['cause']}: {found.diagnosis['summary']}",
            "evidence": evidence,
            "fix": list(found.diagnosis.get("fix", ())),
            "code": FAILED,
            "cause": found.diagnosis["cause"],
            "log": found.launch.log,
        }

    def _finish(self, move: Move) -> None:
        assert move.outcome is not None
        self._record("outcome", {"outcome": move.outcome, "exit_code": self._code(move.outcome), "why": move.why})

    def _code(self, outcome: str) -> int:
        stuck = standing(observe(self.old)) == decide.STUCK
        if outcome == decide.COMMITTED:
            return TEARDOWN_INCOMPLETE if stuck else OK
        if outcome == decide.ROLLED_BACK:
            return ROLLED_BACK
        if outcome == decide.NEITHER:
            return TEARDOWN_INCOMPLETE if stuck else FAILED
        return int((self.told.doomed or {}).get("code", FAILED))


def _told(error: KdeployError) -> dict[str, Any]:
    return {"what": error.what, "evidence": list(error.evidence), "fix": list(error.fix), "code": error.code}


def _plain(what: str) -> dict[str, Any]:
    return {"what": what, "evidence": [], "fix": [], "code": FAILED}
