"""Carrying a tune out: one step after the other, everything journalled, everything undone at the end."""

import os
import time
from typing import Any

from deploy import errors
from deploy.commands.bench import key_of, own_key, wanted_of
from deploy.commands.down import stop
from deploy.commands.following import follow, let_go, settled
from deploy.commands.launching import close_all
from deploy.commands.restart import launch_recorded
from deploy.console import output
from deploy.doctor.collective import Question
from deploy.doctor.collective import run as all_reduce
from deploy.doctor.verdict import HEALTHY
from deploy.engine.flags import shipped_flags
from deploy.errors import KdeployError, environment
from deploy.lifecycle.fold import seconds_between
from deploy.lifecycle.states import READY, STOPPING
from deploy.measure.bench import Bench
from deploy.measure.server import Server
from deploy.plan.launch_plan import LaunchPlan, from_json
from deploy.plan.references import references
from deploy.store import leases, tunes
from deploy.store.deployments import observe
from deploy.store.journal import Journal
from deploy.tuning import budget, course
from deploy.tuning.candidates import BASELINE
from deploy.tuning.changes import applied, shape_of
from deploy.tuning.course import CELL, COLLECTIVE, Cell, Progress, Setup, Step

COLLECTIVE_STEP_S = 60.0


class Refused(Exception):
    """A candidate does not work here; says why."""


