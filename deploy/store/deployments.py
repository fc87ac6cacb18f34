"""A deployment as it is now: the fold of its newest journal, plus two live questions (lock held? engine alive?)."""

import json
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deploy.host.processes import Identity, boot_id, holders_of, is_alive
from deploy.lifecycle.fold import Observed, fold
from deploy.lifecycle.states import ENGINE_EXPECTED, FAILED, READY, STARTING, STOPPED, STOPPING
from deploy.store import journal
from deploy.store.launches import Launch, launches, lock_path, names, newest
from deploy.store.locks import is_held, read_holder


@dataclass
class Deployment:
    """One deployment now. `supervised`: its lock is held. `engine_alive`: a recorded process of it still runs."""

    name: str
    launch: Launch
    plan: dict[str, Any]
    observed: Observed
    supervised: bool
    engine_alive: bool
    state: str
    diagnosis: dict[str, Any] | None

    @property
    def active(self) -> bool:
        """Whether something of it runs, or is about to."""
        return self.supervised or self.state in ENGINE_EXPECTED

    @property
    def orphaned(self) -> bool:
        """Whether a supervisor should take it over: the journal is open, and nobody writes it."""
        return not self.supervised and not self.observed.over

    @property
    def supervisor_pid(self) -> int | None:
        """Pid of the supervisor that holds the lock now."""
        identity = supervisor_of(self.name)
        return identity.pid if identity else None


def supervisor_of(name: str) -> Identity | None:
    """The supervisor that holds the deployment's lock; None when none does, or a command holds it."""
    if not is_held(lock_path(name)):
        return None
    holder = read_holder(lock_path(name))
    if holder.get("role") != "supervisor":
        return None
    identity = Identity(int(holder["pid"]), int(holder["ticks"]))
    # an old text under a new holder names a process that is gone, or a pid that now is another's
    return identity if is_alive(identity) else None


def observe(name: str) -> Deployment | None:
    """The deployment `name`, None when it has never been launched."""
    launch = newest(name)
    if launch is None:
        return None
    # the lock first: a supervisor that ends writes its last record before it lets go
    supervised = is_held(lock_path(name))
    observed = fold(journal.read(launch.events))
    alive = _engine_alive(observed, launch) if not observed.over else False
    same_boot = not observed.boot_id or observed.boot_id == boot_id()
    state, diagnosis = true_state(observed, supervised=supervised, alive=alive, same_boot=same_boot)
    return Deployment(name, launch, _plan(launch), observed, supervised, alive, state, diagnosis)


def observe_all() -> list[Deployment]:
    """Every deployment that was ever launched, by name."""
    return [deployment for name in names() if (deployment := observe(name)) is not None]


def _plan(launch: Launch) -> dict[str, Any]:
    try:
        with open(launch.plan, "rb") as file:
            plan = json.load(file)
    except (OSError, ValueError):
        return {}
    return plan if isinstance(plan, dict) else {}


def _engine_alive(observed: Observed, launch: Launch) -> bool:
    if observed.boot_id and observed.boot_id != boot_id():
        return False
    recorded = [*observed.members, *([observed.leader] if observed.leader else [])]
    if any(is_alive(Identity(*pair)) for pair in recorded):
        return True
    return observed.spawning and observed.leader is None and bool(holders_of(launch.log))


def true_state(
    observed: Observed, *, supervised: bool, alive: bool, same_boot: bool
) -> tuple[str, dict[str, Any] | None]:
    """The state to show, and its diagnosis. A journal that nobody writes any more may be behind the facts.

    supervised, or engine alive, or over   what the journal says
    stopping or stopped, everything gone   stopped
    failed, and everything gone            failed, as diagnosed
    starting/ready/unhealthy, all gone     failed: the machine restarted, or both died
    """
    if supervised or alive or observed.over:
        return observed.state, observed.diagnosis
    if observed.state in (STOPPING, STOPPED):
        return STOPPED, observed.diagnosis
    if observed.state == FAILED:
        return FAILED, observed.diagnosis
    summary = "the supervisor and the engine are both gone" if same_boot else "the machine has restarted since"
    return FAILED, {
        "cause": "engine-died" if same_boot else "machine-restarted",
        "summary": summary,
        "evidence": [],
        "fix": [],
        "retryable": False,
    }


def previous(name: str) -> Launch | None:
    """The launch before the newest one."""
    found = launches(name)
    return found[-2] if len(found) > 1 else None


