"""One bench: single stream, cross-check, sweep. Runs the load and puts the figures together."""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from deploy import errors
from deploy.measure import metrics, prompts, statistics
from deploy.measure.gpu_watch import GpuWatch
from deploy.measure.load_generator import Load, Outcome, allow_files
from deploy.measure.metrics import Figures, Split
from deploy.measure.server import Server, Watch, finished_by_others
from deploy.measure.timeline import Timeline

LEVELS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
GROWTH = 1.03  # a sweep without levels of its own ends after two levels that gave less than this more
WARM_TOKENS = 16
EXTRAS: tuple[dict[str, Any], ...] = (
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"stream_options": {"include_usage": True}},
    {},
)


class Busy(errors.KdeployError):
    """The server serves others, so that nothing can be measured now."""


class Wanted(NamedTuple):
    """What to measure. `concurrency`: None takes LEVELS until more streams give no more; `rate`: requests a second."""

    input_tokens: int = 512
    output_tokens: int = 512
    runs: int = 3
    concurrency: tuple[int, ...] | None = None
    requests: int | None = None
    rate: float | None = None
    sweep: bool = True
    repeat_prompts: bool = False
    clean_s: float = 60.0
    silence_s: float = 300.0


@dataclass
class Bench:
    """One measurement of one server. `say` is told each step, a line each."""

    server: Server
    model: str
    wanted: Wanted
    say: Callable[[str], None]
    gpu_uuids: Sequence[str] | None = None
    extras: dict[str, Any] = field(default_factory=dict)
    fixed_length: bool = False
    length: prompts.Length = field(default_factory=prompts.Length)
    seed: str = ""
    asked: int = 0

    def run(self) -> dict[str, Any]:
        """The measured part of the document. Raises KdeployError when every request failed."""
        self.seed = f"{time.time_ns():x}"
        if self.wanted.sweep and self.wanted.concurrency:
            # before minutes are spent on the levels below
            allow_files(max(self.wanted.concurrency))
        self._probe()
        single, samples = self._single()
        check = self._crosscheck(single)
        sweep, stopped = self._sweep() if self.wanted.sweep else ([], None)
        return {
            "single": single,
            "crosscheck": check,
            "sweep": sweep,
            "sweep_ended": stopped,
            "request": {
                **self.wanted._asdict(),
                "concurrency": list(self.wanted.concurrency or ()) or None,
                "stream_options": self.extras.get("stream_options"),
                "fixed_output_length": self.fixed_length,
            },
            "samples": samples,
        }

    def cell(self, concurrency: int) -> dict[str, Any]:
        """One cell of a comparison: the single stream alone, or one level alone, with the options learned anew.

        Raises:
            KdeployError: nothing could be measured, or others used the engine meanwhile.
        """
        self.seed = f"{time.time_ns():x}"
        allow_files(concurrency)
        self._probe()
        if concurrency == 1:
            return self._single()[0]
        found = self._level(concurrency)
        if found["void"]:
            raise Busy(f"{self.server.url} served other requests; nothing was measured", evidence=[found["void"]])
        return found

    # ------------------------------------------------------------------ what the server can do

    def _probe(self) -> None:
        """Learn which options the server takes and how long its tokens are; the answers also warm it up."""
        self.say("asking what the server can do, and warming it up")
        address, last = self.server.address(), "no answer"
        for extras in EXTRAS:
            for fixed in (True, False):
                self.extras, self.fixed_length = extras, fixed
                sent = [(4, "few"), (204, "many")]
                bodies = [
                    self._request(task, name, words, WARM_TOKENS, fixed) for task, (words, name) in enumerate(sent)
                ]
                found = Load(address, silence_s=self.wanted.silence_s).closed(bodies, 1).timelines
                if all(timeline.ok for timeline in found):
                    counts = [timeline.usage.get("prompt_tokens") for timeline in found]
                    if all(counts):
                        self.length = prompts.fit((4, counts[0] or 0), (204, counts[1] or 0))
                    return
                last = next(timeline.failure for timeline in found if not timeline.ok)
                if not any(timeline.status in (400, 422) for timeline in found):
                    break
            else:
                continue
            break
        if found[0].status in (401, 403):
            raise errors.environment(
                f"{self.server.url} wants an API key", evidence=[last], fix=["--api-key '${env:NAME}'"]
            )
        if not any(timeline.ok for timeline in found) and found[0].status in (400, 404, 422):
            raise errors.KdeployError(f"{self.server.url} refuses a chat completion", evidence=[last])

    def _request(self, task: int, seed: str, words: int, output_tokens: int, fixed: bool, stream: bool = True) -> bytes:
        seed = "same" if self.wanted.repeat_prompts else f"{self.seed}-{seed}"
        extras = {**self.extras, **({"ignore_eos": True} if fixed else {})}
        text = prompts.prompt(task, seed, words)
        body = prompts.chat(self.model, text, output_tokens=output_tokens, stream=stream, extras=extras)
        return self.server.request(body)

    def _requests(self, number: int, fixed: bool, tokens: int | None = None) -> Iterator[bytes]:
        words = self.length.words(self.wanted.input_tokens)
        for _ in range(number):
            task = self.asked % len(prompts.TASKS)
            self.asked += 1
            yield self._request(task, str(self.asked), words, tokens or self.wanted.output_tokens, fixed)

    # ------------------------------------------------------------------ one clean level

    def _clean(self, run: Callable[[], Outcome], most: int | None) -> tuple[Outcome, dict[str, Any]]:
        """The outcome of a load in a window without other requests; what stood beside it. Tried twice.

        `most`: how many of its requests there are at once; None where nothing limits them.
        """
        others = 0.0
        for attempt in (1, 2):
            idle = self.server.await_idle(self.wanted.clean_s)
            if idle is False and attempt == 2:
                break  # the first try stands, void
            if idle is False:
                raise Busy(
                    f"{self.server.url} serves other requests; nothing was measured",
                    evidence=[f"it did not come to rest within {self.wanted.clean_s:g} s (/metrics)"],
                    fix=["keep other clients away, or --clean-wait S to wait longer"],
                )
            before = self.server.activity()
            with GpuWatch(self.gpu_uuids) as gpus, Watch(self.server) as watch:
                outcome = run()
            rests = self.server.await_idle(min(5.0, self.wanted.clean_s))
            after = self.server.activity()
            others = max(
                metrics.foreign_seen(watch.samples, outcome.timelines, most),
                finished_by_others(before, after, outcome.timelines),
            )
            if rests is False and after is not None and all(timeline.ok for timeline in outcome.timelines):
                others = max(others, after.held)  # ours are all answered
            if not others:
                break
            if attempt == 1:
                self.say("  other requests came in between: measuring again")
        void = f"the engine served {others:g} requests of others meanwhile" if others else None
        return outcome, {"clean": None if idle is None else not others, "void": void, "gpus": gpus.summary()}

    def _splits(self, timelines: Sequence[Timeline]) -> list[Split | None]:
        return [self._split(timeline) if timeline.ok else None for timeline in timelines]

    def _split(self, timeline: Timeline) -> Split | None:
        found = metrics.split(timeline)
        if found is not None and found.by != metrics.NONE:
            return found
        reasoning = self.server.count(self.model, timeline.reasoning_text)
        content = self.server.count(self.model, timeline.content_text)
        return metrics.split(timeline, reasoning, content)

    # ------------------------------------------------------------------ single stream

    def _single(self) -> tuple[dict[str, Any], dict[str, Any]]:
        number = max(self.wanted.runs * len(prompts.TASKS), len(prompts.TASKS))
        self.say(f"single stream: {len(prompts.TASKS)} prompts, {self.wanted.runs} runs each")
        load = self._requests(number, False)
        outcome, beside = self._clean(lambda: self._load().closed(load, 1), 1)
        splits = self._splits(outcome.timelines)
        failures = Counter(timeline.failure for timeline in outcome.timelines if not timeline.ok)
        found = [
            (timeline, figures)
            for timeline, split in zip(outcome.timelines, splits, strict=True)
            if split is not None and timeline.ok and (figures := metrics.figures(timeline, split)) is not None
        ]
        if not found:
            why = failures.most_common(3) or [(metrics.NOT_COUNTED, number)]
            raise errors.KdeployError(
                "every request failed; nothing was measured", evidence=[f"{count} times: {text}" for text, count in why]
            )
        samples = {key: _values([one for _, one in found], key) for key in SAMPLED}
        if beside["void"]:
            raise errors.KdeployError(
                "the single stream was disturbed twice; nothing was measured",
                evidence=[beside["void"]],
                fix=["keep other clients away while it measures"],
            )
        return self._single_document(found, samples, failures, outcome, beside), {"single": samples}

    def _single_document(
        self,
        found: Sequence[tuple[Timeline, Figures]],
        samples: dict[str, list[float]],
        failures: Counter[str],
        outcome: Outcome,
        beside: dict[str, Any],
    ) -> dict[str, Any]:
        estimates = {key: statistics.estimate(values) for key, values in samples.items()}
        medians = {key: _rounded(one.median) if one else None for key, one in estimates.items()}
        itl = [gap for timeline, _ in found for gap in metrics.gaps(timeline)]
        tokens = {
            key: None if value is None else round(value)
            for key, value in medians.items()
            if key.endswith(("tokens", "characters"))
        }
        return {
            **{key: value for key, value in medians.items() if key not in tokens},
            **tokens,
            "split_by": metrics.weakest([one.split_by for _, one in found]),
            "itl_s": metrics.percentiles(itl),
            "tokens_per_event": _rounded(
                sum(one.completion_tokens for _, one in found) / max(1, sum(one.events for _, one in found))
            ),
            "interval": {
                key: {"low": _rounded(one.low), "high": _rounded(one.high), "n": one.n}
                for key, one in estimates.items()
                if one and key.endswith("_s")
            },
            "requests": len(outcome.timelines),
            "failed": len(outcome.timelines) - len(found),
            "failures": dict(failures),
            "client": _client(outcome),
            "client_bound": metrics.client_bound(0.0, outcome.client.lag_p99_s, medians["tpot_s"]),
            **beside,
        }

    def _crosscheck(self, single: dict[str, Any]) -> dict[str, Any]:
        """One plain request, timed by the clock alone."""
        self.say("cross-check: one request that does not stream")
        self.asked += 1
        words = self.length.words(self.wanted.input_tokens)
        body = self._request(0, str(self.asked), words, self.wanted.output_tokens, False, stream=False)
        try:
            outcome, beside = self._clean(lambda: self._load().closed([body], 1), 1)
        except Busy as busy:  # what was measured before is worth keeping
            return _unchecked(busy.what)
        (timeline,) = outcome.timelines
        split = self._split(timeline) if timeline.ok else None
        if beside["void"] or split is None or not split.completion:
            return _unchecked(beside["void"] or timeline.failure or "not counted")
        wall = timeline.ended - timeline.asked
        rate = split.completion / wall
        difference = rate / single["wall_tok_s"] - 1
        return {
            "completion_tokens": split.completion,
            "wall_s": _rounded(wall),
            "tok_s": _rounded(rate),
            "against_wall": _rounded(difference),
            "explained": explain(single, split.completion, wall),
        }

    def _load(self) -> Load:
        return Load(self.server.address(), silence_s=self.wanted.silence_s)

    # ------------------------------------------------------------------ sweep

    def _sweep(self) -> tuple[list[dict[str, Any]], str | None]:
        if self.wanted.rate is not None:
            return [self._open(self.wanted.rate)], None
        done: list[dict[str, Any]] = []
        best, flat = 0.0, 0
        for concurrency in self.wanted.concurrency or LEVELS:
            try:
                done.append(self._level(concurrency))
            except errors.KdeployError as error:
                # what was measured before is worth keeping
                return done, f"at {concurrency}: {error.what}"
            rate = done[-1]["raw_tok_s"] or 0.0
            flat = 0 if rate > best * GROWTH else flat + 1
            best = max(best, rate)
            if self.wanted.concurrency is None and flat == 2:
                return done, f"two levels in a row gave less than {GROWTH - 1:.0%} more"
        return done, None

    def _level(self, concurrency: int) -> dict[str, Any]:
        number = self.wanted.requests or max(8, 2 * concurrency)
        self.say(f"concurrency {concurrency}: {number} requests")
        warm = list(self._requests(concurrency, self.fixed_length, min(WARM_TOKENS, self.wanted.output_tokens)))
        self._load().closed(warm, concurrency)
        load = list(self._requests(number, self.fixed_length))
        outcome, beside = self._clean(lambda: self._load().closed(load, concurrency), concurrency)
        return self._level_document(outcome, beside, {"concurrency": concurrency, "loop": "closed"})

    def _open(self, rate: float) -> dict[str, Any]:
        number = self.wanted.requests or 64
        self.say(f"open loop: {rate:g} requests a second, {number} requests")
        generator, due, clock = random.Random(self.seed), [], 0.0
        for _ in range(number):
            due.append(clock)
            clock += generator.expovariate(rate)
        load = list(self._requests(number, self.fixed_length))
        outcome, beside = self._clean(lambda: self._load().open(load, due), None)
        most = max(
            sum(1 for other in outcome.timelines if other.asked <= one.asked < other.ended) for one in outcome.timelines
        )
        return self._level_document(outcome, beside, {"concurrency": most, "loop": "open", "rate": rate})

    def _level_document(self, outcome: Outcome, beside: dict[str, Any], head: dict[str, Any]) -> dict[str, Any]:
        splits = self._splits(outcome.timelines)
        found = metrics.level(outcome.timelines, splits)
        tpot = (found["tpot_s"] or {}).get("p50")
        bound = metrics.client_bound(outcome.client.busy, outcome.client.lag_p99_s, tpot)
        if beside["void"]:
            found = {**found, **dict.fromkeys(RATES)}
        # a level is one number: its scatter is that of the requests in it
        samples = [
            tokens.completion / (timeline.ended - timeline.asked)
            for timeline, tokens in zip(outcome.timelines, splits, strict=True)
            if timeline.ok and tokens is not None and timeline.ended > timeline.asked and not beside["void"]
        ]
        level = {**head, **_deep_rounded(found), "client_bound": bound, "client": _client(outcome), **beside}
        return {**level, "samples": {"request_tok_s": [_rounded(value) for value in samples]}}


