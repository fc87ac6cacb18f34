"""`kdeploy gpus`: the GPUs of this machine, who holds their memory, and their leases."""

from typing import Any

import click

from deploy.commands import options
from deploy.console import output
from deploy.host.gpus import GpuState, NoGpus, inventory
from deploy.host.processes import title
from deploy.store.leases import holder_of


@click.command()
@options.as_json
def command(as_json: bool) -> None:
    """The GPUs of this machine, who holds them, and their leases."""
    try:
        gpus = [_entry(gpu) for gpu in inventory()]
    except NoGpus as error:
        raise error.as_error() from None
    if as_json:
        output.document({"schema": 1, "gpus": gpus})
        return
    rows = [("GPU", "NAME", "USED", "TOTAL", "LEASE", "PROCESSES")]
    rows += [
        (
            str(gpu["index"]),
            str(gpu["name"]),
            _mib(gpu["memory_used_mib"]),
            _mib(gpu["memory_total_mib"]),
            str(gpu["lease"]["deployment"]) if gpu["lease"] else "",
            ", ".join(f"{entry['pid']} {_mib(entry['mib'])}" for entry in gpu["processes"] or []),
        )
        for gpu in gpus
    ]
    output.table(rows)


def _entry(gpu: GpuState) -> dict[str, Any]:
    return {
        "index": gpu.number,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "capability": gpu.capability,
        "memory_total_mib": gpu.total_mib,
        "memory_used_mib": gpu.used_mib,
        "lease": holder_of(gpu.uuid),
        "processes": None
        if gpu.processes is None
        else [{**entry, "command": title(entry["pid"])[:120]} for entry in gpu.processes],
    }


def _mib(value: int | None) -> str:
    return "n/a" if value is None else f"{value} MiB"
