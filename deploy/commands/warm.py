"""`kdeploy warm PROFILE`: read the weights into the page cache, start nothing."""

import os
import time
from typing import Any

import click

from deploy import errors
from deploy.commands import options
from deploy.console import output
from deploy.console.words import duration, size
from deploy.errors import environment
from deploy.plan.gather import Wish, local_weights, resolve
from deploy.profile.catalogue import standard
from deploy.warm.client import reports, start_warm

LINE_S = 5.0
LOOK_S = 0.5


@click.command()
@click.argument("profile")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override one key: --set model.path=/path.")
@click.option("--limit-gb", type=click.FloatRange(min=0, min_open=True), metavar="GB", help="Read no more than this.")
@click.option("--yield-to", metavar="URL", help="Pause while this address answers slower than before.")
@options.timeout
@options.profiles
@options.as_json
@click.pass_context
def command(
    ctx: click.Context,
    profile: str,
    sets: tuple[str, ...],
    limit_gb: float | None,
    yield_to: str | None,
    timeout: float | None,
    profiles: tuple[str, ...],
    as_json: bool,
) -> int:
    """Read PROFILE's weights into the page cache, in the loader's order, and start nothing."""
    resolved = resolve(standard([*ctx.obj["profiles"], *profiles]), Wish(profile, sets=sets))
    folder, weights = local_weights(resolved)
    files = [(os.path.join(folder, file.name), file.size) for file in weights]
    began = time.monotonic()
    warm = start_warm(files, limit_bytes=None if limit_gb is None else int(limit_gb * 1e9), latency_url=yield_to)
    spoke = began
    deadline = None if timeout is None else began + timeout
    try:
        for report in reports(warm, LOOK_S):
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                output.say(f"stopped after {timeout:g} s: {_words(report)}")
                return errors.TIMED_OUT
            if report and now - spoke >= LINE_S:
                spoke = now
                output.say(_words(report))
    except KeyboardInterrupt:
        output.say(f"stopped: {_words(warm.poll())}")
        return errors.DETACHED
    finally:
        report = warm.poll()
        warm.stop()
    if report.get("state") == "stopped" or not report:
        raise environment(
            "the weights could not be read into memory",
            evidence=[str(report.get("why") or "the reading process ended by itself")],
            fix=["check that file and its disk (dmesg shows I/O errors)"],
        )
    seconds = time.monotonic() - began
    if as_json:
        output.document({"schema": 1, "profile": resolved.name, "seconds": round(seconds, 3), **report})
    else:
        output.data(f"{resolved.name}: {_outcome(report, seconds)}")
    return errors.OK


def _words(report: dict[str, Any]) -> str:
    if not report:
        return "nothing read yet"
    text = f"{size(report['present'])} of {size(report['total'])} in memory"
    if report["state"] == "paused":
        return f"{text}, paused: the other deployment answers slower"
    return f"{text}, {size(report['bytes_per_s'])}/s" if report["bytes_per_s"] else text


def _outcome(report: dict[str, Any], seconds: float) -> str:
    if report["state"] == "resident":
        return f"{size(report['total'])} of weights are in memory already"
    text = f"{size(report['present'])} of {size(report['total'])} of weights in memory"
    rate = f", {size(report['read'] / seconds)}/s" if report["read"] and seconds > 0 else ""
    rest = "" if report["present"] >= report["total"] else "; no more fits beside what runs here"
    return f"{text}, {size(report['read'])} read from disk in {duration(seconds)}{rate}{rest}"
