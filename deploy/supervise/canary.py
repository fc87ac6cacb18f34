"""The last gate before ready, and `kdeploy canary`: questions that must be answered, and with sense. Pure.

vLLM can answer /health with 200 and die at the first request, or at the first longer one, or answer garbage (all three
measured or reported). So five questions with plain answers are asked, greedily, one of them long; through the chat
endpoint with thinking off and, where the model has it, on; and the likelihood of a fixed text. One garbage answer
fails; a wrong one does not, unless most are wrong. `next_ask` says what to send, `take` digests what came.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from deploy.engine.http import Answer as Http
from deploy.supervise import likelihood
from deploy.supervise.coherence import Answer, garbage, hits, split_thinking

FILLER = "The quick brown fox jumps over the lazy dog while the band plays on. "
LONG_CHARACTERS = 1500
THINKING_TOKENS = 160
BARE_TOKENS = 16
KEPT = 400  # characters of each text in the journal
FEWEST_JUDGED = 3  # questions; fewer are no ground for calling a model wrong
SHOTS = "Q: What is the capital of Italy?\nA: Rome\n\nQ: What is 3 + 4?\nA: 7\n\nQ: {}\nA:"
THINKING_KEYS = ("enable_thinking", "thinking")  # Qwen and GLM templates read the first, Kimi and DeepSeek the second
REASONING_KEYS = ("reasoning", "reasoning_content", "reasoning_text")


class Question(NamedTuple):
    """One question: what is asked, the spellings of the right answer, and how many tokens the answer may take."""

    id: str
    prompt: str
    accepted: tuple[str, ...]
    tokens: int


SUM = Question("sum", "What is 17 + 25? Answer with one number.", ("42", "forty-two", "forty two", "四十二"), 32)
LONG = Question(
    "long",
    FILLER * (LONG_CHARACTERS // len(FILLER)) + "\n\nWhat is 8 + 5? Answer with one number.",
    ("13", "thirteen", "十三"),
    32,
)
QUESTIONS = (
    SUM,
    LONG,
    Question(
        "copy",
        "Repeat this sentence and write nothing else: Seven amber lanterns hang over the quiet harbour.",
        ("seven amber lanterns hang",),
        48,
    ),
    Question(
        "capital",
        "What is the capital of France? Answer with one word.",
        ("paris", "巴黎", "париж", "باريس", "παρίσι", "파리", "パリ"),
        32,
    ),
    Question(
        "count",
        "Count from 1 to 10. Write only the numbers, separated by commas.",
        ("7, 8, 9, 10", "7,8,9,10", "7 8 9 10", "seven, eight, nine, ten", "seven eight nine ten", "七、八、九、十"),
        64,
    ),
)


class Ask(NamedTuple):
    """One request: path, JSON body, and how many seconds it may take."""

    path: str
    body: bytes
    timeout_s: float


class Step(NamedTuple):
    """One thing to ask: a question, or (None) the likelihood; thinking on, off, or as the model likes (None)."""

    question: Question | None
    thinking: bool | None = None


class Asked(NamedTuple):
    """What was asked and what came: `right` is None where it was cut, or not judged."""

    question: Question
    thinking: bool | None
    answer: Answer
    right: bool | None
    problem: str | None
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """For the journal: bounded."""
        return {
            "question": self.question.id,
            "prompt": self.question.prompt[-KEPT:],
            "thinking": self.thinking,
            "content": self.answer.content[:KEPT],
            "reasoning": self.answer.reasoning[:KEPT],
            "right": self.right,
            "problem": self.problem,
            "seconds": round(self.seconds, 3),
        }


def read(body: bytes) -> tuple[Answer, int] | None:
    """An answer's content and reasoning, under any of its names, and its tokens; None when it is of an unknown form."""
    try:
        document = json.loads(body)
        choice = document["choices"][0]
        cut = choice.get("finish_reason") == "length"
        message = {"content": choice["text"]} if "text" in choice else choice["message"]
        content = _text(message.get("content"))
        reasoning = "".join(_text(message.get(key)) for key in REASONING_KEYS)
        if not reasoning:
            reasoning, content = split_thinking(content)
        if not content and not reasoning and message.get("tool_calls"):
            content = json.dumps(message["tool_calls"])
        tokens = (document.get("usage") or {}).get("completion_tokens")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None
    return Answer(content, reasoning, cut), tokens if isinstance(tokens, int) and tokens > 0 else 1


