"""Reading a host and a profile into a `Subject`. Reads only; nothing here decides."""

import json
import os
import shutil
import stat
import subprocess
import time
from pathlib import Path

from deploy.checkpoint.weights import read_weights
from deploy.doctor.finding import FAIL, OK, UNKNOWN, WARN, EngineFacts, Finding, Space, Subject, Wanted
from deploy.engine.installations import Engine, check_version, find
from deploy.errors import KdeployError
from deploy.homes import SHARED_LEASES, cache_dir, lease_dir, state_dir
from deploy.host import kernel_log
from deploy.host.gpus import Inventory, NoGpus, read_machine
from deploy.host.holders import describe
from deploy.host.sysroot import Sysroot, sysroot
from deploy.host.topology import Place, read_place, short_address
from deploy.plan.fit_inputs import known_model
from deploy.plan.gather import hub_cache, model_on_disk, refuse_taken_port
from deploy.plan.launch_plan import LaunchPlan
from deploy.profile.catalogue import Resolved
from deploy.store.deployments import Deployment, observe_all
from deploy.store.gpu_holders import our_processes

PROBE = Path(__file__).resolve().parent / "engine_probe.py"
PROBE_LIMIT_S = 120.0
NVIDIA = "0x10de"


def gather(resolved: Resolved | None, plan: LaunchPlan | None = None) -> Subject:
    """The host, and what the profile asks of it.

    Args:
        resolved: the profile; None examines the host alone.
        plan: the profile's plan as it would be, for port and address.
    """
    files = sysroot()
    wanted = None if resolved is None else _wanted(resolved, plan)
    inventory, no_gpus = _nvml(wanted)
    return Subject(
        files=files,
        inventory=inventory,
        no_gpus=no_gpus,
        places=_places(files, inventory),
        wanted=wanted,
        space=_space(files, wanted),
        lease_folder=_lease_folder(),
        wall=time.time() if files.live else None,
        newest_file=os.stat(__file__).st_mtime,
        kernel_log=_kernel_log(files),
        holders=_strangers(inventory),
    )


def _nvml(wanted: Wanted | None) -> tuple[Inventory | None, NoGpus | None]:
    if wanted is not None and not wanted.gpus:
        return None, None
    try:
        return read_machine(), None
    except NoGpus as error:
        return None, error


def _places(files: Sysroot, inventory: Inventory | None) -> list[Place]:
    """NVML's GPUs and those that /sys shows, in bus order; display functions of class 03 by NVIDIA."""
    folder = "/sys/bus/pci/devices"
    addresses = {short_address(gpu.pci) for gpu in (inventory.gpus if inventory else ()) if gpu.pci}
    for address in files.names(folder):
        if (
            files.text(f"{folder}/{address}/vendor") == NVIDIA
            and (files.number(f"{folder}/{address}/class") or 0) >> 16 == 0x03
        ):
            addresses.add(address)
    return [read_place(address, files) for address in sorted(addresses)]


def _space(files: Sysroot, wanted: Wanted | None) -> dict[str, Space]:
    if not files.live:
        return {}
    paths = ["/dev/shm", state_dir(), cache_dir(), *([wanted.folder] if wanted and wanted.folder else [])]
    found = {}
    for path in paths:
        if (space := _space_at(path)) is not None:
            found[path] = space
    return found


def _space_at(path: str) -> Space | None:
    path = os.path.abspath(path)
    while not os.path.isdir(path):  # not made yet: the file system it would be made on
        path = os.path.dirname(path)
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None
    return Space(usage.total, usage.free)


def _kernel_log(files: Sysroot) -> list[str] | None:
    found = kernel_log.read(files.path("/dev/kmsg"))
    return None if found is None else [record.text for record in found]


def _lease_folder() -> Finding:
    folder = lease_dir()
    shared = ["install -d -m 1777 /run/lock/kdeploy", "or export KDEPLOY_LEASE_DIR=/a/folder for every user"]
    try:
        mode = stat.S_IMODE(os.stat(folder).st_mode)
    except OSError:
        parent = os.path.dirname(folder)
        if os.path.isdir(parent) and not os.access(parent, os.W_OK):
            return Finding(FAIL, f"{folder} cannot be made", [f"{parent}: not writable"], shared)
        if folder == SHARED_LEASES:
            return Finding(OK, f"{folder}, made for all by the first launch")
        return Finding(WARN, f"{folder} is not there yet, and would be this user's alone", [], shared)
    if not os.access(folder, os.W_OK):
        return Finding(FAIL, f"{folder} cannot be written", [f"{folder}: mode {mode:04o}"], shared)
    if mode & 0o002:
        return Finding(OK, folder, [f"{folder}: mode {mode:04o}"])
    return Finding(WARN, f"{folder} is this user's alone", [f"{folder}: mode {mode:04o}"], shared)


def _strangers(inventory: Inventory | None) -> list[str]:
    """Processes on GPUs that no deployment of ours knows."""
    if inventory is None:
        return []
    ours = our_processes(observe_all())
    found = []
    for gpu in inventory.gpus:
        for entry in gpu.processes or ():
            if (gpu.uuid, entry["pid"]) not in ours:
                facts = describe(entry["pid"])
                who = f"{facts['user']}: {facts['command']}" if facts["visible"] else "not visible here"
                size = "" if entry["mib"] is None else f" {entry['mib']} MiB"
                found.append(f"GPU {gpu.number}: pid {entry['pid']}{size}  {who}"[:160])
    return found


