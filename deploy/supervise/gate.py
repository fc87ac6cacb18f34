"""The readiness gate: health, the right listener, the right model, the canary. Driven by answers, pure of I/O.

`next_ask` says what to send, `take` digests the answer. During a load the port is bound but nobody listens, so a
refused connection is the normal case, and an answer from a process that is not the engine's is somebody else's.
"""

import json
from typing import Any, NamedTuple

from deploy.engine.http import Answer
from deploy.plan.launch_plan import LaunchPlan
from deploy.supervise import canary


class Request(NamedTuple):
    """What to send next: method, path, body, and how many seconds it may take."""

    method: str
    path: str
    body: bytes
    timeout_s: float


class Gate:
    """Where the gate stands. `verdict` is None while it is open, then "passed" or a diagnosis."""

    def __init__(self, plan: LaunchPlan) -> None:
        self.plan = plan
        self.stage = "health"
        self.verdict: dict[str, Any] | str | None = None
        self._prompts = canary.prompts(plan.canary.get("max_model_len"))
        self._asked = 0
        self._chat = True
        self.answers: list[str] = []
        self.reduced: str | None = None

    def next_ask(self) -> Request:
        """The request of the current stage."""
        patience = float(self.plan.health["timeout_s"])
        if self.stage == "health":
            return Request("GET", "/health", b"", patience)
        if self.stage == "models":
            return Request("GET", "/v1/models", b"", patience)
        build = canary.chat if self._chat else canary.completion
        ask = build(self.plan.served_names[0], self._prompts[self._asked])
        return Request("POST", ask.path, ask.body, float(self.plan.canary["timeout_s"]))

    def take(self, answer: Answer) -> None:
        """Digest the answer to `next_ask`."""
        if self.stage == "health":
            if answer.status == 200:
                self.stage = "models"
        elif self.stage == "models":
            self._take_models(answer)
        else:
            self._take_canary(answer)

    def _take_models(self, answer: Answer) -> None:
        if answer.status in (401, 403):
            # alive, but it wants a key that we were not given: nothing more can be asked
            self.reduced = f"/v1/models answered {answer.status}: the model was not checked, the canary not asked"
            self.verdict = "passed"
            return
        if answer.status != 200:
            self.stage = "health"
            return
        try:
            names = [str(entry["id"]) for entry in json.loads(answer.body)["data"]]
        except (ValueError, KeyError, TypeError):
            names = []
        wanted = self.plan.served_names
        if not set(wanted) & set(names):
            self.verdict = {
                "cause": "wrong-model",
                "summary": f"the server offers {', '.join(names) or 'no model'}, not {', '.join(wanted)}",
                "evidence": [],
                "fix": ["--set model.served_name=NAME"],
                "retryable": False,
            }
            return
        self._after_models()

    def _after_models(self) -> None:
        if self.plan.canary["enabled"]:
            self.stage = "canary"
        else:
            self.verdict = "passed"

    def _take_canary(self, answer: Answer) -> None:
        if answer.status is not None and self._chat and canary.has_no_chat(answer.status, answer.body):
            self._chat = False
            return
        if answer.status is None:
            problem: str | None = answer.why
        else:
            problem = canary.judge(answer.status, answer.body, coherence=bool(self.plan.canary["coherence"]))
        if problem is not None:
            self.verdict = {
                "cause": "canary-failed",
                "summary": f"the first request was not answered well: {problem}",
                "evidence": [],
                "fix": [
                    "kdeploy logs shows what the engine said to it",
                    "a model that is random by design: --set canary.coherence=false",
                ],
                "retryable": answer.status is None,
            }
            return
        self.answers.append((canary.text_of(answer.body) or "")[:200])
        self._asked += 1
        if self._asked == len(self._prompts):
            self.verdict = "passed"
