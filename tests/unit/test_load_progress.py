"""Bytes, rate and ETA of a load, and which signs keep it from being called stalled."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from deploy.supervise.progress import Progress, phase_eta
from deploy.supervise.signs import Signs
from deploy.supervise.stall_evidence import Rank, suspect

MIB = 1 << 20


def test_read_and_loaded_are_two_numbers_with_their_sources() -> None:
    progress = Progress([100, 100, 100, 100])
    progress.bytes_read(300, "prewarm", 1.0)
    progress.weights_begin(1.0)
    progress.mapped(1)
    told = progress.to_json(2.0)
    assert (told["bytes_read"], told["read_source"]) == (300, "prewarm")
    assert (told["bytes_done"], told["shards_done"], told["source"]) == (100, 1, "maps")
    progress.finish()
    told = progress.to_json(3.0)
    assert (told["bytes_done"], told["bytes_read"], told["shards_done"], told["eta_s"]) == (400, 400, 4, 0.0)


def test_what_is_loaded_was_read() -> None:
    progress = Progress([100, 100])
    progress.bar(1, 2)
    progress.trust_bar()
    told = progress.to_json(1.0)
    assert (told["bytes_done"], told["bytes_read"], told["source"]) == (100, 100, "log")


def test_a_bar_in_bytes_or_tensors_is_a_share_of_the_bytes() -> None:
    progress = Progress([100, 300])
    progress.bar(500, 1000)
    progress.trust_bar()
    told = progress.to_json(1.0)
    assert (told["bytes_done"], told["shards_done"], told["shards_total"]) == (200, 1, 2)


def test_without_known_files_the_bar_is_all_there_is() -> None:
    progress = Progress([])
    progress.bar(3, 8)
    progress.trust_bar()
    told = progress.to_json(1.0)
    assert (told["shards_done"], told["shards_total"], told["bytes_total"], told["eta_s"]) == (3, 8, None, None)


@given(st.lists(st.tuples(st.sampled_from(["maps", "bar", "read"]), st.integers(0, 4)), max_size=30))
def test_nothing_ever_goes_back(steps: list[tuple[str, int]]) -> None:
    progress = Progress([10, 20, 30, 40, 50])
    before = (0, 0, 0)
    for now, (kind, value) in enumerate(steps):
        if kind == "maps":
            progress.mapped(value)
        elif kind == "bar":
            progress.bar(value, 5)
            progress.trust_bar()
        else:
            progress.bytes_read(value * 40, "prewarm", float(now))
        after = (progress.read, progress.loaded, progress.shards_done)
        assert all(one >= other for one, other in zip(after, before, strict=True))
        assert progress.loaded <= progress.read <= 150
        before = after


def test_eta_is_the_longer_of_reading_and_consuming_plus_what_comes_after() -> None:
    learned = {"spawn": 3.0, "init": 10.0, "weights": 20.0, "compile": 20.0, "graphs": 30.0}
    progress = Progress([100] * 10, learned)
    progress.phase_begins("spawn", 0.0)
    for second in range(5):
        progress.bytes_read(100 * second, "prewarm", float(second))
    progress.phase_begins("init", 4.0)
    # six seconds of reading hide behind what the engine usually needs until it has them all
    assert progress.eta(5.0) == 29.0
    assert progress.eta_ready(5.0) == 79.0
    progress.phase_begins("weights", 14.0)
    progress.weights_begin(14.0)
    assert progress.eta(19.0) == 15.0
    progress.mapped(1)
    assert progress.eta(16.0) == 18.0  # one shard in two seconds, nine to go


def test_a_disk_that_is_slower_than_the_loader_sets_the_time() -> None:
    progress = Progress([100] * 10)
    for second in range(5):
        progress.bytes_read(10 * second, "prewarm", float(second))
    assert progress.eta(4.0) is None  # how fast the loader will be is not known yet
    progress.weights_begin(4.0)
    progress.mapped(0)
    progress.bytes_read(200, "prewarm", 10.0)
    progress.mapped(1)
    assert progress.eta(10.0) == 54.0  # the loader's pace: 100 in 6 s, 900 to go; the disk's: 800 at 20 a second


def test_eta_of_later_phases_is_learned() -> None:
    learned = {"compile": 20.0, "graphs": 30.0, "warmup": 5.0}
    assert phase_eta("graphs", 10.0, learned) == 25.0
    assert phase_eta("graphs", 50.0, learned) == 5.0
    assert phase_eta("canary", 1.0, learned) is None


def signs(stall_s: float = 600.0) -> Signs:
    found = Signs(stall_s, 0.0)
    found.work(0.0, 0, 0.0)
    return found


def test_a_disk_at_one_mib_a_second_moves() -> None:
    slow = signs()
    moments = [second / 2 for second in range(1, 4000)]
    moved = [now for now in moments if slow.work(now, int(now * MIB), 0.0)]
    gaps = [later - earlier for earlier, later in pairwise(moved)]
    assert max(gaps) <= 2.0


def test_the_small_reading_of_an_idle_server_does_not() -> None:
    idle = signs()
    assert not any(idle.work(float(now), now * 1000, 0.0) for now in range(1, 4000))


def test_a_rank_that_spins_is_believed_for_a_while_only() -> None:
    spinning = signs(stall_s=10.0)
    moved = [now for now in range(1, 200) if spinning.work(float(now), 0, float(now))]
    assert moved == list(range(1, 30))
    spinning.proven(200.0)
    assert spinning.work(201.0, 0, 300.0)


def test_counters_of_a_process_that_ended_are_no_step_back() -> None:
    found = signs()
    assert found.work(1.0, 100 * MIB, 0.0)
    assert not found.work(2.0, 50 * MIB, 0.0)
    assert found.work(3.0, 60 * MIB, 0.0)


def test_only_lines_that_are_new_are_a_sign() -> None:
    found = signs()
    assert found.lines(1.0, b"INFO 10:00:01 loading shard 1\n")
    assert not found.lines(2.0, b"INFO 10:00:02 loading shard 2\n")
    assert found.lines(3.0, b"something else\n")
    assert not found.lines(4.0, b"(Core) INFO No available shared memory broadcast block found in 60 seconds\n")


def test_the_rank_that_the_others_wait_for_is_named() -> None:
    waiting = Rank(1, "VLLM::Worker_TP0", "S", "futex_wait_queue", 5)
    reading = Rank(2, "VLLM::Worker_TP1", "S", "pipe_read", 5)
    behind = Rank(3, "VLLM::Worker_TP2", "S", "futex_wait_queue", 2)
    asleep = Rank(4, "VLLM::Worker_TP3", "D", "folio_wait_bit_common", 5)
    assert suspect([waiting, waiting]) is None
    assert suspect([waiting, behind]) == behind
    assert suspect([waiting, behind, reading]) == reading
    assert suspect([waiting, behind, reading, asleep]) == asleep
    assert reading.words == "VLLM::Worker_TP1 (pid 2): state S, waits in pipe_read, in shard 6"