# ---------------------------------------------------------------------- the profile


def _wanted(resolved: Resolved, plan: LaunchPlan | None) -> Wanted:
    profile = resolved.profile
    split = profile.parallel
    folder = model_on_disk(resolved)
    size, checkpoint = _checkpoint(resolved, folder)
    engine, finding = _engine(profile.engine.executable, profile.engine.version)
    return Wanted(
        profile=resolved.name,
        gpus=profile.gpus,
        ranks=split.tensor * split.pipeline * split.data,
        capability=profile.hardware.capability,
        memory_gib=profile.hardware.memory_gib,
        env=profile.env,
        folder=folder,
        checkpoint_bytes=size,
        checkpoint=checkpoint,
        engine=_engine_facts(engine) if engine is not None else None,
        engine_finding=finding,
        port=None if plan is None else _port(plan, observe_all()),
    )


def _as_finding(status: str, error: KdeployError) -> Finding:
    return Finding(status, error.what, error.evidence, error.fix)


def _checkpoint(resolved: Resolved, folder: str | None) -> tuple[int | None, Finding]:
    """Bytes of the weights, where they are known, and whether they are on disk as they should be."""
    facts = known_model(resolved, tensors=False).facts
    known = facts.weight_bytes if facts is not None else None
    if folder is None or (not os.path.isdir(folder) and resolved.profile.model.path is None):
        return known, _to_be_fetched(resolved, known)
    try:
        files = read_weights(folder)
    except KdeployError as error:
        return known, _as_finding(FAIL, error)
    size = sum(file.size for file in files)
    if not size:
        return known, Finding(UNKNOWN, "no safetensors files; other formats are not looked into", [folder])
    told = f"{len(files)} weight files, {size / 1e9:.1f} GB; every header reads, and every size fits its header"
    return size, Finding(OK, told, [folder])


def _to_be_fetched(resolved: Resolved, size: int | None) -> Finding:
    """A model that only the hub has: is there room for it?"""
    name = resolved.profile.model.id or "the model"
    cache = hub_cache(resolved.profile.env)
    space = _space_at(cache)
    told = [] if size is None else [f"about {size / 1e9:.0f} GB"]
    told += [f"{cache}: {space.free / 1e9:.0f} GB free"] if space else []
    if size is not None and space is not None and space.free < size:
        fix = ["make room, or name another cache: HF_HUB_CACHE under env: of the profile"]
        return Finding(FAIL, f"{name} is not on disk, and does not fit on it", told, fix)
    fix = ["hf download fetches it before the start, where it can be watched", "or name a folder: model.path"]
    return Finding(UNKNOWN, f"{name} is not on disk; vLLM would fetch it while it starts", told, fix)


def _engine(executable: str, version: str | None) -> tuple[Engine | None, Finding]:
    try:
        engine = find(executable)
        note = check_version(engine, version)
    except KdeployError as error:
        return None, _as_finding(FAIL, error)
    if note is not None:
        return engine, Finding(UNKNOWN, note, [f"engine.executable: {executable}"])
    evidence = [f"asked: {engine.interpreter or engine.start[0]}"]
    return engine, Finding(OK, f"vLLM {engine.version or 'of unknown version'} ({engine.name})", evidence)


def _engine_facts(engine: Engine) -> EngineFacts:
    if engine.interpreter is None:
        return EngineFacts(engine.version, problem=engine.why_unknown or "its interpreter cannot be told")
    try:
        result = subprocess.run(
            [engine.interpreter, "-c", PROBE.read_text()],
            env={**os.environ, **engine.env},
            capture_output=True,
            timeout=PROBE_LIMIT_S,
            check=False,
            cwd="/",
        )
        told = json.loads(result.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return EngineFacts(engine.version, problem=f"{engine.interpreter} did not answer in {PROBE_LIMIT_S:g} s")
    except (OSError, ValueError, IndexError):
        return EngineFacts(engine.version, problem=f"{engine.interpreter} gave no answer")
    return EngineFacts(
        vllm=told.get("vllm"),
        torch=told.get("torch"),
        cuda=told.get("cuda"),
        nccl=told.get("nccl"),
        architectures=tuple(told.get("architectures") or ()),
        problem=told.get("problem"),
    )


def _port(plan: LaunchPlan, deployments: list[Deployment]) -> Finding:
    """Whether the plan's port is free, also of deployments that do not listen yet; its own deployment may have it."""
    own = next((entry for entry in deployments if entry.name == plan.name and entry.active), None)
    if own is not None and own.plan.get("port") == plan.port:
        return Finding(OK, f"{plan.port} is held by {own.name} itself, which is {own.state}")
    others = [(entry.name, int(entry.plan.get("port", 0))) for entry in deployments if entry.active]
    try:
        refuse_taken_port(plan, others)
    except KdeployError as error:
        return _as_finding(FAIL, error)
    return Finding(OK, f"{plan.host}:{plan.port} is free")
