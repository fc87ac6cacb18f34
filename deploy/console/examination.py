"""What `doctor` found, as lines for people. Pure."""

from collections.abc import Sequence

from deploy.doctor.finding import FAIL, OK, UNKNOWN, WARN, Result

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
