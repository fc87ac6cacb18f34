"""Candidates and where they apply; the course, the decision and the budget of a tune."""

import json
import math
import random
from dataclasses import replace
from typing import Any

import pytest

from deploy.console import tuning as words
from deploy.engine.flags import shipped_flags
from deploy.lifecycle.events import Event
from deploy.plan.launch_plan import Gpu, LaunchPlan
from deploy.profile.yaml_reader import plain_data, read_document
from deploy.tuning import budget, course
from deploy.tuning.budget import Estimate
from deploy.tuning.candidates import BASELINE, Candidate, built_in, read
from deploy.tuning.changes import applied, objection, overlay, shape_of, trial
from deploy.tuning.course import Setup, Step, fold, next_step, setup_from
from deploy.tuning.decision import LEAST, NO_GAIN, compare, quantile
from deploy.tuning.document import document

AT = "2026-12-01T10:15:00.000Z"


def plan(*flags: str, gpus: int = 8, env: dict[str, str] | None = None, tensor: int = 8) -> LaunchPlan:
    return LaunchPlan(
        name="kimi",
        profile="kimi-int4",
        profile_file="",
        digest="",
        model="/m",
        served_names=["kimi"],
        argv=["vllm", "serve", "/m", "--port", "8000", "--tensor-parallel-size", str(tensor), *flags],
        env=env or {},
        host="127.0.0.1",
        port=8000,
        engine={"start": ["vllm"]},
        limits={"restart": {"policy": "on-failure", "attempts": 3}},
        health={},
        canary={"enabled": False, "timeout_s": 10},
        gpus=[Gpu(index, f"GPU-{index}") for index in range(gpus)],
        gpus_wanted=gpus,
    )


def candidate(name: str = "x", env: dict[str, str | None] | None = None, **more: Any) -> Candidate:
    fields = {"args": {}, "why": "", "source": "", "ranks": [], "otherwise": "", "file": "", **more}
    return Candidate(name, env or {}, **fields)


SHIPPED = {one.name: one for one in built_in()}


def why_not(one: Candidate, of: LaunchPlan, files: tuple[str, ...] = ()) -> str | None:
    return objection(one, of, shipped_flags(), lambda file: file in files)


# ---------------------------------------------------------------------- candidates


def test_every_shipped_candidate_says_why_and_whence_and_vllm_knows_it() -> None:
    eight, two = plan(), plan(gpus=2, tensor=2)
    assert len(SHIPPED) > 15
    for one in SHIPPED.values():
        assert one.why, one.name
        assert one.source, one.name
        graph = one.env.get("NCCL_GRAPH_FILE") or ""
        reasons = [why_not(one, each, (graph,)) for each in (eight, two)]
        assert None in reasons, (one.name, reasons)


def test_everything_wrong_in_a_users_file_is_told_with_its_place() -> None:
    text = b"candidates:\n  a: {args: {max-model-le: 4}}\n  b: {}\n  baseline: {env: {X: 1}}\n  ok: {env: {X: 010}}\n"
    found, problems = read(text, "mine.yaml")
    assert [(problem.at.line, problem.text) for problem in problems] == [
        (2, "--max-model-le is decided by serve.max_model_len"),
        (3, "`b` changes nothing"),
        (4, "`baseline` is what the candidates are compared with"),
    ]
    assert found[-1].env == {"X": "010"}, "the characters as they were written"
    assert read(b"candidates: {a: {evn: {X: 1}}}", "mine.yaml")[1][0].text == "unknown key `candidates.a.evn`"
    assert read(b"candidates: {a: {env: {X: 1}}, a: {env: {Y: 1}}}", "mine.yaml")[1][0].text.startswith("duplicate key")


