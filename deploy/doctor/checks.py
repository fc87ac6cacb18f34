"""The table of checks: name, question, why it matters on PCIe boxes of 4 to 8 GPUs, where the rule comes from."""

from collections.abc import Callable

from deploy.doctor import driver, kernel, pcie
from deploy.doctor.finding import STATUSES, Check, Finding, Result, Subject


def _of_profile(key: str) -> Callable[[Subject], Finding | None]:
    def read(subject: Subject) -> Finding | None:
        return getattr(subject.wanted, key) if subject.wanted is not None else None

    return read


def _lease_folder(subject: Subject) -> Finding | None:
    return subject.lease_folder if subject.gpu_count else None


NCCL_33041 = "vLLM issues 33041, 51513; NCCL issues 1999, 2079"
WIKI = "community wiki of RTX PRO 6000 boxes"

CHECKS: tuple[Check, ...] = (
    Check(
        "driver",
        "Does the driver answer, and are all GPUs there?",
        "without it nothing starts, and vLLM only says 'Failed to infer device type'",
        "NVML errors 9, 12, 15, 18; vLLM issues 29737, 35967",
        driver.driver,
    ),
    Check(
        "driver-cuda",
        "Can the driver run what the engine was built with?",
        "the engine would end at its first CUDA call, after minutes of imports",
        "CUDA's compatibility rules; driver 580 for CUDA 13",
        driver.driver_for_engine,
    ),
    Check(
        "architecture",
        "Has the engine's torch code for these GPUs?",
        "'no kernel image is available' comes only when the weights are loaded",
        "CUDA's rules on sm_ and compute_ code",
        driver.architecture,
    ),
    Check(
        "gpu-kind",
        "Are the GPUs of the kind that the profile was made for, and alike?",
        "tensor parallel ranks wait for the slowest and smallest",
        "hardware.capability and hardware.memory_gib of the profile",
        driver.kind,
    ),
    Check(
        "gpus-idle",
        "Do others hold memory on the GPUs?",
        "vLLM refuses to start without its share of memory, and a neighbour that moves while it measures ends it",
        "vLLM issues 56830, 55827; PyTorch issue 175666",
        driver.idle,
    ),
    Check(
        "gpu-memory-errors",
        "Has a GPU counted memory errors that it could not correct?",
        "wrong weights answer fluently and falsely",
        "NVML ECC counters",
        driver.memory_errors,
    ),
    Check(
        "xid",
        "Has the driver reported faults since the boot?",
        "a GPU that has faulted fails again, under load and after the wait",
        "NVIDIA's Xid catalogue; the kernel's log",
        driver.xid,
    ),
    Check(
        "iommu",
        "Does the IOMMU translate between GPUs?",
        "peer access through a translating IOMMU hangs at the first all-reduce, or gives NaN",
        NCCL_33041,
        pcie.iommu,
    ),
    Check(
        "acs",
        "Do bridges between GPUs send peer traffic up to the root?",
        "with ACS redirection a switch is of no use, and together with a translating IOMMU NCCL hangs",
        NCCL_33041,
        pcie.acs,
    ),
    Check(
        "peer-access",
        "Does the driver allow peer access between all pairs?",
        "NCCL goes through host memory otherwise: 14 us instead of 0.5 us a message",
        f"NVML; {WIKI}",
        pcie.peer_access,
    ),
    Check(
        "pcie-link",
        "Does every link run as wide and as fast as both its ends can?",
        "one GPU at x8 halves every all-reduce of all ranks",
        "sysfs of the kernel's PCI core",
        pcie.link,
    ),
    Check(
        "pcie-errors",
        "Have GPUs or bridges counted PCIe errors?",
        "they come before a lost GPU, and each replay is latency",
        "AER counters of the kernel",
        pcie.errors,
    ),
    Check(
        "bar1",
        "Can a peer address all of a GPU's memory?",
        "peer access needs BAR1 as large as the memory (Resizable BAR)",
        WIKI,
        pcie.bar1,
    ),
    Check(
        "aspm",
        "May links sleep?",
        "links that sleep have come back as 'Surprise Link Down' on such boxes",
        WIKI,
        pcie.aspm,
    ),
    Check(
        "persistence",
        "Does the driver keep the GPUs awake?",
        "without it every start and every question to NVML wakes each GPU for seconds",
        "NVIDIA driver manual",
        driver.persistence,
    ),
    Check(
        "power-cap",
        "Is a GPU throttled by a low power cap?",
        "300 W instead of 600 W cost 30 % at 64 streams and 4 % at one",
        WIKI,
        driver.power,
    ),
    Check(
        "shm",
        "Is there room in /dev/shm?",
        "NCCL and the ranks' queues end in 'No space left on device', which is not the disk; Docker gives 64 MiB",
        "NCCL issues 290, 342, 525; vLLM issue 1710",
        kernel.shm,
    ),
    Check(
        "shm-leftovers",
        "Are there shared memory files of engines that are gone?",
        "each crash leaves some, until the next start finds no room",
        "llm-d issue 352",
        kernel.leftovers,
    ),
    Check(
        "limits",
        "May an engine lock memory and open enough files?",
        "pinned buffers and eight ranks' sockets need both",
        "NCCL's manual on containers",
        kernel.limits,
    ),
    Check(
        "numa-balancing",
        "Does the kernel move pages between sockets by itself?",
        "pages that move under DMA stall single ranks, and all wait",
        WIKI,
        kernel.numa_balancing,
    ),
    Check(
        "governor", "Do the cores run at full clock?", "decoding is bound by the launching core", WIKI, kernel.governor
    ),
    Check(
        "swap",
        "Would the kernel swap an engine out?",
        "reading half a terabyte of weights pushes idle pages out",
        WIKI,
        kernel.swap,
    ),
    Check(
        "clock",
        "Is the time source fast, and the time right?",
        "a slow one costs at every step; a wrong one breaks certificates and journals",
        "the kernel's clocksource",
        kernel.clock,
    ),
    Check(
        "host-memory",
        "Can the page cache hold the checkpoint?",
        "the second load comes from memory only if it fits",
        "measured loads of 230 to 595 GB",
        kernel.host_memory,
    ),
    Check(
        "filesystem",
        "Does the checkpoint lie on a fast local file system?",
        "network file systems and ZFS turn minutes of load into half an hour",
        WIKI,
        kernel.filesystem,
    ),
    Check(
        "disk",
        "Is there room for logs, journals and compiled kernels?",
        "a full disk ends an engine in its first compilation",
        "torch and Triton caches",
        kernel.disk,
    ),
    Check(
        "checkpoint",
        "Is the checkpoint complete?",
        "a missing or truncated shard is found after the others are loaded",
        "index against files, safetensors headers, LFS pointers",
        _of_profile("checkpoint"),
    ),
    Check(
        "engine",
        "Is the engine there, and of the wanted version?",
        "a profile's flags are those of a version",
        "engine.version of the profile",
        _of_profile("engine_finding"),
    ),
    Check(
        "port",
        "Is the port free?",
        "vLLM binds it first and fails, or two servers share the requests",
        "/proc/net/tcp, bind, other deployments",
        _of_profile("port"),
    ),
    Check(
        "lease-folder",
        "Do all users of the machine see the leases?",
        "two users would take the same GPUs",
        "kdeploy's own",
        _lease_folder,
    ),
)


def examine(subject: Subject) -> list[Result]:
    """Every check that makes sense for this subject, in the order of the table."""
    found = []
    for check in CHECKS:
        finding = check.run(subject)
        if finding is not None:
            found.append(Result(check, finding))
    return found


def counts(results: list[Result]) -> dict[str, int]:
    """How many of each status."""
    return {status: sum(result.finding.status == status for result in results) for status in STATUSES}
