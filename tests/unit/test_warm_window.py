"""What may be read ahead, and what memory there is for it."""

from hypothesis import given
from hypothesis import strategies as st

from deploy.host.memory import Memory, headroom, parse_meminfo
from deploy.host.storage import mounted
from deploy.warm.window import blocks, consumed, fits, horizon, only_contends

GB = 10**9


@given(st.lists(st.integers(0, 500), max_size=6), st.integers(1, 100))
def test_blocks_cover_every_byte_once_and_in_order(sizes: list[int], size: int) -> None:
    found = blocks(sizes, size)
    assert sum(block.length for block in found) == sum(sizes)
    assert all(0 < block.length <= size for block in found)
    place = 0
    for block in found:
        assert block.start == place == sum(sizes[: block.file]) + block.offset
        place += block.length


def test_all_of_a_checkpoint_that_fits_may_be_read_at_once() -> None:
    memory = Memory(1000 * GB, 950 * GB)
    assert fits(547 * GB, memory, 0)
    assert horizon(0, 547 * GB, memory, 0) == 547 * GB


def test_one_that_does_not_fit_is_read_through_a_window_that_moves() -> None:
    memory = Memory(256 * GB, 240 * GB)
    reserve = 40 * GB
    assert not fits(547 * GB, memory, reserve)
    assert horizon(0, 547 * GB, memory, reserve) == 120 * GB
    assert horizon(100 * GB, 547 * GB, memory, reserve) == 220 * GB
    assert horizon(500 * GB, 547 * GB, memory, reserve) == 547 * GB


def test_nothing_more_is_read_when_memory_is_short() -> None:
    assert horizon(10 * GB, 547 * GB, Memory(256 * GB, 20 * GB), 0) == 10 * GB


def test_a_limit_holds_below_what_memory_allows() -> None:
    assert horizon(GB, 547 * GB, Memory(1000 * GB, 950 * GB), 0, limit=2 * GB) == 3 * GB


def test_files_go_only_when_the_slowest_rank_is_a_file_further() -> None:
    sizes = [10, 10, 10, 10]
    assert consumed(sizes, 9) == []
    assert consumed(sizes, 10) == []
    assert consumed(sizes, 25) == [0]
    assert consumed(sizes, 40) == [0, 1, 2]


def test_reading_ahead_stops_where_it_only_contends() -> None:
    assert only_contends(1 << 30, 0.2e9, overtaken=3)
    assert not only_contends(1 << 30, 0.2e9, overtaken=0)
    assert not only_contends(1 << 30, 5e9, overtaken=9)
    assert not only_contends(1 << 20, 0.2e9, overtaken=9)


def test_memory_of_a_machine_and_of_a_limited_group() -> None:
    text = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    600 kB\n"
    assert parse_meminfo(text) == Memory(1000 * 1024, 600 * 1024)
    stat = "anon 300\nfile 500\ninactive_file 400\nactive_file 100\n"
    # page cache counts as available: the group gives it back
    assert headroom("1000\n", "800\n", stat, "/g") == Memory(1000, 700, "/g")
    assert headroom("max\n", "800\n", stat, "/g") is None


def test_the_filesystem_of_a_path_is_that_of_its_longest_mount() -> None:
    info = (
        "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
        "30 22 0:40 / /models rw shared:2 - nfs4 host:/m rw\n"
        "31 22 8:2 / /models2 rw - xfs /dev/sdb1 rw\n"
    )
    assert mounted("/models/kimi/x", info) == ("nfs4", "0:40")
    assert mounted("/models2/x", info) == ("xfs", "8:2")
    assert mounted("/modelsx", info) == ("ext4", "8:1")
