"""Copies of /proc and /sys of whole hosts, made from the short descriptions in tests/hosts/*.host.

One fact a line; # starts a comment:

    file PATH TEXT              a file; \\n in TEXT is a new line
    gpu ADDRESS key=value…      an NVIDIA GPU with everything that sysfs shows of it and of the bridges above:
        root=pci0000:c0         its root complex
        via=A,B                 bridges from the root port down
        numa=N group=N iommu=TYPE
        width=NOW/MAX speed=NOW/MAX
        slot=WIDTH@SPEED        what the port right above it can do
        acs=0x001d|none|cut     ACS control of each bridge; cut: only 64 bytes can be read, as without root
        bar1_mib=N              its largest memory region
        aer=FATAL/NONFATAL/CORRECTABLE
"""

import os
from pathlib import Path

HOSTS = Path(__file__).parent / "hosts"


def build(name: str, root: Path) -> Path:
    """Make the tree of tests/hosts/NAME.host below `root`, and return it."""
    for line in (HOSTS / f"{name}.host").read_text().splitlines():
        words = line.split(None, 2)
        if not words or words[0].startswith("#"):
            continue
        if words[0] == "file":
            _write(root, words[1], words[2].replace("\\n", "\n") + "\n")
        else:
            _gpu(root, words[1], dict(word.split("=", 1) for word in words[2].split()))
    return root


def _write(root: Path, path: str, content: str | bytes) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())


def _link(root: Path, path: str, target: str) -> None:
    link = root / path.lstrip("/")
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(os.path.relpath(root / target.lstrip("/"), link.parent))


def _config(acs: str) -> bytes:
    if acs == "cut":
        return bytes(64)
    config = bytearray(4096)
    # first an AER capability (0x0001) that leads to the one at 0x148
    config[0x100:0x104] = (0x0001 | 1 << 16 | 0x148 << 20).to_bytes(4, "little")
    config[0x148:0x14C] = ((0x0003 if acs == "none" else 0x000D) | 1 << 16).to_bytes(4, "little")
    if acs != "none":
        config[0x14C:0x14E] = (0x001F).to_bytes(2, "little")
        config[0x14E:0x150] = int(acs, 16).to_bytes(2, "little")
    return bytes(config)


def _gpu(root: Path, address: str, keys: dict[str, str]) -> None:
    folder = f"/sys/devices/{keys['root']}"
    width, width_max = keys["width"].split("/")
    speed, speed_max = keys["speed"].split("/")
    slot_width, slot_speed = keys.get("slot", f"{width_max}@{speed_max}").split("@")
    bridges = keys["via"].split(",")
    for bridge in bridges:
        folder = f"{folder}/{bridge}"
        _device(root, folder, bridge, "0x1022", "0x060400", keys)
        last = bridge == bridges[-1]
        _links(root, folder, width if last else "16", slot_width, speed if last else slot_speed, slot_speed)
        _write(root, f"{folder}/config", _config(keys["acs"]))
    folder = f"{folder}/{address}"
    _device(root, folder, address, "0x10de", "0x030200", keys)
    _links(root, folder, width, width_max, speed, speed_max)
    size = int(keys["bar1_mib"]) << 20
    regions = [(0xF4000000, 0xF7FFFFFF), (0x280000000000, 0x280000000000 + size - 1), (0, 0)]
    _write(root, f"{folder}/resource", "\n".join(f"0x{a:016x} 0x{b:016x} 0x{0x14220C:016x}" for a, b in regions))
    if "group" in keys:
        _write(root, f"/sys/kernel/iommu_groups/{keys['group']}/type", keys["iommu"] + "\n")
        _link(root, f"{folder}/iommu_group", f"/sys/kernel/iommu_groups/{keys['group']}")
    for kind, count in zip(("fatal", "nonfatal", "correctable"), keys.get("aer", "0/0/0").split("/"), strict=True):
        total = {"fatal": "FATAL", "nonfatal": "NONFATAL", "correctable": "COR"}[kind]
        _write(root, f"{folder}/aer_dev_{kind}", f"Undefined 0\nRxErr {count}\nTOTAL_ERR_{total} {count}\n")


def _device(root: Path, folder: str, address: str, vendor: str, kind: str, keys: dict[str, str]) -> None:
    _write(root, f"{folder}/vendor", vendor + "\n")
    _write(root, f"{folder}/class", kind + "\n")
    _write(root, f"{folder}/numa_node", keys["numa"] + "\n")
    _link(root, f"/sys/bus/pci/devices/{address}", folder)


def _links(root: Path, folder: str, width: str, width_max: str, speed: str, speed_max: str) -> None:
    for name, value in (("width", width), ("speed", f"{speed} GT/s PCIe")):
        _write(root, f"{folder}/current_link_{name}", value + "\n")
    for name, value in (("width", width_max), ("speed", f"{speed_max} GT/s PCIe")):
        _write(root, f"{folder}/max_link_{name}", value + "\n")
