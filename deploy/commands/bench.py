"""`kdeploy bench`: measure a deployment or any OpenAI-compatible server; list, show and compare what was measured."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from deploy import __version__, errors
from deploy.commands import options
from deploy.console import output

if TYPE_CHECKING:
    from deploy.measure.bench import Wanted
    from deploy.measure.server import Server
    from deploy.store.deployments import Deployment

MOST_STREAMS = 100_000


class Bench(click.Group):
    """`bench NAME` measures; `bench list`, `show` and `compare` read. `bench run list` measures one of that name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Without one of the other words first, everything is `run`."""
        if not args or args[0] not in self.commands:
            args = ["run", *args]
        return super().parse_args(ctx, args)


class Levels(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """1,2,4"""

    name = "levels"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Positive whole numbers, comma separated."""
        try:
            levels = tuple(int(word) for word in str(value).split(","))
        except ValueError:
            levels = ()
        if not levels or any(not 1 <= level <= MOST_STREAMS for level in levels):
            self.fail(f"{value!r}: whole numbers from 1 to {MOST_STREAMS}, comma separated, such as 1,2,4", param, ctx)
        return tuple(dict.fromkeys(levels))


@click.group(cls=Bench)
def command() -> None:
    """Measure a deployment, or any OpenAI-compatible server."""


def _run_options(function: Callable[..., None]) -> Callable[..., None]:
    positive = click.IntRange(min=1)
    for decorate in reversed(
        (
            click.argument("name", required=False),
            click.option("--url", metavar="U", help="Measure the server there instead of a deployment."),
            click.option("--name", "called", metavar="N", help="With --url: the name to store it under."),
            click.option("--model", metavar="M", help="The served name to ask for (default: the first)."),
            click.option("--api-key", metavar="REF", help="A reference: '${env:NAME}' or '${file:/path}'."),
            click.option("--concurrency", type=Levels(), help="Levels of the sweep (default: 1,2,4 … while it grows)."),
            click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Open loop: requests a second."),
            click.option("--requests", type=positive, help="Requests of each level (default: twice the concurrency)."),
            click.option("--input-tokens", type=positive, help="Length of the prompts (default: 512)."),
            click.option("--output-tokens", type=click.IntRange(min=2), help="Length of the answers (default: 512)."),
            click.option("--runs", type=positive, default=3, show_default=True, help="Runs of each prompt."),
            click.option("--single", is_flag=True, help="No sweep."),
            click.option("--repeat-prompts", is_flag=True, help="Let the prefix cache help: ask the same again."),
            click.option("--clean-wait", type=float, default=60.0, help="Wait so long for an idle engine (s)."),
            click.option("--metric", type=click.Choice(["raw", "visible"]), help="Judge the target in this metric."),
            click.option("--target", type=click.FloatRange(min=0, min_open=True), help="The wanted tok/s."),
            click.option("--plot", metavar="PNG", type=click.Path(dir_okay=False), help="The plots as PNG, too."),
            options.as_json,
        )
    ):
        function = decorate(function)
    return function


@command.command("run")
@_run_options
def run(name: str | None, url: str | None, as_json: bool, **chosen: Any) -> None:
    """Measure deployment NAME (without NAME: the only one), or --url.

    Single stream, a cross-check without streaming, and a sweep of concurrencies. Also: bench list, bench show
    NAME[/ID], bench compare A B.
    """
    if url and name:
        raise errors.usage("a deployment or --url, not both", fix=[f"kdeploy bench --url {url}"])
    if chosen["called"] and not url:
        raise errors.usage("--name belongs to --url: a deployment has its own name")
    plot = chosen["plot"]
    if plot:
        _plotting()
    document = _of_url(url, chosen) if url else _of_deployment(name, chosen)
    from deploy.measure.report import page
    from deploy.store import benches

    try:
        kept = benches.keep(document["name"], document, page(document))
        document["id"] = f"{kept.name}/{kept.id}"
        output.say(f"stored as {document['id']}; plots: {kept.page}")
    except errors.KdeployError as error:
        # the figures are worth more than the file: they are shown, and the exit code tells
        _told(document, as_json)
        output.error(error)
        raise click.exceptions.Exit(error.code) from None
    if plot:
        _plotting()(document, plot)
    _told(document, as_json)


