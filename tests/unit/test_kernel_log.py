"""The kernel's own words about a failure."""

from pathlib import Path

from deploy.engine.diagnosis import diagnose, with_kernel
from deploy.engine.log import Line
from deploy.host.kernel_log import faults, read

LOST = "NVRM: Xid (PCI:0000:c1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
KILLED = "Memory cgroup out of memory: Killed process 13068 (VLLM::Worker_TP) total-vm:93418212kB, anon-rss:61865984kB"


def records(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.write_text(
        "6,1,5000000,-;usb 1-1: new device\n"
        f"4,2,9000000,-;{LOST.replace('c1', '01')}\n"
        f"4,3,61000000,-;{LOST}\n"
        " SUBSYSTEM=pci\n"
        f"3,4,62000000,-;{KILLED}\n"
        f"3,5,63000000,-;{KILLED.replace('13068', '99')}\n"
        "6,6,64000000,-;eth0: link up\n"
    )
    return path


def test_only_faults_since_the_launch_that_may_concern_it(tmp_path: Path) -> None:
    found = read(str(records(tmp_path)))
    assert found is not None
    assert faults(found, 60.0, {13068}) == [LOST, KILLED]
    assert faults(found, 60.0, {4711}) == [LOST]
    assert read(str(tmp_path / "none")) is None


def test_the_kernel_names_the_reason_where_the_log_does_not() -> None:
    silent = diagnose((), exit_code=None, signal="SIGKILL", tail=[Line(9, "last words")])
    found = with_kernel(silent, [KILLED])
    assert found["cause"] == "host-out-of-memory"
    assert found["evidence"][0]["text"].startswith("kernel: Memory cgroup out of memory")
    assert found["evidence"][-1]["text"] == "last words"
    assert with_kernel(silent, []) == silent


def test_the_kernel_stands_beside_a_reason_that_the_log_names() -> None:
    reason = Line(
        3, "(Worker_TP0 pid=9) ERROR 12-01 10:00:00 [x.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried"
    )
    known = diagnose([reason], exit_code=1, signal=None, tail=())
    assert known["cause"] != "engine-died"
    found = with_kernel(known, [LOST])
    assert found["cause"] == known["cause"]
    assert found["evidence"][-1]["text"] == f"kernel: {LOST}"
