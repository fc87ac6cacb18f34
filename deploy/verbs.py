"""The table of verbs. A verb's module is imported only when that verb runs."""

import click

from deploy import __version__, errors

# verb -> (module under deploy.commands, one line of help)
VERBS = {
    "up": ("up", "Launch a profile under a supervisor and follow it until it is ready."),
    "wait": ("wait", "Block until a deployment is ready or has failed."),
    "ps": ("ps", "Every deployment, one row each."),
    "status": ("status", "One deployment in full."),
    "watch": ("watch", "Live screen: phase, bytes, rate, ETA, GPUs, last log lines."),
    "logs": ("logs", "The engine's log, or the journal of events."),
    "explain": ("explain", "Diagnose a log from any vLLM run."),
    "down": ("down", "Drain, stop, and prove that it is gone."),
    "restart": ("restart", "Down, then up with the same plan."),
    "swap": ("swap", "Replace what runs; if that fails, bring it back."),
    "render": ("render", "Print what would run."),
    "fit": ("fit", "Memory per GPU, KV tokens, longest context, before anything is loaded."),
    "warm": ("warm", "Read the weights into the page cache, start nothing."),
    "supervise": ("supervise", "The supervisor in the foreground, for systemd."),
    "profile": ("profile", "Profiles: list, show, check, schema, new."),
    "gpus": ("gpus", "The GPUs of this machine, who holds them, and their leases."),
    "doctor": ("doctor", "Examine the host: checks with evidence, reason and remedy."),
    "patch": ("patch", "Patches: which apply here, what a deployment has confirmed."),
    "canary": ("canary", "Ask a deployment questions that must be answered with sense."),
    "report": ("report", "A redacted bundle of one deployment for a bug report."),
    "clean": ("clean", "Leftovers of dead launches: processes, shared memory, leases, old logs."),
    "bench": ("bench", "Measure: single stream, sweep of concurrencies, comparison."),
    "tune": ("tune", "Measured A/B of NCCL and engine settings; the old one is kept where chance may be."),
    "engine": ("engine", "vLLM installations: list, show, install, remove."),
}
ALIASES = {"start": "up", "stop": "down", "switch": "swap", "list": "ps", "log": "logs"}


class Verbs(click.Group):
    """Looks verbs up in the table, so that `--help` and `ps` import nothing they do not use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs in the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a verb or alias."""
        if cmd_name == "ls":
            return _load("profile", "listing")
        verb = ALIASES.get(cmd_name, cmd_name)
        return _load(VERBS[verb][0], "command") if verb in VERBS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest verb for one that does not exist."""
        word = args[0]
        known = {*VERBS, *ALIASES, "ls"}
        if not word.startswith("-") and word not in known:
            import difflib

            close = difflib.get_close_matches(word, known, n=1)
            hint = f"did you mean {close[0]}?" if close else "kdeploy --help lists the verbs"
            raise errors.usage(f"no verb is named {word!r}", fix=[hint])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of verbs for `--help`, without importing them."""
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, text) for verb, (_, text) in VERBS.items()])


def _load(module: str, name: str) -> click.Command:
    import importlib

    command: click.Command = getattr(importlib.import_module(f"deploy.commands.{module}"), name)
    return command


@click.command(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kdeploy")
@click.option("--profiles", multiple=True, metavar="DIR", help="Search this folder for profiles first (repeatable).")
@click.pass_context
def group(ctx: click.Context, profiles: tuple[str, ...]) -> None:
    """Deploy tensor-parallel vLLM: launch a profile, follow its load, keep it healthy, tear it down."""
    ctx.obj = {"profiles": profiles}
