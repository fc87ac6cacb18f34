"""`kdeploy clean`: what dead launches have left: processes, shared memory, leases, old launch folders."""

import os
import shutil
import stat
from typing import Any

import click

from deploy import errors
from deploy.commands import options
from deploy.commands.following import let_go
from deploy.console import output
from deploy.homes import lease_dir
from deploy.store import leases
from deploy.store.deployments import Deployment, observe, observe_all
from deploy.store.launches import Launch, launches, lock_path
from deploy.store.locks import is_held, try_lock
from deploy.supervise.client import ensure_supervised


@click.command()
@click.option(
    "--keep",
    type=click.IntRange(min=2),
    default=5,
    show_default=True,
    metavar="N",
    help="Launches of each deployment whose logs and journals stay.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be removed; remove nothing.")
@options.as_json
def command(keep: int, dry_run: bool, as_json: bool) -> int:
    """Remove what dead launches have left behind. What runs is never touched."""
    everything = observe_all()
    found: dict[str, Any] = {
        "schema": 1,
        "dry_run": dry_run,
        "deployments": [_put_in_order(entry, dry_run=dry_run) for entry in everything if _is_dead(entry)],
        "leases": _stale_leases(dry_run=dry_run),
        "launches": [folder for entry in everything for folder in _old_launches(entry, keep, dry_run=dry_run)],
    }
    if as_json:
        output.document(found)
    else:
        _tell(found, dry_run=dry_run)
    left = [entry["name"] for entry in found["deployments"] if entry["left"]]
    return errors.TEARDOWN_INCOMPLETE if left else errors.OK


def _is_dead(deployment: Deployment) -> bool:
    """Whether its supervisor and its engine's first process are gone and nobody has put it in order."""
    if os.stat(deployment.launch.folder).st_uid != os.geteuid():
        return False
    return (deployment.orphaned and not deployment.engine_alive) or (
        deployment.observed.incomplete and not deployment.supervised
    )


def _put_in_order(deployment: Deployment, *, dry_run: bool) -> dict[str, Any]:
    """A supervisor takes a dead launch over, ends what is left of it and removes its files."""
    observed = deployment.observed
    there = [path for path in sorted(observed.files) if os.path.exists(path)]
    if not dry_run:
        ensure_supervised(deployment)
        let_go(deployment.name)
        fresh = observe(deployment.name)
        assert fresh is not None
        observed = fresh.observed
    return {
        "name": deployment.name,
        "launch": deployment.launch.id,
        "files": [path for path in there if dry_run or not os.path.exists(path)],
        "left": (observed.diagnosis or {}).get("summary") if observed.incomplete and not dry_run else None,
    }


def _stale_leases(*, dry_run: bool) -> list[str]:
    """Leases of holders that have died: their names are taken out (the file stays: it is the lock itself)."""
    try:
        uuids = [entry.removesuffix(".lease") for entry in os.listdir(lease_dir()) if entry.endswith(".lease")]
    except OSError:
        return []
    stale = []
    for uuid in sorted(uuids):
        path = leases.lease_path(uuid)
        try:
            if not stat.S_ISREG(os.lstat(path).st_mode) or os.stat(path).st_size == 0 or leases.holder_of(uuid):
                continue
            if not dry_run:
                fd = leases.try_lease(uuid)
                if fd is None:
                    continue
                os.ftruncate(fd, 0)
                os.close(fd)
        except OSError:
            continue  # another user's
        stale.append(path)
    return stale


def _old_launches(deployment: Deployment, keep: int, *, dry_run: bool) -> list[dict[str, Any]]:
    """Folders of all but the newest `keep` launches."""
    old = launches(deployment.name)[:-keep]
    if not old or is_held(lock_path(deployment.name)):
        return []
    lock = None if dry_run else try_lock(lock_path(deployment.name))  # nobody may start one meanwhile
    if lock is None and not dry_run:
        return []
    try:
        return [removed for launch in old if (removed := _remove(launch, dry_run=dry_run)) is not None]
    finally:
        if lock is not None:
            os.close(lock)


def _remove(launch: Launch, *, dry_run: bool) -> dict[str, Any] | None:
    size = sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(launch.folder))
    if not dry_run:
        try:
            shutil.rmtree(launch.folder)
        except OSError as error:
            output.say(f"{launch.folder} stays: {error.strerror}")
            return None
    return {"deployment": launch.deployment, "launch": launch.id, "bytes": size}


def _tell(found: dict[str, Any], *, dry_run: bool) -> None:
    would = "would be " if dry_run else ""
    for entry in found["deployments"]:
        files = f", {len(entry['files'])} files {would}removed" if entry["files"] else ""
        output.data(f"{entry['name']}: launch {entry['launch']} has died; {would}put in order{files}")
        if entry["left"]:
            output.data(f"  {entry['left']}\n  -> kdeploy status {entry['name']}")
    for path in found["leases"]:
        output.data(f"{path}: its holder has died; {would}released")
    if found["launches"]:
        size = sum(entry["bytes"] for entry in found["launches"])
        names = ", ".join(sorted({entry["deployment"] for entry in found["launches"]}))
        output.data(f"{len(found['launches'])} old launches of {names} {would}removed: {size / 2**20:.1f} MiB")
    if not any(found[key] for key in ("deployments", "leases", "launches")):
        output.data("nothing to clean")
