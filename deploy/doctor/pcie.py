"""Checks on the way between GPUs: IOMMU, ACS, links, BAR1, error counters, power saving of links."""

import re
from collections.abc import Iterable

from deploy.doctor.finding import FAIL, OK, UNKNOWN, WARN, Finding, Subject
from deploy.host.sysroot import Sysroot
from deploy.host.topology import Link

DEVICES = "/sys/bus/pci/devices"
ACS = 0x000D
REDIRECTS = {0x0004: "ReqRedir+", 0x0008: "CmpltRedir+"}
P2P_OFF = "until then: extends: [sm120-pcie-p2p-off] in the profile, which goes through host memory (slower)"


def _bridges(subject: Subject) -> list[str]:
    return sorted({bridge for place in subject.places for bridge in place.bridges})


def _cmdline(files: Sysroot) -> str:
    return files.text("/proc/cmdline") or ""


def translated(subject: Subject) -> list[str]:
    """Evidence that the IOMMU translates the GPUs' addresses; empty when it is off or passes them through."""
    files, found = subject.files, []
    cmdline = _cmdline(files)
    for place in subject.places:
        group = files.resolve(f"{DEVICES}/{place.address}/iommu_group")
        if group is None:
            continue
        kind = files.text(f"{group}/type")
        if kind == "identity" or (kind is None and re.search(r"\biommu=pt\b", cmdline)):
            continue
        found.append(f"{group}/type: {kind or 'not told'} (GPU {place.address})")
    return found


def iommu(subject: Subject) -> Finding | None:
    """Does the IOMMU translate between GPUs?"""
    if not subject.peers:
        return None
    files = subject.files
    cmdline = _cmdline(files)
    groups = files.names("/sys/kernel/iommu_groups")
    boot = [f"/proc/cmdline: {word}" for word in cmdline.split() if "iommu" in word]
    if not groups:
        return Finding(OK, "off", [*boot, "/sys/kernel/iommu_groups: empty"])
    if not subject.places:
        return Finding(UNKNOWN, f"{len(groups)} IOMMU groups, and no GPU can be seen in {DEVICES}", boot)
    found = translated(subject)
    if not found:
        return Finding(OK, "passes the GPUs through", [*boot, f"/sys/kernel/iommu_groups: {len(groups)}"])
    if subject.wanted is not None and subject.wanted.env.get("NCCL_P2P_DISABLE") == "1":
        return Finding(OK, "translates, and the profile keeps peer access off", found[:2])
    return Finding(
        WARN,
        f"translates the addresses of {len(found)} GPUs",
        [*(boot or ["/proc/cmdline: no iommu=pt"]), *found[:8]],
        ["boot with iommu=pt (GRUB_CMDLINE_LINUX), or amd_iommu=off / intel_iommu=off", P2P_OFF],
    )


def acs_control(config: bytes) -> int | None:
    """The ACS control register in a PCIe configuration space; -1 when the device has no ACS, None when it is cut off
    (without root the kernel gives the first 64 bytes only)."""
    if len(config) <= 0x100:
        return None
    at = 0x100
    for _ in range(96):
        header = int.from_bytes(config[at : at + 4], "little")
        if header in (0, 0xFFFFFFFF):
            return -1
        if header & 0xFFFF == ACS:
            return int.from_bytes(config[at + 6 : at + 8], "little")
        at = header >> 20
        if at < 0x100:
            return -1
    return -1


