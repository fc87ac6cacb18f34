"""Which processes of an engine have confirmed which patches. Pure: the log's marker lines in, a diagnosis out."""

from collections.abc import Iterable, Sequence
from typing import Any

CONFIRMED = ("applied", "needless")


class Confirmations:
    """The patches that a launch wants, and what its processes said of them: by patch, then by pid."""

    def __init__(self, plan_patches: Sequence[dict[str, Any]]) -> None:
        self.wanted = [str(entry["name"]) for entry in plan_patches if entry.get("loaded")]
        self.said: dict[str, dict[int, str]] = {name: {} for name in self.wanted}

    def recall(self, observed: dict[str, dict[int, dict[str, Any]]]) -> None:
        """What a supervisor before had heard."""
        for name, by_pid in observed.items():
            if name in self.said:
                self.said[name] |= {pid: str(entry["outcome"]) for pid, entry in by_pid.items()}

    def take(self, mark: dict[str, Any]) -> bool:
        """Note a marker line; whether it tells something new."""
        by_pid = self.said.get(mark["patch"])
        if by_pid is None or by_pid.get(mark["pid"]) == mark["outcome"]:
            return False
        by_pid[mark["pid"]] = mark["outcome"]
        return True

    def refusal(self, mark: dict[str, Any]) -> dict[str, Any] | None:
        """The diagnosis when a marker line says that a wanted patch was refused."""
        if mark["patch"] not in self.said or mark["outcome"] in CONFIRMED:
            return None
        return {
            "cause": "patch-refused",
            "summary": f"the patch {mark['patch']} was refused: {mark['why']}",
            "evidence": [{"line": mark["line"], "text": mark["text"]}],
            "fix": [f"kdeploy patch list shows what {mark['patch']} is made for", "or take it out of patches:"],
            "retryable": False,
        }

    def unconfirmed(self, processes: Iterable[tuple[int, str]]) -> dict[str, Any] | None:
        """The diagnosis when one of the engine's processes (pid, title) has not confirmed every wanted patch."""
        processes = list(processes)
        silent = [
            (name, pid, title)
            for name in self.wanted
            for pid, title in processes
            if self.said[name].get(pid) not in CONFIRMED
        ]
        if not silent and (processes or not self.wanted):
            return None
        names = ", ".join(dict.fromkeys(name for name, _, _ in silent)) or ", ".join(self.wanted)
        return {
            "cause": "patch-unconfirmed",
            "summary": f"the engine loads without a patch that was asked for: {names}",
            "evidence": [{"line": 0, "text": f"{name}: no word of {title} (pid {pid})"} for name, pid, title in silent],
            "fix": [
                "kdeploy logs shows whether vLLM loaded the plugin kdeploy_patches",
                "an engine that is started through a wrapper must hand PYTHONPATH on",
            ],
            "retryable": False,
        }

    def summary(self) -> dict[str, dict[str, int]]:
        """For each wanted patch, how many processes said what."""
        counts: dict[str, dict[str, int]] = {}
        for name, by_pid in self.said.items():
            counts[name] = {word: list(by_pid.values()).count(word) for word in sorted(set(by_pid.values()))}
        return counts
