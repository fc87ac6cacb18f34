"""Walks the chaos table and prints it: `python -m tests.chaos_walk [-j N]`. Exit 1 when a cell is wrong."""

import argparse
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.box import FAKES
from tests.chaos import cells, expected, table, walk


def main() -> int:
    """Every cell, some at a time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-j", type=int, default=6, metavar="N", help="cells at once (6)")
    at_once = parser.parse_args().j
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        library = Path(folder) / "libnvidia-ml.so.1"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, FAKES / "nvml.c"], check=True)
        with ThreadPoolExecutor(at_once) as pool:
            waiting = [
                pool.submit(walk, target, phase, name, Path(folder) / f"{target}-{phase}-{name}", Path(folder))
                for target, phase, name in cells()
            ]
            outcomes = [future.result() for future in waiting]
    print(table(outcomes))
    wrong = [outcome for outcome in outcomes if not outcome.right]
    for outcome in wrong:
        where = f"{outcome.target} {outcome.signal} in {outcome.phase}"
        must = expected(outcome.target, outcome.phase, outcome.signal)
        print(f"wrong: {where}: {outcome.told}, not {must}; left: {outcome.left}")
    print(f"{len(outcomes)} cells, {len(wrong)} wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