class Tuner:
    """One session of a tune. `plan`: the baseline as it is launched."""

    def __init__(self, tune: tunes.Tune, setup: Setup, plan: LaunchPlan, estimate: budget.Estimate) -> None:
        self.tune, self.setup, self.plan, self.estimate = tune, setup, plan, estimate
        self.journal = Journal(tune.events)
        self._wait = True  # whether to wait for the old deployment when it is brought back

    def progress(self) -> Progress:
        """What the journal says now."""
        return course.fold(self.tune.read())

    def run(self) -> Progress:
        """Everything that is still to do, and the undoing of it, whatever happens.

        Raises:
            KdeployError: the baseline does not work, or the box could not be put back.
            KeyboardInterrupt: asked to end; everything is undone, and the tune can be resumed.
        """
        self._discard_unfinished()
        try:
            self._take_down()
            self._steps()
        except KeyboardInterrupt:
            self._wait = False
            output.say("\ninterrupted; putting everything back")
            self.journal.append("interrupted", {})
            raise
        finally:
            self.undo()
        return self.progress()

    def _steps(self) -> None:
        while (step := course.next_step(self.setup, progress := self.progress())) is not None:
            if budget.over(self.setup, progress, self.estimate, step):
                output.say("the budget has no room for another round")
                self.journal.append("ended", {"why": "budget"})
                return
            began = time.monotonic()
            try:
                done = self._collective(step) if step.kind == COLLECTIVE else self._cell(step)
            except Refused as refused:
                if step.name == BASELINE:
                    raise self._baseline_fails(str(refused)) from None
                done = "out", {"name": step.name, "why": str(refused)}
                output.say(f"  {step.name} is out: {refused}")
            kind, data = done
            self.journal.append(kind, {**data, "seconds": round(time.monotonic() - began, 3)})
            if self.journal.pending:
                raise environment("the tune's journal cannot be written", evidence=[self.tune.events])
        self.journal.append("ended", {"why": "decided"})

    def _baseline_fails(self, why: str) -> KdeployError:
        return KdeployError(
            f"{self.setup.name} does not work as it is, so nothing can be compared with it",
            evidence=[why],
            fix=[
                f"kdeploy up {self.setup.profile}   must work first",
                f"kdeploy tune {self.setup.name}   goes on with this tune then",
            ],
        )

    def _discard_unfinished(self) -> None:
        number = course.unfinished_round(self.setup, self.progress())
        if number is not None:
            output.say(f"round {number} was interrupted; it is measured anew")
            self.journal.append("discarded", {"round": number})

    def _planned(self, name: str) -> LaunchPlan:
        return self.plan if name == BASELINE else applied(self.plan, self.setup.candidate(name), shipped_flags())

    # ------------------------------------------------------------------ an all-reduce alone

    def _collective(self, step: Step) -> tuple[str, dict[str, Any]]:
        output.say(f"{step.name}: all-reduce alone")
        plan = self._planned(step.name)
        held = leases.take([gpu.uuid for gpu in plan.gpus], f"tune {self.setup.name}", plan.lease_dir or None)
        try:
            env = {name: value for name, value in plan.env.items() if not references(value)}
            ranks = shape_of(plan).ranks
            question = Question(str(plan.engine["interpreter"]), ranks, "nccl", env, COLLECTIVE_STEP_S)
            found = all_reduce(question, lambda line: None)
        finally:
            close_all(held)
        if found.outcome != HEALTHY:
            raise Refused(f"all-reduce: {found.outcome}: {found.detail}")
        whole = max(entry.ranks for entry in found.measured)
        us = {str(entry.bytes): entry.us for entry in found.measured if entry.ranks == whole}
        return COLLECTIVE, {"name": step.name, "us": us}

    # ------------------------------------------------------------------ the real model

    def _cell(self, step: Step) -> tuple[str, dict[str, Any]]:
        output.say(f"round {step.round}: {step.name}")
        plan = self._planned(step.name)
        began = time.monotonic()
        try:
            launch_s = self._launch(plan)
            figures = self._measure(plan)
        finally:
            self._stop_try()
        tok_s = figures[f"{self.setup.metric}_tok_s"]
        if figures["failed"]:
            told = ", ".join(f"{count} times {why}" for why, count in figures["failures"].items())
            raise Refused(f"{figures['failed']} of {figures['requests']} requests failed: {told}")
        if not tok_s:
            raise KdeployError(
                f"the engine does not tell reasoning from content, so {self.setup.metric} tok/s are not known",
                fix=[f"kdeploy tune {self.setup.name} --fresh --metric raw"],
            )
        marks = [mark for mark in ("client_bound",) if figures.get(mark)]
        marks += ["throttled"] if any(gpu["throttled"] for gpu in figures["gpus"] or ()) else []
        output.say(f"  {step.name}: {tok_s:.1f} tok/s" + "".join(f" ({mark})" for mark in marks))
        seconds = time.monotonic() - began
        return CELL, Cell(step.round, step.name, tok_s, launch_s, round(seconds, 3), marks)._asdict()

    def _launch(self, plan: LaunchPlan) -> float:
        """Launch and follow until the canary has passed; seconds of the load."""
        launched = launch_recorded(plan)
        observed = follow(launched, plan.to_json(), done=settled, replay=True)
        if observed.state != READY:
            found = observed.diagnosis or {"cause": "unknown", "summary": f"it is {observed.state}"}
            raise Refused(f"{found['cause']}: {found['summary']}")
        assert observed.started_at is not None
        assert observed.ready_at is not None
        return seconds_between(observed.started_at, observed.ready_at)

    def _measure(self, plan: LaunchPlan) -> dict[str, Any]:
        server = Server(plan.url, key_of(own_key(plan.to_json())))
        model, longest = server.model(plan.served_names[0])
        chosen = {
            "runs": self.setup.runs,
            "concurrency": None,
            "requests": None,
            "rate": None,
            "single": self.setup.concurrency == 1,
            "repeat_prompts": False,
            "clean_wait": 60.0,
            "input_tokens": self.setup.input_tokens,
            "output_tokens": self.setup.output_tokens,
        }
        if self.setup.concurrency > 1:
            chosen["requests"] = max(8, 2 * self.setup.concurrency) * self.setup.runs
        uuids = [gpu.uuid for gpu in plan.gpus]
        try:
            return Bench(server, model, wanted_of(chosen, longest), _quiet, uuids).cell(self.setup.concurrency)
        except KdeployError as error:
            if self._still_ready():
                raise
            raise Refused(f"it died while it was measured: {error.what}") from None

    def _still_ready(self) -> bool:
        deployment = observe(self.plan.name)
        return deployment is not None and deployment.state == READY and deployment.engine_alive

    # ------------------------------------------------------------------ what was there before

    def _take_down(self) -> None:
        """Stop the deployment that is tuned, if it runs, and remember what it was."""
        self._stop_try()
        deployment = observe(self.setup.name)
        if deployment is None or not deployment.active:
            return
        # recorded before it is done: whoever resumes or undoes must know
        tunes.write(os.path.join(self.tune.folder, "before.json"), deployment.plan)
        self.journal.append("took-down", {"name": deployment.name, "launch": deployment.launch.id})
        output.say(f"{deployment.name} is stopped for the tune; it comes back with the plan it was launched with")
        code = stop(deployment, force=False)
        if code != errors.OK:
            raise KdeployError(
                f"{deployment.name} could not be stopped", fix=[f"kdeploy status {deployment.name}"], code=code
            )

    def _stop_try(self) -> None:
        """End the try that is up, if there is one; nobody else uses it, so nothing is drained."""
        deployment = observe(self.plan.name)
        if deployment is None:
            return
        code = stop(deployment, force=True)
        let_go(deployment.name)
        if code != errors.OK:
            raise KdeployError(
                f"{deployment.name} could not be stopped", fix=[f"kdeploy status {deployment.name}"], code=code
            )

    def undo(self) -> None:
        """End what the tune has started, put its launches away, and bring back what was up before."""
        self._stop_try()
        tunes.put_away(self.tune, self.plan.name)
        before = self.progress().took_down
        if before is None:
            return
        plan = from_json(tunes.read(self.tune, "before.json"))
        existing = observe(plan.name)
        if existing is not None and existing.state == STOPPING:
            stop(existing, force=False)
            existing = observe(plan.name)
        if existing is None or not existing.active:
            output.say(f"bringing {plan.name} back")
            launched = launch_recorded(plan)
            if self._wait:
                observed = follow(launched, plan.to_json(), done=settled, replay=True)
                if observed.state != READY:
                    raise KdeployError(
                        f"{plan.name} was stopped for the tune and does not come back: it is {observed.state}",
                        fix=[f"kdeploy status {plan.name}", f"kdeploy restart {plan.name}"],
                    )
            else:
                output.say(f"{plan.name} is starting; kdeploy wait {plan.name}   waits until it is ready")
        self.journal.append("brought-back", {"name": plan.name})


def _quiet(line: str) -> None:
    """A tune tells its own lines."""