def acs(subject: Subject) -> Finding | None:
    """Do bridges between GPUs send peer traffic up to the root?"""
    if not subject.peers or not subject.places:
        return None
    bridges = _bridges(subject)
    if not bridges:
        return Finding(UNKNOWN, "no bridge above the GPUs can be seen (a virtual machine?)", [DEVICES])
    unread, on = [], []
    for bridge in bridges:
        control = acs_control(subject.files.data(f"{DEVICES}/{bridge}/config") or b"")
        if control is None:
            unread.append(bridge)
        elif control > 0 and control & 0x000C:
            flags = " ".join(word for bit, word in REDIRECTS.items() if control & bit)
            on.append((bridge, f"{DEVICES}/{bridge}/config: ACSCtl 0x{control:04x} {flags}"))
    if on:
        deadly = bool(translated(subject))
        consequence = (
            "and the IOMMU translates: the first all-reduce hangs or lies" if deadly else "peer access is slow"
        )
        return Finding(
            FAIL if deadly else WARN,
            f"redirects peer traffic on {len(on)} of {len(bridges)} bridges, {consequence}",
            [line for _, line in on[:8]],
            [
                *(f"setpci -s {bridge} ECAP_ACS+6.w=0000" for bridge, _ in on[:8]),
                "as root, at each boot, on root and switch ports alike; kdeploy doctor --collective shows the effect",
                P2P_OFF,
            ],
        )
    if unread:
        return Finding(
            UNKNOWN,
            f"{len(unread)} of {len(bridges)} bridges cannot be read by this user",
            [f"{DEVICES}/{unread[0]}/config: 64 bytes"],
            ["sudo kdeploy doctor", "or: sudo lspci -vvv | grep -A1 ACSCtl"],
        )
    return Finding(OK, f"redirects nothing on {len(bridges)} bridges", [f"{DEVICES}/{bridges[0]}/config"])


def link(subject: Subject) -> Finding | None:
    """Does every link run as wide and as fast as both its ends can?"""
    if not subject.places or not subject.gpu_count:
        return None
    broken, limited, idle, told = [], [], [], 0
    for place in subject.places:
        # a port tells of the link below it, GPU and switch of the one above: each two are the ends of one link
        lower, upper = place.links[0::2], (*place.links[1::2], Link("", None, None, None, None))
        for end, above in zip(lower, upper, strict=False):
            if end.width is None or end.width_max is None:
                continue
            told += 1
            where = f"{DEVICES}/{end.address}"
            width = min(end.width_max, above.width_max or end.width_max)
            speed = min(end.speed_max or 0, above.speed_max or end.speed_max or 0)
            if end.width < width:
                broken.append(f"{where}/current_link_width: {end.width} of {width}")
            elif end is place.links[0] and width < end.width_max:
                limited.append(f"{where}: the slot has {width} lanes, the GPU {end.width_max}")
            if end is place.links[0] and speed and end.speed_max and speed < end.speed_max:
                limited.append(f"{where}: the slot does {speed:g} GT/s, the GPU {end.speed_max:g}")
            if end.speed and speed and end.speed < speed:
                idle.append(f"{where}/current_link_speed: {end.speed:g} of {speed:g} GT/s")
    if broken:
        fix = ["reseat the card or the riser, clean the contacts, look into the BIOS (bifurcation), then boot again"]
        return Finding(FAIL, f"{len(broken)} of {told} links narrower than both their ends", broken, fix)
    if limited:
        fix = ["use slots that give each GPU all its lanes at its own speed; nothing in software cures this"]
        return Finding(WARN, f"{len(limited)} GPUs are held back by their slots", limited, fix)
    if not told:
        return Finding(UNKNOWN, "link widths are not told here", [DEVICES])
    if idle:
        summary = f"full width; {len(idle)} links at a lower speed, as at idle: kdeploy gpus shows it under load"
        return Finding(OK, summary, idle[:2])
    return Finding(OK, "full width and full speed")


def errors(subject: Subject) -> Finding | None:
    """Have GPUs or bridges above them counted PCIe errors since the boot?"""
    addresses = [*(place.address for place in subject.places), *_bridges(subject)]
    if not addresses or not subject.gpu_count:
        return None
    counts: dict[str, list[str]] = {"fatal": [], "nonfatal": [], "correctable": []}
    told = False
    for address in addresses:
        for kind in counts:
            path = f"{DEVICES}/{address}/aer_dev_{kind}"
            total = re.search(r"TOTAL_ERR_\w+ (\d+)", subject.files.text(path) or "")
            told = told or total is not None
            if total and int(total[1]) > (1000 if kind == "correctable" else 0):
                counts[kind].append(f"{path}: {total[1]}")
    fix = [
        "reseat card and riser; a link that keeps failing shortens lanes next, or loses the GPU (dmesg: AER, Xid 79)"
    ]
    if counts["fatal"]:
        return Finding(FAIL, "fatal errors were counted", counts["fatal"], fix)
    if counts["nonfatal"] or counts["correctable"]:
        return Finding(WARN, "errors were counted", [*counts["nonfatal"], *counts["correctable"]][:8], fix)
    return (
        Finding(OK, "none counted") if told else Finding(UNKNOWN, "this kernel counts none", [f"{DEVICES}/*/aer_dev_*"])
    )


