"""`kdeploy tune PROFILE|NAME`: which settings make it faster here, by measurement; begin, resume, show, undo."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from deploy import errors
from deploy.commands import options
from deploy.console import output
from deploy.errors import KdeployError, not_running, refused, usage

if TYPE_CHECKING:
    from deploy.plan.launch_plan import LaunchPlan
    from deploy.store.tunes import Tune
    from deploy.tuning.budget import Estimate
    from deploy.tuning.course import Setup

ASKED = (
    *("candidates", "only", "budget", "rounds", "finalists", "runs", "concurrency", "metric", "margin"),
    *("input_tokens", "output_tokens", "sets", "gpus", "port"),
)


class Duration(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """90, 90s, 45m, 3h: seconds."""

    name = "time"
    units = {"": 1, "s": 1, "m": 60, "h": 3600}  # noqa: RUF012

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds, above zero."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value))
        if match is None or float(match[1]) == 0:
            self.fail(f"{value!r} is no time: 90s, 45m, 3h", param, ctx)
        return float(match[1]) * self.units[match[2]]


@click.command()
@click.argument("which", metavar="PROFILE|NAME")
@click.option("--candidates", multiple=True, metavar="FILE", help="More candidates, as YAML (repeatable).")
@click.option("--only", multiple=True, metavar="NAME", help="Only this candidate (repeatable).")
@click.option("--budget", type=Duration(), metavar="T", help="Take no longer than T: 90m, 3h.")
@click.option("--rounds", type=click.IntRange(3, 50), default=5, show_default=True, help="Launches of each, at most.")
@click.option(
    "--finalists",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="So many of those that an all-reduce can rank get the real model.",
)
@click.option("--runs", type=click.IntRange(min=1), default=2, show_default=True, help="Runs of each prompt a launch.")
@click.option(
    "--concurrency", type=click.IntRange(1, 100_000), default=1, show_default=True, help="Measure so many streams."
)
@click.option("--metric", type=click.Choice(["raw", "visible"]), default="raw", show_default=True)
@click.option("--margin", type=click.FloatRange(0, 1), default=0.03, show_default=True, help="What counts as equal.")
@click.option("--input-tokens", type=click.IntRange(min=1), help="Length of the prompts (default: 512).")
@click.option("--output-tokens", type=click.IntRange(min=2), help="Length of the answers (default: 512).")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Of a profile: override one key.")
@click.option("--gpus", metavar="LIST", help="Of a profile: GPUs by index or UUID.")
@click.option("--port", type=click.IntRange(1, 65535), help="Of a profile: port to serve on.")
@options.profiles
@click.option("--write-overlay", metavar="FILE", help="Write a setting that is proven faster there (a new file).")
@click.option("--dry-run", is_flag=True, help="Tell what would be tried and how long it takes; start nothing.")
@click.option("--fresh", is_flag=True, help="Begin anew, although an interrupted tune could go on.")
@click.option("--show", is_flag=True, help="Show the newest tune; measure nothing.")
@click.option("--undo", is_flag=True, help="End an interrupted tune: stop its try, bring back what was up before.")
@options.as_json
@click.pass_context
def command(
    ctx: click.Context,
    /,
    which: str,
    write_overlay: str | None,
    dry_run: bool,
    fresh: bool,
    show: bool,
    undo: bool,
    as_json: bool,
    **chosen: Any,
) -> int:
    """Measure which NCCL and engine settings make PROFILE, or what runs as NAME, faster.

    What runs is stopped for it, and comes back with its own plan. Interrupted, the same command goes on.
    """
    if sum((dry_run, fresh, show, undo)) > 1:
        raise usage("--dry-run, --fresh, --show and --undo exclude each other")
    if write_overlay:
        _refuse_overlay(write_overlay)
    chosen["profiles"] = [*ctx.obj["profiles"], *chosen["profiles"]]
    from deploy.commands import tuning_setup

    name = tuning_setup.name_of(which, chosen)
    if show:
        return _shown(name, write_overlay, as_json)
    if dry_run:
        setup, estimate = tuning_setup.setup(tuning_setup.subject(which, name, chosen), chosen)
        return _told_plan(setup, estimate, as_json)
    given = {key for key in ASKED if ctx.get_parameter_source(key) == click.core.ParameterSource.COMMANDLINE}
    with _held(name):
        if undo:
            return _undone(name)
        tune = _unfinished(name)
        if tune is not None and not fresh:
            _refuse_other_settings(tune, given, chosen)
            output.say(f"going on with the tune {tune.id} of {name}")
        else:
            tune = _begun(which, name, chosen, tune)
        return _carried_out(tune, write_overlay, as_json)


# ---------------------------------------------------------------------- one tune at a time, begun or resumed


@contextmanager
def _held(name: str) -> Iterator[None]:
    """The lock of this deployment's tunes, for the block."""
    from deploy.store import tunes
    from deploy.store.locks import read_holder, try_lock, write_holder

    tunes.make_home(name)
    path = tunes.lock_path(name)
    fd = try_lock(path)
    if fd is None:
        holder = read_holder(path)
        who = f"pid {holder.get('pid', '?')} since {holder.get('since', '?')}"
        raise refused(f"{name} is being tuned already", evidence=[f"{path}: held by {who}"])
    write_holder(fd, {"role": "tune", "pid": os.getpid()})
    try:
        yield
    finally:
        os.close(fd)


