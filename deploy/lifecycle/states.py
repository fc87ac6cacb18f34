"""The words for where a deployment stands: states, phases, and the sets that commands ask about."""

STARTING = "starting"
READY = "ready"
UNHEALTHY = "unhealthy"
STOPPING = "stopping"
STOPPED = "stopped"
FAILED = "failed"

STATES = (STARTING, READY, UNHEALTHY, STOPPING, STOPPED, FAILED)

# While starting, in the order in which an engine passes them. A phase may be skipped, never revisited.
BEFORE_WEIGHTS = ("spawn", "init")
PHASES = (*BEFORE_WEIGHTS, "weights", "compile", "graphs", "warmup", "canary")

ENGINE_EXPECTED = (STARTING, READY, UNHEALTHY, STOPPING)
"""States in which an engine process should be alive."""

SERVING = (READY, UNHEALTHY)
"""States in which requests may be in flight, so that a stop drains first."""


def is_later(phase: str, than: str | None) -> bool:
    """Whether `phase` comes after `than` in the order of a start."""
    return than is None or PHASES.index(phase) > PHASES.index(than)
