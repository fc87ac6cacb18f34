"""`kdeploy ps`: every deployment, one row each."""

import click

from deploy.commands import options
from deploy.commands.overview import overview


@click.command()
@options.as_json
def command(as_json: bool) -> None:
    """Every deployment, one row each."""
    overview(as_json=as_json)