def _unfinished(name: str) -> "Tune | None":
    from deploy.store import tunes
    from deploy.tuning.course import fold

    stored = tunes.stored(name)
    return stored[-1] if stored and fold(stored[-1].read()).ended is None else None


def _refuse_other_settings(tune: "Tune", given: set[str], chosen: dict[str, Any]) -> None:
    from deploy.store import tunes

    before = tunes.read(tune, "asked.json")
    other = sorted(key for key in given if before.get(key) != _plain(chosen[key]))
    if other:
        raise usage(
            f"an interrupted tune of {tune.name} was asked for other things",
            evidence=[f"{key}: then {before.get(key)!r}, now {_plain(chosen[key])!r}" for key in other],
            fix=[f"kdeploy tune {tune.name}   goes on with it", "--fresh begins anew"],
        )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _begun(which: str, name: str, chosen: dict[str, Any], abandoned: "Tune | None") -> "Tune":
    """A new tune's folder. What an abandoned one has stopped is this one's to bring back."""
    from deploy.commands import tuning_setup
    from deploy.plan.launch_plan import from_json
    from deploy.store import tunes
    from deploy.store.deployments import observe
    from deploy.store.journal import Journal
    from deploy.tuning.changes import trial
    from deploy.tuning.course import fold

    stopped = fold(abandoned.read()).took_down if abandoned else None
    before = tunes.read(abandoned, "before.json") if abandoned and stopped else None
    plan = from_json(before) if before is not None else tuning_setup.subject(which, name, chosen)
    # a name that no profile has: it is a deployment only while something is tried
    tries = f"{name[:57]}-tune"
    if abandoned is None and observe(tries) is not None:
        raise refused(
            f"a deployment is named {tries}, which is what the tries would be called",
            fix=[f"tune it under another name: kdeploy up {plan.profile} --name OTHER, then kdeploy tune OTHER"],
        )
    setup, estimate = tuning_setup.setup(plan, chosen)
    _told_plan(setup, estimate, as_json=False, to=output.say)
    files = {
        "setup.json": setup.to_json(),
        "plan.json": trial(plan, tries).to_json(),
        "estimate.json": estimate._asdict(),
        "asked.json": {key: _plain(chosen[key]) for key in ASKED},
        **({"before.json": before} if before is not None else {}),
    }
    tune = tunes.make(name, files)
    if stopped is not None:
        Journal(tune.events).append("took-down", stopped)
    if abandoned is not None:
        Journal(abandoned.events).append("ended", {"why": "abandoned"})
    return tune


def _loaded(tune: "Tune") -> tuple["Setup", "LaunchPlan", "Estimate"]:
    from deploy.plan.launch_plan import from_json
    from deploy.store import tunes
    from deploy.tuning.budget import Estimate
    from deploy.tuning.course import setup_from

    try:
        setup = setup_from(tunes.read(tune, "setup.json"))
        return setup, from_json(tunes.read(tune, "plan.json")), Estimate(**tunes.read(tune, "estimate.json"))
    except (TypeError, KeyError, ValueError) as error:
        raise KdeployError(
            f"{tune.folder} is no tune that this kdeploy knows",
            evidence=[str(error)],
            fix=[f"kdeploy tune {tune.name} --fresh"],
        ) from None


