"""What a person can be told: what happened, the evidence, and what to do next."""

from collections.abc import Mapping, Sequence
from typing import Any

# Exit codes of the public interface.
OK = 0
FAILED = 1
USAGE = 2
NOT_RUNNING = 3
REFUSED = 4
WILL_NOT_FIT = 5
ENVIRONMENT = 6
ROLLED_BACK = 7
TEARDOWN_INCOMPLETE = 8
TIMED_OUT = 124
DETACHED = 130


class KdeployError(Exception):
    """A failure that is the world's or the user's, not a bug of ours: shown without a traceback.

    Args:
        what: one sentence, what happened.
        evidence: lines that prove it (`FILE:LINE: text`, a pid, a value read).
        fix: what to do next, commands where there are any.
        code: exit code of the command.
    """

    def __init__(self, what: str, *, evidence: Sequence[str] = (), fix: Sequence[str] = (), code: int = FAILED) -> None:
        super().__init__(what)
        self.what = what
        self.evidence = tuple(evidence)
        self.fix = tuple(fix)
        self.code = code

    def to_json(self) -> dict[str, object]:
        """The same three parts for `--json`."""
        return {
            "schema": 1,
            "error": {
                "what": self.what,
                "evidence": list(self.evidence),
                "fix": list(self.fix),
                "exit_code": self.code,
            },
        }


def usage(what: str, *, evidence: Sequence[str] = (), fix: Sequence[str] = ()) -> KdeployError:
    """The command line or a profile is wrong; nothing was started (exit 2)."""
    return KdeployError(what, evidence=evidence, fix=fix, code=USAGE)


def not_running(what: str, *, evidence: Sequence[str] = (), fix: Sequence[str] = ()) -> KdeployError:
    """No such deployment, or it does not run (exit 3)."""
    return KdeployError(what, evidence=evidence, fix=fix, code=NOT_RUNNING)


def refused(what: str, *, evidence: Sequence[str] = (), fix: Sequence[str] = ()) -> KdeployError:
    """Somebody else holds what is needed (exit 4)."""
    return KdeployError(what, evidence=evidence, fix=fix, code=REFUSED)


def environment(what: str, *, evidence: Sequence[str] = (), fix: Sequence[str] = ()) -> KdeployError:
    """vLLM, driver, checkpoint or disk are not usable (exit 6)."""
    return KdeployError(what, evidence=evidence, fix=fix, code=ENVIRONMENT)


def located(item: Mapping[str, Any], log: str) -> str:
    """A piece of a diagnosis's evidence (`line`, `text`) with its place: in the `log` that it names, else in `log`."""
    return f"{item.get('log') or log}:{item['line']}: {item['text']}" if item.get("line") else str(item["text"])
