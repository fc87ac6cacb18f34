"""Options and arguments that several verbs share."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

as_json = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
timeout = click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="S", help="Give up waiting after S seconds (exit 124)."
)


def profiles(function: F) -> F:
    """`--profiles DIR` after the verb, too."""
    return click.option("--profiles", multiple=True, metavar="DIR", help="Search this folder for profiles first.")(
        function
    )


def wish(function: F) -> F:
    """What a launch is asked to be: PROFILE, --name, --set, --port, --gpus and the verbatim tail."""
    return _wish(function, required=True)


def optional_wish(function: F) -> F:
    """The same for a verb that also does something without a PROFILE."""
    return _wish(function, required=False)


def _wish(function: F, *, required: bool) -> F:
    for decorate in (
        click.argument("extra", nargs=-1, type=click.UNPROCESSED, metavar="[-- EXTRA...]"),
        click.argument("profile", required=required),
        click.option("--name", metavar="N", help="Name of the deployment (default: the profile's)."),
        click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override one key: --set serve.port=1."),
        click.option("--port", type=click.IntRange(1, 65535), help="Port to serve on."),
        click.option("--gpus", metavar="LIST", help="GPUs by index or UUID, comma separated."),
        profiles,
    ):
        function = decorate(function)
    return function
