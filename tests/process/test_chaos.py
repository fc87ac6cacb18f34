"""The whole chaos table against the fake engine; `scripts/chaos` prints it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.chaos import TARGETS, cells, expected, walk

AT_ONCE = 3


@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", TARGETS)
def test_whatever_dies_in_whatever_phase_the_end_is_right_and_nothing_stays(
    target: str, tmp_path: Path, nvml_folder: Path
) -> None:
    mine = [cell for cell in cells() if cell[0] == target]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        waiting = [pool.submit(walk, *cell, tmp_path / "-".join(cell), nvml_folder) for cell in mine]
        outcomes = [future.result() for future in waiting]
    wrong = [(outcome, expected(*outcome[:3])) for outcome in outcomes if not outcome.right]
    assert not wrong