def _text(value: Any) -> str:
    if isinstance(value, list):  # content as a list of parts
        return "".join(_text(part.get("text")) if isinstance(part, dict) else "" for part in value)
    return value if isinstance(value, str) else ""


def has_no_chat(status: int, body: bytes) -> bool:
    """Whether the server says that it cannot chat at all, as opposed to failing."""
    return status == 404 or (status == 400 and b"chat template" in body.lower())


def does_not_fit(status: int, body: bytes) -> bool:
    """Whether the server says that the question is too long for its context."""
    lowered = body.lower()
    return status == 400 and (b"context length" in lowered or b"max_model_len" in lowered)


class Canary:
    """Asks and judges. `done` when nothing is left to ask; then `problem` is None or says why it has failed.

    Args:
        model: the served name.
        timeout_s: seconds for the first answer, and for all the others together.
        coherence: False asks whether it answers at all.
        max_model_len: its longest context, where known.
        likelihood: whether to ask for the likelihood of a text.
        expected: its mean log-probability a token, where known.
    """

    def __init__(
        self,
        model: str,
        *,
        timeout_s: float,
        coherence: bool = True,
        max_model_len: int | None = None,
        ask_likelihood: bool = True,
        expected: float | None = None,
    ) -> None:
        self.model, self.timeout_s, self.coherence = model, timeout_s, coherence
        self.room = max_model_len or 1 << 20
        self.expected = expected
        self.asked: list[Asked] = []
        self.notes: list[str] = []
        self.reading: likelihood.Reading | None = None
        self.problem: str | None = None
        self.retryable = False
        self.chat = True
        self._switches: bool | None = None if coherence else False  # does it take chat_template_kwargs
        self._thinks = False  # although it was told not to
        self._since: float | None = None
        self._sent = 0.0
        self._slowest = self._token_s = 0.0
        self._unlikely: str | None = None
        first = Step(SUM, False if coherence else None)
        rest = QUESTIONS[1:] if coherence else (LONG,)
        self._steps = [first, *(Step(one, first.thinking) for one in rest if self._fits(one))]
        if coherence:
            self._steps += [Step(SUM, True)]
            if ask_likelihood and len(likelihood.REFERENCE) < self.room:
                # early: it is one short request, and says more than the questions that a slow engine has no time for
                self._steps.insert(2, Step(None))

    # ------------------------------------------------------------------ what to ask

    @property
    def done(self) -> bool:
        """Whether the verdict stands."""
        return self.problem is not None or not self._steps

    def next_ask(self, now: float) -> Ask:
        """The next request, at monotonic second `now`; only while not `done`."""
        self._sent = now
        left = self.timeout_s if self._since is None else max(0.5, self._since + self.timeout_s - now)
        step = self._steps[0]
        if step.question is None:
            return Ask("/v1/completions", likelihood.body(self.model), max(left, 1.0 + 2 * self._slowest))
        body: dict[str, Any] = {"model": self.model, "max_tokens": self._tokens(step), "temperature": 0}
        if not self.chat:
            body["prompt"] = SHOTS.format(step.question.prompt)
            return Ask("/v1/completions", json.dumps(body).encode(), left)
        body["messages"] = [{"role": "user", "content": step.question.prompt}]
        if self._switches is not False and step.thinking is not None:
            body["chat_template_kwargs"] = dict.fromkeys(THINKING_KEYS, step.thinking)
        return Ask("/v1/chat/completions", json.dumps(body).encode(), left)

    def _tokens(self, step: Step) -> int:
        assert step.question is not None
        if not self.coherence:
            return min(BARE_TOKENS, max(1, self.room // 4))
        wanted = THINKING_TOKENS if self.chat and (step.thinking or self._thinks) else step.question.tokens
        return min(wanted, max(1, self.room // 4))

    def _fits(self, question: Question) -> bool:
        """Whether a question fits the context even at a token a character."""
        fits = len(SHOTS) + len(question.prompt) + question.tokens <= self.room
        if not fits:
            self.notes.append(f"{question.id}: not asked, the context is too short for it")
        return fits

    # ------------------------------------------------------------------ what came

    def take(self, answer: Http, now: float) -> None:
        """Digest the answer to `next_ask`."""
        step = self._steps[0]
        seconds = now - self._sent
        if step.question is None:
            self._steps.pop(0)
            self._take_likelihood(answer)
        elif answer.status is None:
            self.problem, self.retryable = f"{_named(step)}: {answer.why}", True
        elif answer.status != 200:
            self._refused(step, answer.status, answer.body)
        else:
            self._answered(step, answer.body, seconds)
        if self._since is None and answer.status == 200:
            self._since = now
        if not self.done:
            self._keep_time(now)
        if self.problem is None and not self._steps:
            self.problem = self._unlikely or self._mostly_wrong()

    def _refused(self, step: Step, status: int, body: bytes) -> None:
        """A status that is no answer: the question is put differently, left out, or this is the failure."""
        if self.chat and has_no_chat(status, body):
            self.chat, self._switches = False, False
            self._steps = [Step(one.question) for one in self._steps if one.thinking is not True]
            self.notes.append("the server cannot chat: plain completions were asked")
        elif self._switches is None and step.thinking is not None and status in (400, 422):
            self._switches = False  # perhaps it is the switch that it does not take
            self._steps = [Step(one.question) for one in self._steps if one.thinking is not True]
            self.notes.append(f"chat_template_kwargs was answered with HTTP {status}: asked without")
        elif step.thinking is True and 400 <= status < 500:
            self._steps = [one for one in self._steps if one.thinking is not True]
            self.notes.append(f"thinking on was answered with HTTP {status}: asked with thinking off only")
        elif self.asked and does_not_fit(status, body):
            self._steps.pop(0)
            self.notes.append(f"{_named(step)}: not asked, the context is too short for it")
        else:
            self.problem = f"{_named(step)}: HTTP {status}: {body[:300].decode(errors='replace').strip()}"

    def _answered(self, step: Step, body: bytes, seconds: float) -> None:
        self._steps.pop(0)
        assert step.question is not None
        found = read(body)
        if found is None:
            self.problem = f"{_named(step)}: not a completion: {body[:300].decode(errors='replace').strip()}"
            return
        answer, tokens = found
        if self._switches is None:
            self._switches = True
        self._slowest = max(self._slowest, seconds)
        self._token_s = max(self._token_s, seconds / tokens)
        right = problem = None
        if self.coherence:
            right = hits(answer, step.question.accepted)
            problem = self._judge(step.question, answer, right)
        self.asked.append(Asked(step.question, step.thinking, answer, right, problem, seconds))
        if problem is not None:
            self.problem = f"{_named(step)}: {problem}"
        elif answer.reasoning and step.thinking is True and step.question is SUM:
            more = [Step(one, True) for one in QUESTIONS[1:] if any(one is old.question for old in self.asked)]
            self._steps = [*more, *self._steps]
        elif answer.reasoning and step.thinking is not True and not self._thinks:
            self._thinks = True
            self._steps = [one for one in self._steps if one.thinking is not True]
            self.notes.append("the model thinks although it was asked not to")

    def _judge(self, question: Question, answer: Answer, right: bool | None) -> str | None:
        if not answer.text.strip():
            return "an empty answer" if self.chat else None  # a base model may end at once; not every time
        return garbage(answer, question.prompt, missed=right is not True, base=not self.chat)

    def _take_likelihood(self, answer: Http) -> None:
        self.reading = likelihood.read(answer)
        if self.reading.why:
            self.notes.append(f"likelihood: not compared: {self.reading.why}")
        if self.reading.broken is not None:
            self.problem, self.retryable = self.reading.broken, answer.status is None
        elif self.reading.mean is not None:
            # the questions are asked all the same: the texts show what the number means
            self._unlikely = likelihood.too_low(self.reading.mean, self.expected)

    def _keep_time(self, now: float) -> None:
        """Leave out what will not be answered in time on an engine that is merely slow. The first two are never, nor is
        the likelihood."""
        assert self._steps
        if self._since is None or len(self.asked) < 2 or self._steps[0].question is None:
            return
        left = self._since + self.timeout_s - now
        if left < 2 * (self._slowest + self._tokens(self._steps[0]) * self._token_s):
            self.notes.append(f"{len(self._steps)} more were not asked: canary.timeout_s {self.timeout_s:g} is over")
            self._steps = []

    def _mostly_wrong(self) -> str | None:
        if self.coherence and self.asked and not any(one.answer.text.strip() for one in self.asked):
            return "every answer is empty"
        judged = [one for one in self.asked if one.right is not None]
        wrong = [one for one in judged if not one.right]
        if not self.chat or len(judged) < FEWEST_JUDGED or 2 * len(wrong) <= len(judged):
            return None
        texts = "; ".join(f"{one.question.id}: {one.answer.content[:60]!r}" for one in wrong[:3])
        return f"{len(wrong)} of {len(judged)} plain questions were answered wrongly: {texts}"

    # ------------------------------------------------------------------ what is told

    @property
    def learnable(self) -> float | None:
        """The mean log-probability to expect from now on; only of a pass in which nothing is expected yet."""
        if self.problem is not None or not self.done or self.expected is not None or self.reading is None:
            return None
        mean = self.reading.mean
        if mean is None or mean < likelihood.LEARNABLE:
            return None
        return mean

    def account(self) -> dict[str, Any]:
        """Everything that was asked and came, for the journal and for --json."""
        reading = self.reading
        return {
            "passed": self.problem is None,
            "problem": self.problem,
            "coherence": self.coherence,
            "endpoint": "chat" if self.chat else "completions",
            "asked": [one.to_json() for one in self.asked],
            "likelihood": None
            if reading is None or reading.mean is None
            else {
                "mean": round(reading.mean, 4),
                "tokens": reading.tokens,
                "expected": self.expected,
                "lowest": None if self.expected is None else round(self.expected - likelihood.TOLERANCE, 4),
            },
            "notes": list(self.notes),
        }

    def diagnosis(self, settings: Mapping[str, Any], forget: str) -> dict[str, Any]:
        """Of a failure. `settings`: canary of the plan; `forget`: the file that holds what is expected."""
        told = [one for one in self.asked if one.problem is not None or one.right is False]
        fix = []
        patches = settings.get("patches") or []
        if patches:
            named = ", ".join(patches)
            fix.append(f"this launch has the patch {named}: try --set patches=[], without the args that need it")
        if self.coherence and told:
            fix.append("rule out a kernel: --set args.enforce-eager=true, another attention or MoE backend")
        if self.reading is not None and self.reading.mean is not None and self.expected is not None:
            fix.append(f"if the checkpoint is another one now: rm {forget}   and the next pass learns it anew")
        return {
            "cause": "canary-failed",
            "summary": f"the model does not answer well: {self.problem}",
            "evidence": [{"line": None, "text": _evidence(one)} for one in told[:3]],
            "fix": [
                *fix,
                "kdeploy logs shows what the engine said; kdeploy logs --events --json has every answer",
                "a model that is random by design: --set canary.coherence=false",
            ],
            "retryable": self.retryable,
        }


def _named(step: Step) -> str:
    if step.question is None:
        return "likelihood"
    return (
        step.question.id
        if step.thinking is None
        else f"{step.question.id}, thinking {'on' if step.thinking else 'off'}"
    )


def _evidence(one: Asked) -> str:
    reasoning = f"reasoning {one.answer.reasoning[:120]!r}, " if one.answer.reasoning else ""
    return f"{one.question.prompt[-70:].strip()!r}: {reasoning}content {one.answer.content[:120]!r}"