@pytest.mark.parametrize(
    ("name", "of", "reason"),
    [
        ("nccl-proto-ll", plan(), None),
        ("nccl-proto-ll", plan(gpus=1, tensor=1), "one rank has nothing to reduce"),
        ("nccl-proto-ll", plan(gpus=0, tensor=2), "a CPU engine has no NCCL"),
        ("custom-all-reduce-off", plan(gpus=0, tensor=2), "a CPU engine has no NCCL"),
        ("batched-tokens-4096", plan(gpus=0, tensor=2), None),
        ("nccl-proto-ll", plan(env={"NCCL_PROTO": "LL"}), "the launch has it already"),
        ("nccl-proto-ll", plan(env={"NCCL_PROTO": "Simple"}), None),
        ("batched-tokens-4096", plan("--max-num-batched-tokens", "4096"), "the launch has it already"),
        ("batched-tokens-4096", plan("--max_num_batched_tokens=4096"), None),
        ("async-scheduling-on", plan("--async-scheduling"), "the launch has it already"),
        ("nccl-p2p-level-phb", plan(env={"NCCL_P2P_LEVEL": "SYS"}), None),
        ("nccl-graph-xml", plan(gpus=4, tensor=4), "groups of four"),
        ("nccl-graph-xml", plan("--decode-context-parallel-size", "4"), "groups of four"),
        ("nccl-graph-xml", plan(gpus=2, tensor=2), "eight ranks"),
        ("nccl-graph-xml", plan(), "/etc/kdeploy/nccl_graph.xml is not here"),
        ("custom-all-reduce-off", plan(), "more than two PCIe GPUs"),
        ("custom-all-reduce-off", plan(gpus=2, tensor=2), None),
    ],
)
def test_what_can_do_nothing_is_not_tried(name: str, of: LaunchPlan, reason: str | None) -> None:
    found = why_not(SHIPPED[name], of)
    assert found is None if reason is None else reason in (found or "")


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (candidate(args={"async-schedulin": True}), "did you mean --async-scheduling?"),
        (
            candidate(args={"async-zcheduling": True}),
            "has no flag --async-zcheduling; did you mean --async-scheduling?",
        ),
        (candidate(args={"max-num-seqs": "many"}), "no whole number"),
        (candidate(env={"VLLM_NO_SUCH": "1"}), "reads no variable VLLM_NO_SUCH"),
        (candidate(env={"NCCL_P2P_LEVEL": "SYS"}), "peer access is off"),
        (candidate(env={"X": "1"}, ranks=[2]), "meant for 2 ranks, not 8"),
    ],
)
def test_why_a_users_candidate_is_not_tried(one: Candidate, reason: str) -> None:
    assert reason in (why_not(one, plan(env={"NCCL_P2P_DISABLE": "1"})) or "")


def test_a_candidate_replaces_what_it_names_and_nothing_else() -> None:
    before = plan("--max-num-batched-tokens", "8192", "--seed=1", "--async-scheduling", "-O3", env={"A": "1", "B": "2"})
    change = candidate(
        env={"A": None, "C": "3"},
        args={
            "max_num_batched_tokens": "4096",
            "async-scheduling": False,
            "seed": None,
            "compilation-config.mode": "1",
        },
    )
    after = applied(before, change, shipped_flags())
    assert after.argv[:7] == before.argv[:7]
    assert after.argv[7:] == [
        *("-O3", "--max-num-batched-tokens", "4096", "--no-async-scheduling", "--compilation-config.mode", "1")
    ]
    assert after.env == {"B": "2", "C": "3"}
    assert after.digest
    assert after.digest != before.digest


def test_a_try_has_a_name_of_its_own_a_canary_and_no_second_start() -> None:
    tried = trial(plan(), "kimi-tune")
    assert (tried.name, tried.canary["enabled"], tried.limits["restart"]["policy"]) == ("kimi-tune", True, "never")
    assert shape_of(tried).ranks == 8


# ---------------------------------------------------------------------- the decision


@pytest.mark.parametrize(("df", "t"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (30, 2.042)])
def test_quantiles_are_those_of_the_tables(df: int, t: float) -> None:
    assert quantile(0.95, df) == pytest.approx(t, abs=0.001)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([1.2, 1.21, 1.19, 1.2], "better"),
        ([0.8, 0.81, 0.79, 0.8], "worse"),
        ([1.0, 1.001, 0.999, 1.0], "practically equal"),
        ([0.98, 1.0, 0.96, 0.99, 0.97], NO_GAIN),
        ([1.3, 0.9, 1.1, 1.2], "undecided"),
        ([1.02, 1.021, 1.019, 1.02], "practically equal"),  # proven, and not worth a change
        ([1.5, 1.5], "undecided"),  # two launches that agree prove nothing
    ],
)
def test_verdicts(ratios: list[float], verdict: str) -> None:
    found = compare([(80.0, 80.0 * ratio) for ratio in ratios], margin=0.03, looks=2)
    assert found is not None
    assert (found.verdict, found.n) == (verdict, len(ratios))


def test_pairs_take_out_what_drifts() -> None:
    """A box that becomes slower by the hour hides nothing from pairs of one round."""
    drift = [100.0, 80.0, 60.0, 50.0]
    found = compare([(base, base * 1.1) for base in drift], margin=0.03, looks=6)
    assert found is not None
    assert found.verdict == "better"
    assert found.change == pytest.approx(0.1)