RATES = ("raw_tok_s", "visible_tok_s")
SAMPLED = (
    "raw_tok_s",
    "visible_tok_s",
    "wall_tok_s",
    "ttft_s",
    "ttft_visible_s",
    "tpot_s",
    "e2e_s",
    "connect_s",
    "completion_tokens",
    "reasoning_tokens",
    "content_tokens",
    "prompt_tokens",
    "reasoning_characters",
    "content_characters",
)


def explain(single: dict[str, Any], tokens: int, wall_s: float) -> str:
    """Why the plain request and the streamed ones differ, in words."""
    raw, ttft = single["raw_tok_s"], single["ttft_s"]
    if not raw:
        return "the stream has no decode window to compare with"
    expected = ttft + (tokens - 1) / raw
    difference = wall_s / expected - 1
    told = f"TTFT {ttft:.3f} s + {tokens - 1} tokens at {raw:.1f} tok/s make {expected:.2f} s; it took {wall_s:.2f} s"
    if abs(difference) <= 0.05:
        return f"{told}: they agree within {abs(difference):.1%}"
    if difference > 0:
        return f"{told}: {difference:.1%} longer than the stream; a single request scatters, so run it again"
    return f"{told}: {-difference:.1%} shorter than the stream; streaming itself may cost time in the server"


def _unchecked(why: str) -> dict[str, Any]:
    return {"completion_tokens": None, "wall_s": None, "tok_s": None, "failure": why}


def _values(found: Sequence[Figures], key: str) -> list[float]:
    return [_rounded(value) for one in found if (value := getattr(one, key)) is not None]


def _client(outcome: Outcome) -> dict[str, Any]:
    return {key: _rounded(value) for key, value in outcome.client._asdict().items()}


def _rounded(value: float) -> float:
    """Six significant digits: more is noise, fewer may be seen."""
    return float(f"{value:.6g}")


def _deep_rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _deep_rounded(entry) for key, entry in value.items()}
    return _rounded(value) if isinstance(value, float) else value
