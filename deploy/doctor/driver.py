"""Checks on driver and GPUs, by what NVML tells."""

import re

from deploy.doctor.finding import FAIL, OK, UNKNOWN, WARN, Finding, Subject
from deploy.host.gpus import REMEDIES, WHAT, GpuState

LOW_CAP_W = 300
XID = re.compile(r"NVRM: Xid \([^)]*\): (\d+)")
HARMLESS = (13, 31, 43, 45)  # faults of a program, not of the GPU: a bad address, a context that was ended
DRIVER_FOR_CUDA_13 = 580
DRIVER_CUDA_13 = "the driver of 580 or newer (CUDA 13)"


def driver(subject: Subject) -> Finding | None:
    """Does the driver answer, and are all GPUs there?"""
    if subject.wanted is not None and not subject.wanted.gpus:
        return None
    if subject.no_gpus is not None:
        kind = subject.no_gpus.kind
        absent = kind in ("library-missing", "driver-not-loaded") and not subject.places and subject.wanted is None
        summary = WHAT.get(kind, "NVML fails") + ("; enough for a CPU engine" if absent else "")
        return Finding(WARN if absent else FAIL, summary, [f"NVML: {subject.no_gpus}"], [REMEDIES.get(kind, "")])
    if subject.inventory is None:
        return None
    gpus = subject.inventory.gpus
    lost = [f"GPU {gpu.number}: {gpu.problem['text']}" for gpu in gpus if gpu.problem]
    if lost:
        return Finding(FAIL, f"{len(lost)} of {len(gpus)} GPUs do not answer", lost, [REMEDIES["gpu-lost"]])
    unseen = len(subject.places) - len(gpus)
    told = f"driver {subject.inventory.driver}, CUDA {subject.inventory.cuda}, {len(gpus)} GPUs"
    if unseen > 0:
        evidence = [f"/sys shows {len(subject.places)} NVIDIA GPUs, NVML {len(gpus)}"]
        return Finding(WARN, f"{told}; {unseen} are not given to this user or container", evidence, ["--gpus all"])
    wanted = subject.wanted
    if wanted is not None and len(gpus) < wanted.gpus:
        fix = ["--set parallel.tensor=N, with a model that fits N GPUs"]
        return Finding(FAIL, f"{len(gpus)} GPUs, and the profile needs {wanted.gpus}", [told], fix)
    return Finding(OK, told)


def driver_for_engine(subject: Subject) -> Finding | None:
    """Can the driver run what the engine was built with?"""
    inventory = subject.inventory
    if inventory is None or inventory.driver is None:
        return None
    wanted = subject.wanted.engine if subject.wanted else None
    upgrade = ["install a newer driver; in a container a cuda-compat package can bridge one major version"]
    if wanted is not None and wanted.cuda and inventory.cuda:
        evidence = [f"driver {inventory.driver}: CUDA {inventory.cuda}", f"torch {wanted.torch}: CUDA {wanted.cuda}"]
        if int(inventory.cuda.split(".")[0]) < int(wanted.cuda.split(".")[0]):
            return Finding(
                FAIL, f"the engine was built for CUDA {wanted.cuda}, which the driver is too old for", evidence, upgrade
            )
        return Finding(OK, f"driver CUDA {inventory.cuda}, engine CUDA {wanted.cuda}", evidence)
    if wanted is not None:
        return None
    major = inventory.driver.split(".")[0]
    if major.isdigit() and int(major) < DRIVER_FOR_CUDA_13:
        summary = f"{inventory.driver} is too old for the CUDA 13 builds of vLLM"
        return Finding(WARN, summary, [f"NVML: driver {inventory.driver}"], [f"install {DRIVER_CUDA_13}"])
    return Finding(OK, f"{inventory.driver} runs CUDA 13 builds")


def architecture(subject: Subject) -> Finding | None:
    """Has the engine's torch code for these GPUs?"""
    wanted = subject.wanted
    if wanted is None or wanted.engine is None or not wanted.gpus:
        return None
    engine = wanted.engine
    if engine.problem:
        return Finding(UNKNOWN, "torch could not be asked", [engine.problem])
    if engine.cuda is None:
        fix = ["kdeploy engine install 0.33.0, and name it under engine.executable"]
        return Finding(FAIL, "the engine is a CPU build", [f"torch {engine.torch}: no CUDA"], fix)
    capabilities = {gpu.capability for gpu in _usable(subject)} or {wanted.capability}
    missing = [text for text in capabilities if text and not runs_on(text, engine.architectures)]
    evidence = [f"torch {engine.torch}: {' '.join(engine.architectures)}"]
    if missing:
        fix = ["install a build for it: kdeploy engine install 0.33.0"]
        return Finding(FAIL, f"no code for capability {', '.join(sorted(missing))}", evidence, fix)
    return Finding(OK, f"torch has code for capability {', '.join(sorted(filter(None, capabilities)))}", evidence)


def runs_on(capability: str, architectures: tuple[str, ...]) -> bool:
    """Whether a GPU runs code for one of these: sm_XY on the same major, compute_XY on everything newer."""
    major, minor = (int(part) for part in capability.split("."))
    for entry in architectures:
        kind, _, digits = entry.partition("_")
        digits = digits.rstrip("af")
        if not digits.isdigit() or len(digits) < 2:
            continue
        had = (int(digits[:-1]), int(digits[-1]))
        if kind == "sm" and had[0] == major and had[1] <= minor:
            return True
        if kind == "compute" and had <= (major, minor):
            return True
    return False