def _told(document: dict[str, Any], as_json: bool) -> None:
    from deploy.console import measurement

    if as_json:
        output.document(document)
        return
    for line in measurement.lines(document):
        output.data(line)


def _plotting() -> Callable[[dict[str, Any], str], None]:
    try:
        from deploy.measure.plot import png
    except ImportError as error:
        raise errors.environment(
            "--plot needs matplotlib", evidence=[str(error)], fix=["pip install 'kdeploy[plot]'"]
        ) from None
    return png


def _of_url(url: str, chosen: dict[str, Any]) -> dict[str, Any]:
    from deploy.measure.server import Server
    from deploy.store.launches import check_name

    server = Server(url, key_of(chosen["api_key"]))
    name = check_name(chosen["called"] or f"{server.host.replace(':', '.')}-{server.port}")
    model, longest = server.model(chosen["model"])
    target = {"metric": chosen["metric"] or "visible", "tok_s": chosen["target"]}
    subject: dict[str, Any] = {"url": server.url, "model": model, "engine": {"version": server.version()}}
    driver, gpus = _gpus_here() if server.is_local() else (None, [])
    subject |= {"driver": driver, "gpus": gpus}
    uuids = [gpu["uuid"] for gpu in gpus]
    return _measure(name, server, model, wanted_of(chosen, longest), target, subject, uuids)


def _of_deployment(name: str | None, chosen: dict[str, Any]) -> dict[str, Any]:
    from deploy.commands.choosing import only
    from deploy.lifecycle.states import READY
    from deploy.measure import results
    from deploy.measure.server import Server
    from deploy.store.deployments import url_of

    deployment = only(name, "bench")
    if deployment.state != READY:
        raise errors.not_running(
            f"{deployment.name} is {deployment.state}, not ready",
            fix=[f"kdeploy wait {deployment.name}   waits for it", f"kdeploy status {deployment.name}"],
        )
    plan = deployment.plan
    key = chosen["api_key"] or own_key(plan)
    server = Server(str(url_of(plan)), key_of(key))
    model, longest = server.model(chosen["model"] or (plan.get("served_names") or [None])[0])
    profiled = plan.get("bench", {}).get("target") or {}
    target = {
        "metric": chosen["metric"] or profiled.get("metric"),
        "tok_s": chosen["target"] or profiled.get("tok_s"),
    }
    driver, gpus = _driver(deployment)
    more = {"model": model, "launch": deployment.launch.id, "driver": driver, "gpus": gpus}
    more["running_engine"] = server.version()
    uuids = [gpu["uuid"] for gpu in plan.get("gpus", [])]
    subject = results.subject(plan, more)
    return _measure(deployment.name, server, model, wanted_of(chosen, longest), target, subject, uuids)


def _measure(
    name: str,
    server: "Server",
    model: str,
    wanted: "Wanted",
    target: dict[str, Any],
    subject: dict[str, Any],
    uuids: list[str] | None,
) -> dict[str, Any]:
    from deploy.measure import results
    from deploy.measure.bench import Bench as Measurement

    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    measured = Measurement(server, model, wanted, output.say, uuids).run()
    return results.document(name, measured, target, {**subject, "kdeploy": __version__}, when)