# ---------------------------------------------------------------------- what comes of it


def _carried_out(tune: "Tune", write_overlay: str | None, as_json: bool) -> int:
    from deploy.commands.tuning import Tuner

    setup, plan, estimate = _loaded(tune)
    try:
        with _ended_by_signals():
            Tuner(tune, setup, plan, estimate).run()
    except KeyboardInterrupt:
        output.say(f"everything is put back; kdeploy tune {tune.name}   goes on with it")
        return errors.DETACHED
    return _told_result(tune, write_overlay, as_json)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """A closed terminal and SIGTERM end a tune as Ctrl-C does, once: what it has done has to be undone."""

    def handler(_number: int, _frame: object) -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, disposition in before.items():
            signal.signal(number, disposition)


def _undone(name: str) -> int:
    from deploy.commands.tuning import Tuner
    from deploy.store.journal import Journal

    tune = _unfinished(name)
    if tune is None:
        output.say(f"no tune of {name} is unfinished; nothing to undo")
        return errors.OK
    setup, plan, estimate = _loaded(tune)
    Tuner(tune, setup, plan, estimate).undo()
    Journal(tune.events).append("ended", {"why": "undone"})
    output.say(f"the tune {tune.id} of {name} is ended; kdeploy tune {name} --show   shows what it had measured")
    return errors.OK


def _shown(name: str, write_overlay: str | None, as_json: bool) -> int:
    from deploy.store import tunes

    stored = tunes.stored(name)
    if not stored:
        raise not_running(f"{name} was never tuned", fix=[f"kdeploy tune {name}"])
    return _told_result(stored[-1], write_overlay, as_json)


def _told_plan(setup: "Setup", estimate: "Estimate", as_json: bool, to: Callable[[str], None] = output.data) -> int:
    from deploy.console import tuning
    from deploy.tuning.course import Progress
    from deploy.tuning.document import document

    found = document(setup, Progress(), estimate, None)
    if as_json:
        output.document(found)
        return errors.OK
    for line in tuning.plan(found):
        to(line)
    return errors.OK


def _told_result(tune: "Tune", write_overlay: str | None, as_json: bool) -> int:
    from deploy.console import tuning
    from deploy.homes import config_dir
    from deploy.tuning.course import fold
    from deploy.tuning.document import document

    setup, _, estimate = _loaded(tune)
    found = document(setup, fold(tune.read()), estimate, tune.id)
    text = tuning.overlay(found)
    output.say(f"launches and logs of the tries: {tune.folder}")
    if as_json:
        output.document(found)
    else:
        for line in [*tuning.result(found), *([""] if text else []), *text]:
            output.data(line)
    if write_overlay:
        _write_overlay(write_overlay, text)
    else:
        host = os.path.join(config_dir(), "host.yaml")
        for line in tuning.steps(found, host, exists=os.path.exists(host)):
            output.say(f"  -> {line}")
    return errors.OK


def _refuse_overlay(file: str) -> None:
    """Before hours are spent: the file must be one that can be made."""
    if os.path.exists(file):
        raise usage(
            f"{file} exists, and kdeploy changes no file of yours",
            fix=["name a new file", "without --write-overlay the keys are printed, to be merged by hand"],
        )
    folder = os.path.dirname(os.path.abspath(file))
    if not os.access(folder, os.W_OK):
        raise usage(f"{file} cannot be made", evidence=[f"{folder} is not there, or cannot be written"])


def _write_overlay(file: str, lines: list[str]) -> None:
    if not lines:
        output.say(f"the old setting is kept; {file} is not written")
        return
    try:
        with open(file, "x") as stream:
            stream.write("\n".join(lines) + "\n")
    except OSError as error:
        raise errors.environment(f"cannot write {file}", evidence=[str(error.strerror)], fix=lines) from None
    output.say(f"written: {file}")