def to_json(deployment: Deployment, memory_mib: dict[str, int | None] | None = None) -> dict[str, Any]:
    """The public status object. `memory_mib`: used memory by GPU UUID where it was asked."""
    observed, plan = deployment.observed, deployment.plan
    ready = deployment.state == READY
    leader = Identity(*observed.leader) if observed.leader else None
    leader_pid = leader.pid if leader and deployment.engine_alive and is_alive(leader) else None
    served = plan.get("served_names") or [None]
    return {
        "schema": 1,
        "name": deployment.name,
        "profile": plan.get("profile"),
        "launch": deployment.launch.id,
        "state": deployment.state,
        "phase": observed.phase if deployment.state == STARTING else None,
        "ready": ready,
        "url": url_of(plan),
        "model": served[0],
        "supervisor_pid": deployment.supervisor_pid,
        "pid": leader_pid,
        "started_at": observed.started_at,
        "ready_at": observed.ready_at,
        "gpus": [
            {
                "index": gpu["index"],
                "uuid": gpu["uuid"],
                "memory_used_mib": (memory_mib or {}).get(gpu["uuid"]),
            }
            for gpu in plan.get("gpus", [])
        ],
        "load": load_json(observed, plan),
        "phases": observed.phases,
        "restarts": len(observed.restarts),
        "exit": observed.exit,
        "diagnosis": deployment.diagnosis,
        # beyond the fixed part
        "supervised": deployment.supervised,
        "engine": {key: plan.get("engine", {}).get(key) for key in ("name", "version")},
        "facts": observed.facts,
        "retry": observed.retry,
        "ended_at": observed.ended_at,
        "log": deployment.launch.log,
        "failed_phase": observed.phase if deployment.state == FAILED else None,
        "records_lost": observed.records_lost,
        "patches": patches_json(observed, plan),
        "gpu_memory": observed.gpu_memory,
        "memory_unproven": observed.memory_unproven,
    }


def patches_json(observed: Observed, plan: dict[str, Any]) -> list[dict[str, Any]]:
    """The patches that were asked for: what the plan says of each, and what each process of the engine said."""
    titles = {identity[0]: title for identity, title in observed.members.items()}
    return [
        {
            **{key: entry.get(key) for key in ("name", "kind", "state", "why", "loaded")},
            "processes": [
                {
                    "pid": pid,
                    "title": titles.get(pid) or said["process"],
                    "outcome": said["outcome"],
                    "why": said["why"],
                }
                for pid, said in sorted(observed.patches.get(entry.get("name", ""), {}).items())
            ],
        }
        for entry in plan.get("patches", [])
    ]


def url_of(plan: dict[str, Any]) -> str | None:
    """Where clients reach it from this machine."""
    if "port" not in plan:
        return None
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(plan["host"], plan["host"])
    return f"http://[{host}]:{plan['port']}" if ":" in host else f"http://{host}:{plan['port']}"


def _age(stamp: str | None) -> float:
    """Seconds since a journal stamp; a record that is the newest may be old, and its ETA with it."""
    if stamp is None:
        return 0.0
    return max(0.0, time.time() - datetime.fromisoformat(stamp).timestamp())


def _less(eta: float | None, passed: float) -> float | None:
    return None if eta is None else round(max(0.0, eta - passed), 1)


def load_json(observed: Observed, plan: dict[str, Any]) -> dict[str, Any]:
    """Progress of the weights. After the load everything is done by definition; before it, nothing is."""
    shards = plan.get("shards", [])
    total = observed.load.get("bytes_total") or sum(shard["size"] for shard in shards) or None
    done = observed.load.get("bytes_done")
    rate = observed.load.get("bytes_per_s")
    loading = observed.state == STARTING and observed.phase in ("spawn", "init", "weights")
    eta = observed.load.get("eta_s") if loading else None
    if "eta_s" not in observed.load and loading and rate and total and done is not None:
        eta = round((total - done) / rate, 1)
    passed = _age(observed.last_progress_at)
    return {
        "bytes_done": done if done is not None else 0,
        "bytes_total": total,
        "bytes_per_s": rate,
        "shards_done": observed.load.get("shards_done", 0),
        "shards_total": observed.load.get("shards_total") or len(shards) or None,
        "eta_s": _less(eta, passed),
        "source": observed.load.get("source"),
        # beyond the fixed part
        "bytes_read": observed.load.get("bytes_read", done if done is not None else 0),
        "read_source": observed.load.get("read_source"),
        "eta_ready_s": _less(observed.load.get("eta_ready_s"), passed) if loading else None,
        "prewarm": observed.prewarm or None,
        "strategy": (plan.get("load") or {}).get("strategy"),
    }