def wanted_of(chosen: dict[str, Any], longest: int | None) -> "Wanted":
    from deploy.measure.bench import Wanted

    wanted = Wanted(
        runs=chosen["runs"],
        concurrency=chosen["concurrency"],
        requests=chosen["requests"],
        rate=chosen["rate"],
        sweep=not chosen["single"],
        repeat_prompts=chosen["repeat_prompts"],
        clean_s=chosen["clean_wait"],
    )
    given = {key: chosen[key] for key in ("input_tokens", "output_tokens") if chosen[key]}
    if longest is not None:
        # lengths that nobody asked for give way to the context
        room = {key: max(2, longest // 4) for key in ("input_tokens", "output_tokens")}
        given = {key: given.get(key, min(getattr(wanted, key), room[key])) for key in room}
        if sum(given.values()) + 64 > longest:
            raise errors.usage(
                f"{given['input_tokens']} tokens in and {given['output_tokens']} out do not fit the context",
                evidence=[f"max_model_len {longest}, and the chat template takes some of it"],
                fix=["a smaller --input-tokens or --output-tokens"],
            )
    return wanted._replace(**given)


def own_key(plan: dict[str, Any]) -> str | None:
    argv = plan.get("argv", [])
    if "--api-key" in argv[:-1]:
        return str(argv[argv.index("--api-key") + 1])
    key = plan.get("env", {}).get("VLLM_API_KEY")
    return str(key) if key else None


def key_of(reference: str | None) -> str | None:
    if reference is None:
        return None
    from deploy.plan.references import Unresolved, references
    from deploy.supervise.spawn import resolved

    if not references(reference):
        raise errors.usage(
            "--api-key takes a reference, so that the key stands in no argument list", fix=["--api-key '${env:NAME}'"]
        )
    try:
        return resolved(reference)
    except Unresolved as error:
        raise errors.environment("the API key cannot be read", evidence=[str(error)]) from None


def _gpus_here() -> tuple[str | None, list[dict[str, Any]]]:
    """Driver, and every GPU of this machine: which of them a foreign server uses is not known."""
    from deploy.host.gpus import NoGpus, read_machine

    try:
        found = read_machine()
    except NoGpus:
        return None, []
    return found.driver, [{"index": gpu.number, "uuid": gpu.uuid, "name": gpu.name} for gpu in found.gpus]


def _driver(deployment: "Deployment") -> tuple[str | None, list[dict[str, Any]]]:
    """Driver, and the deployment's GPUs by name."""
    own = deployment.plan.get("gpus", [])
    if not own:
        return None, []
    from deploy.host.gpus import NoGpus, read_machine

    try:
        found = read_machine()
    except NoGpus:
        return None, own
    names = {gpu.uuid: gpu.name for gpu in found.gpus}
    return found.driver, [{**gpu, "name": names.get(gpu["uuid"])} for gpu in own]


@command.command("list")
@click.argument("name", required=False)
@options.as_json
def listing(name: str | None, as_json: bool) -> None:
    """What was measured, oldest first."""
    from deploy.console.measurement import number
    from deploy.store import benches

    found = [(one, benches.read(one)) for one in benches.stored(name)]
    if as_json:
        keys = ("id", "name", "measured_at", "target", "single")
        output.document({"schema": 1, "measurements": [{key: doc.get(key) for key in keys} for _, doc in found]})
        return
    if not found:
        output.say("nothing is measured yet; kdeploy bench NAME does it")
        return
    rows = [("ID", "RAW TOK/S", "VISIBLE", "TARGET", "BEST LEVEL")]
    for one, document in found:
        best = max(document["sweep"], key=lambda level: level["raw_tok_s"] or 0, default=None)
        word = {True: "met", False: "missed", None: "-"}[document["target"]["met"]]
        level = "-" if best is None else f"{number(best['raw_tok_s'])} tok/s at {best['concurrency']}"
        single = document["single"]
        rows.append((f"{one.name}/{one.id}", number(single["raw_tok_s"]), number(single["visible_tok_s"]), word, level))
    output.table(rows)


@command.command("show")
@click.argument("which", metavar="NAME[/ID]")
@options.as_json
def show(which: str, as_json: bool) -> None:
    """One measurement (of NAME: the newest)."""
    from deploy.console import measurement
    from deploy.store import benches

    one = benches.find(which)
    document = benches.read(one)
    if as_json:
        output.document(document)
        return
    for line in measurement.lines(document):
        output.data(line)
    output.say(f"plots: {one.page}")


@command.command("compare")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--margin", type=click.FloatRange(0, 1), default=0.03, show_default=True, help="What counts as equal.")
@options.as_json
def comparing(a: str, b: str, margin: float, as_json: bool) -> None:
    """What B is against A: better, worse, practically equal, or undecided. NAME means its newest measurement."""
    from deploy.console import measurement
    from deploy.measure import results
    from deploy.store import benches

    found = results.compare(benches.read(benches.find(a)), benches.read(benches.find(b)), margin)
    if as_json:
        output.document(found)
        return
    for line in measurement.comparison(found):
        output.data(line)
