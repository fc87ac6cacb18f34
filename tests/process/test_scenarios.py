"""The scenarios that the real engine passes too (tests/real), on the fake one."""

from collections.abc import Callable

import pytest

from tests.box import Box
from tests.scenarios import ALL


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.__name__)
def test_on_the_fake_engine(box: Box, scenario: Callable[[Box, str], None]) -> None:
    box.profile("tiny", "init_s=1;load_s=1;shm=1")
    scenario(box, "tiny")
