"""Checks on the operating system: limits, shared memory, memory, disks, clock."""

import re

from deploy.doctor.finding import FAIL, OK, UNKNOWN, WARN, Finding, Subject
from deploy.host.sysroot import Sysroot

GIB = 1 << 30
SHM_A_RANK = 2 * GIB
LEFTOVER = re.compile(r"(psm_|sem\.mp-|nccl-|torch_|cuda\.shm)")
FAST = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter")
SLOW_FILESYSTEMS = {
    "zfs": "keeps a cache of its own beside the page cache, and its read-ahead fights the loader's",
    "overlay": "a container's own layer: reads go through a copy-on-write file system",
    "9p": "goes through the hypervisor, page by page",
}
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "fuse", "virtiofs", "lustre", "beegfs", "ceph", "gpfs")
CACHE_NEEDS = 5 * GIB


def numa_balancing(subject: Subject) -> Finding | None:
    """Does the kernel move pages between sockets by itself?"""
    path = "/proc/sys/kernel/numa_balancing"
    value = subject.files.number(path)
    if value is None:
        return Finding(OK, "not in this kernel", [f"{path}: missing"])
    if value:
        return Finding(WARN, "on", [f"{path}: {value}"], ["sysctl -w kernel.numa_balancing=0 (and in /etc/sysctl.d)"])
    return Finding(OK, "off", [f"{path}: 0"])


def read_limits(text: str) -> dict[str, int | None]:
    """Soft limits of /proc/PID/limits by name; None is unlimited."""
    found: dict[str, int | None] = {}
    for line in text.splitlines():
        match = re.match(r"(Max [a-z ]+?)\s{2,}(\S+)", line)
        if match and (match[2] == "unlimited" or match[2].isdigit()):
            found[match[1]] = None if match[2] == "unlimited" else int(match[2])
    return found


def limits(subject: Subject) -> Finding | None:
    """May an engine lock memory, and open as many files as it needs?"""
    path = "/proc/self/limits"
    found = read_limits(subject.files.text(path) or "")
    if not found:
        return Finding(UNKNOWN, "cannot be read", [path])
    low, fix = [], []
    locked, files, stack = (found.get(f"Max {key}", 0) for key in ("locked memory", "open files", "stack size"))
    if locked is not None and subject.gpu_count:
        low.append(f"{path}: Max locked memory {locked}")
        fix.append(
            "ulimit -l unlimited (memlock in /etc/security/limits.d, LimitMEMLOCK=infinity, --ulimit memlock=-1)"
        )
    if files is not None and files < 65536:
        low.append(f"{path}: Max open files {files}")
        fix.append("ulimit -n 65536 (nofile in /etc/security/limits.d, LimitNOFILE=65536, --ulimit nofile=65536)")
    if stack is not None and stack < 8 << 20:
        low.append(f"{path}: Max stack size {stack}")
        fix.append("ulimit -s 65536 (--ulimit stack=67108864)")
    if low:
        return Finding(WARN, f"{len(low)} lower than an engine likes", low, fix)
    return Finding(OK, "locked memory, open files and stack are enough")


def _size_option(text: str) -> int | None:
    match = re.search(r"\bsize=(\d+)([kmg]?)", text)
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]] if match else None


def mounts(files: Sysroot) -> list[tuple[str, str, str]]:
    """Mount point, type and options of every mount."""
    found = []
    for line in (files.text("/proc/mounts") or "").splitlines():
        words = line.split()
        if len(words) >= 4:
            found.append((words[1].replace("\\040", " "), words[2], words[3]))
    return found


