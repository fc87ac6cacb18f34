"""`kdeploy gpus`: the GPUs of this machine, who holds their memory, their leases, and how they hang together."""

import shutil
from typing import Any

import click

from deploy.commands import options
from deploy.console import output
from deploy.console.gpu_table import WIDTH, lines
from deploy.homes import lease_dir
from deploy.host.gpus import REMEDIES, Inventory, NoGpus, read_machine
from deploy.host.sysroot import sysroot
from deploy.host.topology import Place, groups, levels_between, read_place
from deploy.store.gpu_holders import held_gpus

# Told of every GPU, None where it cannot be.
DETAILS = (
    "utilization_percent",
    "temperature_c",
    "power_w",
    "power_cap_w",
    "power_default_w",
    "power_max_w",
    "sm_clock_mhz",
    "sm_clock_max_mhz",
    "memory_clock_mhz",
    "memory_clock_max_mhz",
    "pcie_gen",
    "pcie_gen_max",
    "pcie_width",
    "pcie_width_max",
    "pcie_replays",
    "bar1_total_mib",
    "bar1_used_mib",
    "persistence",
    "ecc",
    "ecc_uncorrected",
)


@click.command()
@options.as_json
def command(as_json: bool) -> None:
    """The GPUs of this machine, who holds them, their leases, and their topology."""
    try:
        found = read_machine()
    except NoGpus as error:
        raise error.as_error() from None
    document = described(found)
    if as_json:
        output.document(document)
        return
    if not found.gpus:
        output.say("the driver is here, and lists no GPU (a container that was given none?)")
        return
    width = shutil.get_terminal_size().columns if output.is_terminal() else WIDTH
    for line in lines(document, width):
        output.data(line)
    for kind in sorted({gpu.problem["kind"] for gpu in found.gpus if gpu.problem}):
        output.say(f"  -> {REMEDIES[kind]}")


def described(found: Inventory) -> dict[str, Any]:
    """The whole answer as JSON has it."""
    files = sysroot()
    places = {gpu.number: read_place(gpu.pci, files) for gpu in found.gpus if gpu.pci}
    levels = levels_between(places, {pair: level for pair, (level, _) in found.pairs.items()})
    held = held_gpus(found.gpus)
    return {
        "schema": 1,
        "driver": found.driver,
        "cuda": found.cuda,
        "nvml": found.nvml,
        "lease_folder": lease_dir(),
        "gpus": [
            {
                "index": gpu.number,
                "uuid": gpu.uuid,
                "name": gpu.name,
                "capability": gpu.capability,
                "memory_total_mib": gpu.total_mib,
                "memory_used_mib": gpu.used_mib,
                "memory_free_mib": gpu.free_mib,
                "problem": gpu.problem,
                **{key: gpu.get(key) for key in DETAILS},
                "mig": gpu.mig,
                "mig_devices": list(gpu.mig_devices),
                "place": _place(places.get(gpu.number)),
                **holding,
            }
            for gpu, holding in zip(found.gpus, held, strict=True)
        ],
        "pairs": [
            {"a": a, "b": b, "level": level, "p2p": found.pairs.get((a, b), (None, None))[1]}
            for (a, b), level in levels.items()
        ],
        "topology": [group.to_json() for group in groups(sorted(places), levels, places)],
    }


def _place(place: Place | None) -> dict[str, Any] | None:
    if place is None:
        return None
    return {"address": place.address, "root": place.root, "bridges": list(place.bridges), "numa": place.numa}