def aspm(subject: Subject) -> Finding | None:
    """May links sleep?"""
    if not subject.gpu_count:
        return None
    words = [word for word in _cmdline(subject.files).split() if word.startswith(("pcie_aspm", "pcie_port_pm"))]
    path = "/sys/module/pcie_aspm/parameters/policy"
    policy = re.search(r"\[(\w+)\]", subject.files.text(path) or "")
    evidence = [*(f"/proc/cmdline: {word}" for word in words), *([f"{path}: {policy[1]}"] if policy else [])]
    if "pcie_aspm=off" in words or (policy and policy[1] in ("performance", "default")):
        return Finding(
            OK, "links stay awake" if not policy or policy[1] != "default" else "as the firmware set it", evidence
        )
    if policy is None:
        return Finding(UNKNOWN, "the policy is not told here", [f"{path}: missing"])
    fix = ["boot with pcie_aspm=off pcie_port_pm=off", f"or now: echo performance > {path}"]
    return Finding(WARN, f"policy {policy[1]}: links may sleep", evidence, fix)


def _largest_region(text: str) -> int:
    """Bytes of a device's largest memory region, by its `resource` file."""
    sizes = [0]
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and int(words[1], 16) > int(words[0], 16):
            sizes.append(int(words[1], 16) - int(words[0], 16) + 1)
    return max(sizes)


def bar1(subject: Subject) -> Finding | None:
    """Can a peer address all of a GPU's memory?"""
    if not subject.gpu_count:
        return None
    small, told = [], 0
    for gpu in subject.inventory.gpus if subject.inventory else ():
        size = gpu.get("bar1_total_mib")
        if size is not None and gpu.total_mib is not None:
            told += 1
            if size < gpu.total_mib:
                small.append(f"GPU {gpu.number}: BAR1 {size} MiB of {gpu.total_mib} MiB of memory (NVML)")
    if not told:
        for place in subject.places:
            path = f"{DEVICES}/{place.address}/resource"
            size = _largest_region(subject.files.text(path) or "")
            told += size > 0
            if 0 < size < 1 << 33:
                small.append(f"{path}: largest region {size >> 20} MiB")
    if small:
        fix = ["turn on Resizable BAR and Above 4G Decoding in the BIOS"]
        return Finding(WARN, f"{len(small)} GPUs show less than their memory", small, fix)
    return Finding(OK, "the whole memory of each GPU") if told else Finding(UNKNOWN, "not told here")


def peer_access(subject: Subject) -> Finding | None:
    """Does the driver allow peer access between all pairs?"""
    if not subject.peers or subject.inventory is None:
        return None
    pairs = subject.inventory.pairs
    denied = [f"GPU {a} and {b}: {status}" for (a, b), (_, status) in pairs.items() if status not in (None, "ok")]
    if denied:
        fix = [
            "look at iommu and acs above",
            "NCCL then goes through host memory: kdeploy doctor --collective measures it",
        ]
        return Finding(WARN, f"not between {len(denied)} of {len(pairs)} pairs", _some(denied), fix)
    if not any(status == "ok" for _, status in pairs.values()):
        return Finding(UNKNOWN, "the driver does not tell")
    return Finding(OK, f"allowed between all {len(pairs)} pairs (whether it works, doctor --collective tries)")


def _some(lines: Iterable[str], limit: int = 8) -> list[str]:
    found = list(lines)
    return found[:limit] + ([f"and {len(found) - limit} more"] if len(found) > limit else [])
