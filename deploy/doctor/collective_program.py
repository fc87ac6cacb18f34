"""One rank of the all-reduce test: run as text by the engine's own interpreter, once for each rank.

Its question is the JSON of KDEPLOY_COLLECTIVE: rank, ranks, backend, rendezvous (a file), worlds, sizes, join_s.
It tells JSON lines on stdout: {"stage": …} before each step, {"measured": …} from rank 0, {"wrong": …}, {"done": true}.
"""

import json
import os
import threading
import time
from datetime import timedelta
from typing import Any

ROUNDS = 3  # of values; a stale buffer shows in the second


def tell(**document: Any) -> None:
    """One line to whoever started us."""
    print(json.dumps(document), flush=True)


def end_with_parent() -> None:
    """A rank that hangs in a collective must not outlive whoever waits for it."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Join, check sums, measure."""
    end_with_parent()
    ask = json.loads(os.environ["KDEPLOY_COLLECTIVE"])
    rank, ranks = ask["rank"], ask["ranks"]
    modulus = 13 if ranks <= 16 else 3  # sums stay below 256, which bfloat16 holds exactly
    tell(stage="import")
    import torch
    import torch.distributed as dist

    on_gpu = ask["backend"] == "nccl"
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    kind = torch.bfloat16 if on_gpu else torch.float32
    if on_gpu:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    tell(stage="join", torch=torch.__version__)
    dist.init_process_group(
        ask["backend"],
        init_method=f"file://{ask['rendezvous']}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=ask["join_s"]),
    )
    tell(stage="joined")

    def settle() -> None:
        if on_gpu:
            torch.cuda.synchronize()

    def pattern(of: int, turn: int, count: int) -> Any:
        return ((torch.arange(count, device=device) + 7 * of + 3 * turn) % modulus).to(kind)

    def check(group: Any, world: int, size: int, count: int) -> bool:
        for turn in range(ROUNDS):
            values = pattern(rank, turn, count)
            dist.all_reduce(values, group=group)
            settle()
            expected = sum(pattern(other, turn, count).to(torch.float32) for other in range(world))
            bad = (values.to(torch.float32) != expected).nonzero()
            if len(bad):
                at = int(bad[0][0])
                got, right = float(values[at]), float(expected[at])
                told = {"got": None if got != got else got, "expected": right, "at": at, "count": len(bad), "of": count}
                tell(wrong={"rank": rank, "ranks": world, "bytes": size, **told})
                return False
        return True

    def measure(group: Any, size: int, count: int) -> float:
        values = torch.ones(count, dtype=kind, device=device)
        turns = 50 if size <= 1 << 20 else 10
        for _ in range(5):
            dist.all_reduce(values, group=group)
        values.fill_(1)
        settle()
        began = time.perf_counter()
        for _ in range(turns):
            dist.all_reduce(values, group=group)
        settle()
        return (time.perf_counter() - began) / turns

    for world in ask["worlds"]:
        group = dist.new_group(list(range(world))) if world < ranks else None
        if rank >= world:
            continue
        for size in ask["sizes"]:
            tell(stage=f"{world} ranks, {size} bytes")
            count = size // values_size(kind)
            if not check(group, world, size, count):
                time.sleep(3600)  # the others wait in the next collective
            seconds = measure(group, size, count)
            if rank == 0:
                tell(measured={"ranks": world, "bytes": size, "us": round(seconds * 1e6, 2)})
    tell(done=True)
    # the others may still need this end of the last collective, and a group that is torn down can hang as well:
    # whoever started us ends us all
    time.sleep(3600)


def values_size(kind: Any) -> int:
    """Bytes of one value."""
    return int(kind.itemsize)


if __name__ == "__main__":
    main()
