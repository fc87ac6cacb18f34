"""The GPUs of a machine as lines that fit a terminal. Pure."""

from collections.abc import Sequence
from typing import Any

WIDTH = 110
SPARED_FIRST = ("UTIL", "TEMP", "POWER", "PCI")  # columns that a narrow terminal does without
NOT_TOLD = "n/a"
APART = {
    "PIX": "on one PCIe switch",
    "PXB": "behind one root port",
    "PHB": "on one root complex",
    "NODE": "on one socket",
}


def lines(document: dict[str, Any], width: int = WIDTH) -> list[str]:
    """The whole answer of `gpus --json` for people, for a terminal of `width` columns."""
    gpus = document["gpus"]
    told = [*_head(document), *_table(gpus, width)]
    if len(gpus) > 1:
        told += ["", "topology", *_drawn(document["topology"], 1), *_between(document["pairs"])]
    return told


def _head(document: dict[str, Any]) -> list[str]:
    gpus = document["gpus"]
    kinds: dict[tuple[str, str, str], int] = {}
    for gpu in gpus:
        total = gpu["memory_total_mib"]
        size = NOT_TOLD if total is None else f"{total / 1024:.1f} GiB"
        kind = (gpu["name"] or "unknown GPU", size, gpu["capability"] or NOT_TOLD)
        kinds[kind] = kinds.get(kind, 0) + 1
    words = [f"{count} x {name}, {size}, capability {capability}" for (name, size, capability), count in kinds.items()]
    driver = f"driver {document['driver'] or NOT_TOLD}, CUDA {document['cuda'] or NOT_TOLD}"
    return [*words[:-1], f"{words[-1]}; {driver}"]


def _table(gpus: Sequence[dict[str, Any]], width: int) -> list[str]:
    rows: list[tuple[str, ...]] = [("GPU", "PCI", "USED / TOTAL MIB", "UTIL", "TEMP", "POWER", "PCIE", "LEASE")]
    rows += [
        (
            str(gpu["index"]),
            gpu["place"]["address"] if gpu["place"] else NOT_TOLD,
            f"{_plain(gpu['memory_used_mib'])} / {_plain(gpu['memory_total_mib'])}",
            _unit(gpu["utilization_percent"], "%"),
            _unit(gpu["temperature_c"], "C"),
            f"{_plain(gpu['power_w'])}/{_plain(gpu['power_cap_w'])} W",
            _link(gpu),
            str(gpu["lease"].get("deployment", "?")) if gpu["lease"] else "",
        )
        for gpu in gpus
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for spared in SPARED_FIRST:
        if sum(widths) + 2 * len(widths) - 2 > width:
            at = rows[0].index(spared)
            rows = [(*row[:at], *row[at + 1 :]) for row in rows]
            del widths[at]
    told = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    found = [told[0]]
    for line, gpu in zip(told[1:], gpus, strict=True):
        found += [line, *(f"     {remark}"[:width] for remark in _remarks(gpu))]
    return found


def _remarks(gpu: dict[str, Any]) -> list[str]:
    """What stands below a GPU's row: trouble, MIG slices, and who holds its memory."""
    told = []
    if gpu["problem"]:
        told.append(f"! {gpu['problem']['text']}")
    if gpu["ecc_uncorrected"]:
        told.append(f"! {gpu['ecc_uncorrected']} uncorrected memory errors since the driver was loaded")
    if gpu["persistence"] is False:
        told.append("persistence mode is off")
    if gpu["mig"]:
        told.append(f"MIG is on: {len(gpu['mig_devices'])} slices")
        told += [
            f"  {part['uuid'] or 'slice'}  {_plain(part['memory_used_mib'])} / {_plain(part['memory_total_mib'])} MiB"
            for part in gpu["mig_devices"]
        ]
    if gpu["processes"] is None:
        told.append("processes are not listed here")
    told += [holder_words(entry) for entry in gpu["processes"] or ()]
    return told


def holder_words(entry: dict[str, Any]) -> str:
    """One holder of a GPU's memory: whose it is, and as much as can be told."""
    size = "" if entry["mib"] is None else f" {entry['mib']} MiB"
    pid = f"pid {entry['pid']}{size}"
    if entry.get("deployment"):
        rest = "has ended, its memory is not back yet" if entry.get("ended") else entry.get("command") or ""
        return f"{entry['deployment']}: {pid}  {rest}".rstrip()
    if not entry.get("visible"):
        return f"{pid}  not visible here (another PID namespace, or it has just ended)"
    words = [word for word in (entry.get("user"), entry.get("container")) if word]
    doubt = "" if entry.get("certain") else " (if that pid is meant)"
    return f"{pid}  {', '.join(words)}{doubt}: {entry.get('command')}"


def _plain(value: int | None) -> str:
    return NOT_TOLD if value is None else str(value)


def _unit(value: int | None, unit: str) -> str:
    return NOT_TOLD if value is None else f"{value} {unit}"


def _link(gpu: dict[str, Any]) -> str:
    """PCIe generation and width, and the best where it is more: generations fall at idle, widths do not."""
    gen, gen_max, width, width_max = (gpu[key] for key in ("pcie_gen", "pcie_gen_max", "pcie_width", "pcie_width_max"))
    if gen is None or width is None:
        return NOT_TOLD
    generation = f"gen{gen}" if gen_max in (None, gen) else f"gen{gen} of {gen_max}"
    lanes = f"x{width}" if width_max in (None, width) else f"x{width} of x{width_max}!"
    return f"{generation} {lanes}"


def _drawn(groups: Sequence[dict[str, Any]], depth: int) -> list[str]:
    told = []
    for group in groups:
        numbers = " ".join(map(str, group["gpus"]))
        if group["level"] == "GPU":
            told.append(f"{'  ' * depth}GPU {numbers}")
            continue
        told.append(f"{'  ' * depth}{group['name']}: GPU {numbers}  ({APART[group['level']]}, {group['level']})")
        if any(inside["level"] != "GPU" for inside in group["inside"]):
            told += _drawn(group["inside"], depth + 1)
    return told


def _between(pairs: Sequence[dict[str, Any]]) -> list[str]:
    """Peer access in one line, the exceptions by pair."""
    status: dict[str | None, list[str]] = {}
    for pair in pairs:
        status.setdefault(pair["p2p"], []).append(f"{pair['a']}-{pair['b']}")
    if set(status) == {"ok"}:
        return ["  peer access: all pairs, says the driver (doctor --collective tries it)"]
    return [
        f"  peer access {word or NOT_TOLD}: {', '.join(names[:8])}{' …' if len(names) > 8 else ''}"
        for word, names in status.items()
    ]