def shm(subject: Subject) -> Finding | None:
    """Is there room in /dev/shm for what the ranks exchange?"""
    ranks = subject.wanted.ranks if subject.wanted else max(subject.gpu_count, 1)
    space = subject.space.get("/dev/shm")
    mounted = next((options for point, _, options in mounts(subject.files) if point == "/dev/shm"), "")
    total = space.total if space else _size_option(mounted)
    free = space.free if space else total
    if total is None or free is None:
        how = f"/dev/shm {mounted}" if mounted else "no /dev/shm"
        return Finding(UNKNOWN, "its size is not told", [f"/proc/mounts: {how}"])
    evidence = [f"/dev/shm: {_gib(total)}, {_gib(free)} free; {ranks} ranks"]
    fix = [
        "mount -o remount,size=32G /dev/shm",
        "docker: --shm-size 32g, or --ipc=host; Kubernetes: an emptyDir of Memory",
    ]
    if ranks > 1 and free < GIB:
        return Finding(
            FAIL, f"{_gib(free)} free: NCCL and the ranks' queues end in 'No space left on device'", evidence, fix
        )
    if ranks > 1 and free < ranks * SHM_A_RANK:
        return Finding(WARN, f"{_gib(free)} free, {_gib(ranks * SHM_A_RANK)} would be comfortable", evidence, fix)
    return Finding(OK, f"{_gib(free)} free", evidence)


def leftovers(subject: Subject) -> Finding | None:
    """Are there shared memory files of engines that are gone?"""
    files = subject.files
    names = [name for name in files.names("/dev/shm") if LEFTOVER.match(name)]
    if not names:
        return Finding(OK, "none", ["/dev/shm"])
    mapped, blind = set(), 0
    for pid in (entry for entry in files.names("/proc") if entry.isdigit()):
        text = files.text(f"/proc/{pid}/maps")
        if text is None:
            blind += 1
        else:
            mapped |= set(re.findall(r"/dev/shm/(\S+)", text))
    dead = [name for name in names if name not in mapped]
    if not dead:
        return Finding(OK, f"{len(names)} files, all in use")
    told = f"{len(dead)} files that no process maps" + (
        f" ({blind} processes of others cannot be looked into)" if blind else ""
    )
    shown = [f"/dev/shm/{name}" for name in dead]
    more = [f"and {len(dead) - 6} more"] if len(dead) > 6 else []
    return Finding(
        WARN,
        told,
        shown[:6] + more,
        [f"rm {' '.join(shown[:3])}{' …' if len(dead) > 3 else ''}, unless an engine is just starting"],
    )


