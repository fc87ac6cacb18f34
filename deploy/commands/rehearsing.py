"""`--rehearse`: the same start with random weights first, minutes instead of half an hour to find what is wrong."""

import os
import socket
import time

from deploy import errors
from deploy.commands.following import TimedOut, follow, let_go, tell_failure
from deploy.commands.launching import Choice, close_all
from deploy.console import output
from deploy.console.words import duration
from deploy.host.gpus import NoGpus, read_machine
from deploy.lifecycle.fold import Observed
from deploy.plan.fit_inputs import fit_of
from deploy.plan.launch_plan import LaunchPlan
from deploy.plan.rehearsal import NOT_COVERED, fingerprint, kv_words, rehearsal_of
from deploy.profile.catalogue import Resolved
from deploy.store import leases, rehearsals
from deploy.store.deployments import observe
from deploy.store.journal import timestamp
from deploy.store.launches import Launch, check_name
from deploy.supervise.client import ask_to_stop, launch, take_lock


def is_rehearsed(plan: LaunchPlan) -> bool:
    """Whether the same was rehearsed already; said so."""
    told = rehearsals.read(fingerprint(plan, _host(plan)))
    if told is not None:
        output.say(f"rehearsed already, with the same settings, at {told['at']}: {told['words'][0]}")
    return told is not None


def rehearse(resolved: Resolved, plan: LaunchPlan, choice: Choice, timeout: float | None) -> int:
    """Rehearse `plan` on its GPUs, which must be free; exit code 0 when it was passed.

    Args:
        resolved: the profile of the plan.
        plan: the real launch.
        choice: the GPUs of the plan.
        timeout: seconds after which the rehearsal is stopped.
    """
    trial = rehearsal_of(plan, _free_port(plan.host))
    fds = [take_lock(check_name(trial.name))]
    try:
        if trial.gpus:
            fds += leases.take([gpu.uuid for gpu in trial.gpus], trial.name, trial.lease_dir or None)
    except BaseException:
        close_all(fds)
        raise
    output.say(f"rehearsal of {plan.name}: the same start with random weights, on port {trial.port}")
    began = time.monotonic()
    started = launch(trial, fds[0], fds[1:])
    try:
        observed = follow(started, trial.to_json(), done=_over, timeout=timeout, replay=True)
    except (TimedOut, KeyboardInterrupt) as stop:
        if (found := observe(trial.name)) is not None:
            ask_to_stop(found, force=True)
        output.say(f"the rehearsal is being stopped; nothing else was started   (kdeploy status {trial.name})")
        return errors.TIMED_OUT if isinstance(stop, TimedOut) else errors.DETACHED
    let_go(trial.name)
    if observed.diagnosis is not None or observed.ready_at is None:
        return _failed(trial.name, observed)
    fit = fit_of(resolved, plan.engine.get("version"), choice.memory_gib)
    words = kv_words(observed.facts.get("kv_cache_tokens"), fit.kv_tokens, fit.max_model_len)
    told = {"at": timestamp(time.time()), "words": words, "facts": observed.facts, "log": started.log}
    rehearsals.remember(fingerprint(plan, _host(plan)), told)
    output.say(f"rehearsal passed in {duration(time.monotonic() - began)}: {words[0]}")
    for line in (*words[1:], NOT_COVERED):
        output.say(f"  {line}")
    return errors.OK


def _over(observed: Observed, launch: Launch) -> bool:
    return observed.over or observed.incomplete


def _failed(name: str, observed: Observed) -> int:
    output.say("the rehearsal was not passed; nothing else was started")
    found = observe(name)
    assert found is not None
    if observed.diagnosis is not None:
        return tell_failure(found)
    output.say(f"error: {name} was stopped before it was ready")
    return errors.FAILED


def _host(plan: LaunchPlan) -> dict[str, str | None]:
    driver = None
    if plan.gpus:
        try:
            driver = read_machine().driver
        except NoGpus as error:
            raise error.as_error() from None
    return {"kernel": os.uname().release, "driver": driver}


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
