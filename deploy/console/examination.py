"""What `doctor` found, as lines for people. Pure."""

from collections.abc import Sequence

from deploy.doctor.finding import FAIL, OK, UNKNOWN, WARN, Finding, Result
from deploy.doctor.verdict import TUNED_US, Run

ORDER = (FAIL, WARN, UNKNOWN, OK)


def lines(results: Sequence[Result], *, every: bool = True) -> list[str]:
    """The worst first; evidence, reason and remedy of everything that is not ok. `every`: the good ones, too."""
    told = []
    for status in ORDER:
        for check, finding in (result for result in results if result.finding.status == status):
            if status == OK and not every:
                continue
            told.append(f"{status:<8}{check.name:<19}{finding.summary}")
            if status == OK:
                continue
            told += [f"        {line}" for line in finding.evidence]
            if status != UNKNOWN:
                told.append(f"        why: {check.why}")
            told += [f"        -> {line}" for line in finding.fix if line]
    return told


def all_reduce_lines(run: Run, control: Run | None, finding: Finding) -> list[str]:
    """What the all-reduce test measured, and its verdict."""
    told = []
    for title, each in (("", run), ("without peer access", control)):
        if each is None or not each.measured:
            continue
        told += [title] if title else []
        known = any(entry.usual_us is not None for entry in each.measured)
        head = f"{'RANKS':>5}  {'BYTES':>9}  {'US':>9}  {'BUS GB/S':>9}"
        told.append(f"{head}  {'USUAL US, TUNED':>16}" if known else head)
        for entry in each.measured:
            usual = ""
            if entry.usual_us is not None:
                usual = f"{entry.usual_us:g}, {TUNED_US[entry.bytes]:g}"
            figures = f"{entry.ranks:>5}  {entry.bytes:>9}  {entry.us:>9.1f}  {entry.bus_gb_s:>9.2f}"
            told.append(f"{figures}  {usual:>16}".rstrip())
        told.append("")
    told.append(f"{finding.status:<8}{finding.summary}")
    told += [f"        {line}" for line in finding.evidence]
    told += [f"        -> {line}" for line in finding.fix if line]
    return told