def host_memory(subject: Subject) -> Finding | None:
    """Can the page cache hold the checkpoint?"""
    wanted = subject.wanted
    if wanted is None or wanted.checkpoint_bytes is None:
        return None
    files = subject.files
    rows: dict[str, str] = dict(re.findall(r"^(\w+):\s+(\d+) kB", files.text("/proc/meminfo") or "", re.MULTILINE))
    if "MemTotal" not in rows:
        return Finding(UNKNOWN, "cannot be read", ["/proc/meminfo"])
    total, available = int(rows["MemTotal"]) << 10, int(rows.get("MemAvailable", rows["MemTotal"])) << 10
    evidence = [f"/proc/meminfo: MemTotal {_gib(total)}, MemAvailable {_gib(available)}"]
    limit = files.number("/sys/fs/cgroup/memory.max") or files.number("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    if limit is not None and limit < total:
        evidence.append(f"/sys/fs/cgroup/memory.max: {_gib(limit)}")
        total, available = min(total, limit), min(available, limit)
    size = _gib(wanted.checkpoint_bytes)
    if total < wanted.checkpoint_bytes:
        fix = ["nothing cures this but more memory: every load reads from the disk, and prewarm helps less"]
        return Finding(WARN, f"{_gib(total)} cannot hold the checkpoint ({size})", evidence, fix)
    if available < wanted.checkpoint_bytes:
        return Finding(
            WARN, f"{_gib(available)} are available for a checkpoint of {size}", evidence, ["end what holds the rest"]
        )
    return Finding(OK, f"{_gib(available)} available for a checkpoint of {size}", evidence)


def swap(subject: Subject) -> Finding | None:
    """Would the kernel swap an engine out to keep more of the page cache?"""
    path = "/proc/sys/vm/swappiness"
    value = subject.files.number(path)
    total = re.search(r"^SwapTotal:\s+(\d+) kB", subject.files.text("/proc/meminfo") or "", re.MULTILINE)
    if value is None:
        return None
    if total and int(total[1]) and value > 10:
        evidence = [f"{path}: {value}", f"/proc/meminfo: SwapTotal {_gib(int(total[1]) << 10)}"]
        return Finding(WARN, f"swappiness {value} with swap on", evidence, ["sysctl -w vm.swappiness=1, or swapoff -a"])
    return Finding(OK, "no swap" if not total or not int(total[1]) else f"swappiness {value}", [f"{path}: {value}"])


def governor(subject: Subject) -> Finding | None:
    """Do the cores run at full clock?"""
    path = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    value = subject.files.text(path)
    if value is None:
        return None
    if value != "performance":
        return Finding(WARN, value, [f"{path}: {value}"], ["cpupower frequency-set -g performance"])
    return Finding(OK, value, [f"{path}: {value}"])


def clock(subject: Subject) -> Finding | None:
    """Is the time source fast, and the time right?"""
    path = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
    source = subject.files.text(path)
    if subject.wall is not None and subject.newest_file is not None and subject.wall + 86400 < subject.newest_file:
        fix = ["timedatectl set-ntp true"]
        return Finding(FAIL, "the clock is behind the files of this installation", [f"time {subject.wall:.0f}"], fix)
    if source is None:
        return Finding(UNKNOWN, "the time source is not told", [f"{path}: missing"])
    if source not in FAST:
        fix = ["boot with tsc=reliable if the processors' counters are sound; hpet costs microseconds at each reading"]
        return Finding(WARN, f"{source} is a slow time source", [f"{path}: {source}"], fix)
    return Finding(OK, source, [f"{path}: {source}"])


def mount_of(path: str, files: Sysroot) -> tuple[str, str, str] | None:
    """The mount that holds `path`: the longest mount point that begins it, and the last of those mounted there."""
    best: tuple[str, str, str] | None = None
    for entry in mounts(files):
        point = entry[0].rstrip("/")
        inside = path == point or path.startswith(f"{point}/")
        if inside and (best is None or len(point) >= len(best[0].rstrip("/"))):
            best = entry
    return best


def filesystem(subject: Subject) -> Finding | None:
    """Does the checkpoint lie on a file system that reads fast through the page cache?"""
    wanted = subject.wanted
    if wanted is None or wanted.folder is None:
        return None
    found = mount_of(wanted.folder, subject.files)
    if found is None:
        return Finding(UNKNOWN, "its mount cannot be found", ["/proc/mounts"])
    point, kind, _ = found
    space = subject.space.get(wanted.folder)
    evidence = [f"/proc/mounts: {point} {kind}", *([f"{_gib(space.free)} free"] if space else [])]
    if kind in SLOW_FILESYSTEMS:
        return Finding(WARN, f"{kind}: {SLOW_FILESYSTEMS[kind]}", evidence, ["copy it to a local ext4 or xfs on NVMe"])
    if kind.split(".")[0] in REMOTE:
        summary = f"{kind}: every load goes over the network or another process"
        return Finding(
            WARN, summary, evidence, ["copy it to a local ext4 or xfs on NVMe; load.strategy prefetch helps a little"]
        )
    return Finding(OK, f"{kind} on {point}", evidence)


def disk(subject: Subject) -> Finding | None:
    """Is there room for logs, journals and compiled kernels?"""
    rows = {path: space for path, space in subject.space.items() if path not in ("/dev/shm",)}
    if subject.wanted is not None:
        rows.pop(subject.wanted.folder or "", None)
    if not rows:
        return None
    evidence = [f"{path}: {_gib(space.free)} free of {_gib(space.total)}" for path, space in rows.items()]
    least = min(space.free for space in rows.values())
    fix = ["make room; a full disk ends an engine in its first compilation"]
    if least < CACHE_NEEDS // 20:
        return Finding(FAIL, f"{_gib(least)} free", evidence, fix)
    if least < CACHE_NEEDS:
        return Finding(WARN, f"{_gib(least)} free; compiled kernels and logs take a few GiB", evidence, fix)
    return Finding(OK, f"{_gib(least)} free", evidence)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB // 10 else f"{size / (1 << 20):.0f} MiB"