def kind(subject: Subject) -> Finding | None:
    """Are the GPUs of the kind that the profile was made for, and all alike?"""
    gpus = _usable(subject)
    if not gpus:
        return None
    kinds = sorted({f"{gpu.name}, capability {gpu.capability}, {gpu.total_mib} MiB" for gpu in gpus})
    wanted = subject.wanted
    if wanted is not None and wanted.capability:
        good = [gpu for gpu in gpus if gpu.capability in (None, wanted.capability)]
        if len(good) < wanted.gpus:
            summary = f"{len(good)} of {len(gpus)} have capability {wanted.capability}, and {wanted.gpus} are needed"
            return Finding(
                FAIL, summary, kinds, [f"--set hardware.capability={gpus[0].capability} to try it all the same"]
            )
    if wanted is not None and wanted.memory_gib:
        small = [gpu for gpu in gpus if gpu.total_mib is not None and gpu.total_mib < wanted.memory_gib * 1024]
        if len(gpus) - len(small) < wanted.gpus:
            summary = f"{len(small)} have less than the {wanted.memory_gib:g} GiB that the profile wants"
            return Finding(FAIL, summary, kinds, [f"kdeploy fit {wanted.profile} shows what would fit"])
    if len(kinds) > 1:
        return Finding(
            WARN, f"{len(kinds)} kinds of GPU: the slowest and smallest decides", kinds, ["--gpus LIST, of one kind"]
        )
    return Finding(OK, f"{len(gpus)} x {kinds[0]}")


def _usable(subject: Subject) -> list[GpuState]:
    return [gpu for gpu in subject.inventory.gpus if not gpu.problem] if subject.inventory else []


def persistence(subject: Subject) -> Finding | None:
    """Does the driver keep the GPUs awake?"""
    gpus = _usable(subject)
    told = [gpu for gpu in gpus if gpu.get("persistence") is not None]
    off = [gpu for gpu in told if not gpu.get("persistence")]
    if not gpus:
        return None
    if off:
        evidence = [f"NVML: persistence mode off on GPU {', '.join(str(gpu.number) for gpu in off)}"]
        return Finding(WARN, f"off on {len(off)} GPUs", evidence, ["systemctl enable --now nvidia-persistenced"])
    return Finding(OK, "on") if told else Finding(UNKNOWN, "not told here")


def power(subject: Subject) -> Finding | None:
    """Is a GPU throttled by a low power cap?"""
    gpus = _usable(subject)
    caps = {gpu.number: gpu.get("power_cap_w") for gpu in gpus if gpu.get("power_cap_w") is not None}
    if not gpus:
        return None
    if not caps:
        return Finding(UNKNOWN, "not told here")
    evidence = [f"NVML: GPU {number} {cap} W" for number, cap in caps.items()]
    if min(caps.values()) < LOW_CAP_W:
        fix = ["nvidia-smi -i GPU -pl 600 (Max-Q and Workstation boards: their own maximum)"]
        return Finding(WARN, f"the lowest is {min(caps.values())} W", evidence, fix)
    if len(set(caps.values())) > 1:
        fix = ["one cap for all: nvidia-smi -pl WATTS"]
        return Finding(WARN, "not the same on all GPUs: the slowest rank decides", evidence, fix)
    return Finding(OK, f"{min(caps.values())} W each")


def idle(subject: Subject) -> Finding | None:
    """Do others hold memory on the GPUs?"""
    if subject.inventory is None or not subject.inventory.gpus:
        return None
    if subject.holders:
        fix = ["kdeploy gpus tells more; end what is left over, or choose others: --gpus LIST"]
        return Finding(
            WARN, f"{len(subject.holders)} processes that are not kdeploy's hold memory", subject.holders[:8], fix
        )
    return Finding(OK, "nobody but our deployments")


def xid(subject: Subject) -> Finding | None:
    """Has the driver reported faults since the boot?"""
    if not subject.gpu_count:
        return None
    if subject.kernel_log is None:
        fix = ["sudo kdeploy doctor", "or: sudo dmesg | grep Xid"]
        return Finding(UNKNOWN, "this user may not read the kernel's log", ["/dev/kmsg"], fix)
    found = [line[:160] for line in subject.kernel_log if (match := XID.search(line)) and int(match[1]) not in HARMLESS]
    if found:
        fix = ["the number tells the kind (NVIDIA's Xid catalogue); 79 is a GPU off the bus: reset, reseat, or reboot"]
        return Finding(FAIL, f"{len(found)} reported", found[-6:], fix)
    return Finding(OK, "none")


def memory_errors(subject: Subject) -> Finding | None:
    """Has a GPU counted memory errors that it could not correct?"""
    gpus = [gpu for gpu in _usable(subject) if gpu.get("ecc_uncorrected") is not None]
    if not gpus:
        return None
    bad = [f"NVML: GPU {gpu.number} {gpu.get('ecc_uncorrected')}" for gpu in gpus if gpu.get("ecc_uncorrected")]
    if bad:
        return Finding(
            FAIL,
            "uncorrected errors since the driver was loaded",
            bad,
            ["reset the GPU; if they come back, replace it"],
        )
    return Finding(OK, "none")