def test_chance_is_seldom_called_a_gain_although_it_is_looked_at_often() -> None:
    """Three candidates that change nothing, looked at after each round with 3 % scatter: at most 5 % wrong verdicts."""
    generator = random.Random(7)
    wrong = 0
    for _ in range(400):
        pairs: list[list[tuple[float, float]]] = [[], [], []]
        called = False
        for _ in range(5):
            base = math.exp(generator.gauss(0, 0.03))
            for one in pairs:
                one.append((base, math.exp(generator.gauss(0, 0.03))))
                found = compare(one, margin=0.0, looks=3 * (5 - LEAST + 1))
                called = called or (found is not None and found.verdict == "better")
        wrong += called
    assert wrong <= 20


# ---------------------------------------------------------------------- the course


def setup(*candidates: Candidate, **more: Any) -> Setup:
    fields: dict[str, Any] = {"candidates": list(candidates), "no_collective": "a CPU engine has no NCCL", **more}
    fields = {"metric": "raw", "concurrency": 1, "rounds": 4, "finalists": 2, "margin": 0.03, "runs": 2, **fields}
    fields = {"input_tokens": None, "output_tokens": None, "budget_s": None, "objections": {}, **fields}
    return Setup(name="kimi", profile="kimi-int4", **fields)


def cell(number: int, name: str, tok_s: float, seconds: float = 60.0) -> Event:
    fields = {"round": number, "name": name, "tok_s": tok_s, "launch_s": 40.0, "seconds": seconds, "marks": []}
    return Event("cell", AT, fields)


def played(of: Setup, speeds: dict[str, list[float]]) -> tuple[list[tuple[int, str]], list[Event]]:
    """Play a tune to its end with these figures by round; the order of its launches, and its journal."""
    events: list[Event] = []
    order: list[tuple[int, str]] = []
    while (step := next_step(of, fold(events))) is not None:
        assert step.kind == "cell"
        order.append((step.round, step.name))
        figures = speeds[step.name]
        if not figures[step.round - 1]:
            events.append(Event("out", AT, {"name": step.name, "why": "canary-failed: !!!!", "seconds": 60.0}))
        else:
            events.append(cell(step.round, step.name, figures[step.round - 1]))
    return order, events


def test_launches_take_turns_and_who_is_decided_or_out_is_not_launched_again() -> None:
    of = setup(candidate("fast"), candidate("same"), candidate("broken"))
    order, events = played(
        of,
        {
            BASELINE: [80.0, 81.0, 79.0, 80.0],
            "fast": [120.0, 121.0, 119.0, 120.0],
            "same": [78.0, 84.0, 79.5, 78.0],
            "broken": [0.0],
        },
    )
    assert order == [
        *[(1, name) for name in (BASELINE, "fast", "same", "broken")],
        *[(number, name) for number in (2, 3) for name in (BASELINE, "fast", "same")],
        *[(4, name) for name in (BASELINE, "same")],
    ]
    found = document(of, fold(events), Estimate(None, None, None, 0), "1")
    states = {one["name"]: one["status"] for one in found["candidates"]}
    assert states == {"fast": "better", "same": "undecided", "broken": "out"}
    assert found["verdict"]["candidate"] == "fast"
    told = words.result(found)
    assert any(line.startswith("verdict: fast is faster by +50.0% [") for line in told)
    assert any("broken is out: canary-failed: !!!!" in line for line in told)


def test_the_old_setting_is_kept_within_noise() -> None:
    of = setup(candidate("x", {"NCCL_PROTO": "LL"}))
    _, events = played(of, {BASELINE: [80.0, 84.0, 79.0, 81.0], "x": [82.0, 81.0, 80.0, 84.0]})
    found = document(of, fold(events), Estimate(None, None, None, 0), "1")
    assert (found["verdict"]["decision"], found["overlay"]) == ("kept", None)
    assert words.result(found)[-1].startswith("verdict: kept as it is")
    assert words.overlay(found) == []


def test_the_best_of_two_gains_is_offered_as_an_overlay_that_can_be_read_again() -> None:
    env: dict[str, str | None] = {"NCCL_PROTO": "LL,LL128", "NCCL_MIN_NCHANNELS": "8", "NCCL_P2P_LEVEL": None}
    best = candidate("best", env, args={"async-scheduling": True, "hf-overrides": {"a": "b: c"}})
    of = setup(candidate("good"), best)
    base = [80.0, 81.0, 79.0]
    _, events = played(of, {BASELINE: base, "good": [90.0, 91.0, 89.0], "best": [100.0, 101.0, 99.0]})
    found = document(of, fold(events), Estimate(None, None, None, 0), "1")
    assert found["verdict"]["candidate"] == "best"
    text = "\n".join(words.overlay(found))
    again = plain_data(read_document(text.encode(), "overlay.yaml"))
    assert again == {**overlay(best), "env": {**env, "NCCL_MIN_NCHANNELS": 8}}


def test_an_all_reduce_alone_ranks_those_of_nccl_and_only_the_best_are_launched() -> None:
    nccl = [candidate(name, {"NCCL_PROTO": name}) for name in ("a", "b", "c", "slow", "wrong")]
    of = setup(*nccl, candidate("args", args={"max-num-seqs": "4"}), no_collective=None)
    events: list[Event] = []
    us = {BASELINE: 48.0, "a": 40.0, "b": 26.0, "c": 30.0, "slow": 90.0}
    asked = []
    while (step := next_step(of, fold(events))) is not None and step.kind == "collective":
        asked.append(step.name)
        if step.name == "wrong":
            events.append(Event("out", AT, {"name": "wrong", "why": "all-reduce: wrong values"}))
        else:
            sizes = {"32768": us[step.name], "65536": us[step.name], "67108864": 1.0}
            events.append(Event("collective", AT, {"name": step.name, "us": sizes}))
    assert asked == [BASELINE, "a", "b", "c", "slow", "wrong"]
    assert step == Step("cell", BASELINE, 1)
    assert course.finalists(of, fold(events)) == ["b", "c", "args"]
    found = {one["name"]: one for one in document(of, fold(events), Estimate(None, None, None, 0), "1")["candidates"]}
    assert (found["a"]["status"], found["slow"]["reason"]) == ("no finalist", "its all-reduce: -46.7%")
    assert found["b"]["collective_gain"] == pytest.approx(48 / 26 - 1, abs=0.001)


def test_an_interrupted_round_is_measured_anew_and_whole_ones_are_kept() -> None:
    of = setup(candidate("x"))
    events = [cell(1, BASELINE, 80.0), cell(1, "x", 90.0), cell(2, BASELINE, 80.0)]
    assert course.unfinished_round(of, fold(events)) == 2
    events.append(Event("discarded", AT, {"round": 2}))
    assert course.unfinished_round(of, fold(events)) is None
    assert next_step(of, fold(events)) == Step("cell", BASELINE, 2)
    assert [one.round for one in fold(events).cells] == [1, 1]


def test_what_was_taken_down_is_known_until_it_is_back() -> None:
    events = [Event("took-down", AT, {"name": "kimi", "launch": "1"})]
    assert fold(events).took_down == {"name": "kimi", "launch": "1"}
    assert fold([*events, Event("brought-back", AT, {"name": "kimi"})]).took_down is None


def test_a_setup_survives_its_file() -> None:
    of = setup(candidate("x", {"A": None}, args={"b": {"c": [1]}}), left_out=["y"])
    assert setup_from(json.loads(json.dumps(of.to_json()))) == of


# ---------------------------------------------------------------------- the budget


def test_time_is_told_from_past_loads_and_the_budget_leaves_the_last_ones_out() -> None:
    of = setup(*(candidate(name) for name in "abc"))
    found = budget.estimate([100.0, 120.0, 110.0], [10.0], 20.0)
    assert found == Estimate(110.0, 10.0, 20.0, 3)
    # four rounds of four launches with 140 s each, and the return of what was up
    assert budget.whole(of, found) == 4 * 4 * 140 + 110
    assert budget.trimmed(of, found).left_out == []
    tight = replace(of, budget_s=3 * 3 * 140 + 110.0)
    assert budget.trimmed(tight, found).left_out == ["c"]
    assert budget.too_small(budget.trimmed(tight, found), found) is None
    none = budget.trimmed(replace(of, budget_s=60.0), found)
    assert (none.left_out, budget.too_small(none, found)) == (["c", "b"], 3 * 2 * 140 + 110)
    unknown = budget.estimate([], [], None)
    assert budget.trimmed(replace(of, budget_s=60.0), unknown).left_out == []
    told = words.plan(document(of, fold([]), found, None))[-1]
    assert told == "how long: at most 39 min; each launch 110 s to load (median of the last 3), 20 s to measure"


def test_no_round_begins_that_the_budget_has_no_room_for() -> None:
    of = setup(candidate("x"), budget_s=300.0)
    unknown = budget.estimate([], [], None)
    events = [cell(1, BASELINE, 80.0), cell(1, "x", 90.0)]
    assert not budget.over(of, fold(events), unknown, Step("cell", BASELINE, 2))  # 120 + 2 x 60 + 40 for the return
    events += [cell(2, BASELINE, 80.0), cell(2, "x", 90.0)]
    assert budget.over(of, fold(events), unknown, Step("cell", BASELINE, 3))
    assert not budget.over(of, fold([*events, cell(3, BASELINE, 80.0)]), unknown, Step("cell", "x", 3)), "half a round"
    assert not budget.over(replace(of, budget_s=None), fold(events), unknown, Step("cell", BASELINE, 3))
