"""The swaps of a state folder: their orders, their journals, and the lock of whoever carries one out.

STATE/swaps/lock                 held while a swap is being carried out: one at a time
STATE/swaps/open                 the id of the swap that is not over yet; no file, no such swap
STATE/swaps/ID/order.json        what was asked, with both plans, written once
STATE/swaps/ID/events.jsonl      the journal
STATE/swaps/ID/swap.log          the runner's own stderr; empty unless we have a bug
"""

import contextlib
import json
import os
import time
from typing import Any, NamedTuple

from deploy.errors import KdeployError, environment, refused
from deploy.homes import make_private, state_dir
from deploy.store.locks import is_held, read_holder


class Swap(NamedTuple):
    """One swap's folder and the files in it."""

    id: str
    folder: str

    @property
    def order(self) -> str:
        """What was asked, one JSON document."""
        return os.path.join(self.folder, "order.json")

    @property
    def events(self) -> str:
        """The journal."""
        return os.path.join(self.folder, "events.jsonl")

    @property
    def log(self) -> str:
        """The runner's standard error."""
        return os.path.join(self.folder, "swap.log")


def swaps_dir() -> str:
    """The folder that holds one folder for each swap."""
    return os.path.join(state_dir(), "swaps")


def lock_path() -> str:
    """The lock of whoever carries a swap out."""
    return os.path.join(swaps_dir(), "lock")


def _open_path() -> str:
    return os.path.join(swaps_dir(), "open")


def make_swaps_dir() -> str:
    """Make the folder of the swaps (0700) and return it."""
    make_private(state_dir())
    return make_private(swaps_dir())


def named(swap_id: str) -> Swap:
    """The swap of that id."""
    return Swap(swap_id, os.path.join(swaps_dir(), swap_id))


def newest() -> Swap | None:
    """The swap that was begun last."""
    try:
        found = [entry for entry in os.listdir(swaps_dir()) if entry[:1].isdigit() and not entry.endswith(".new")]
    except OSError:
        return None
    return named(max(found, key=_order)) if found else None


def _order(swap_id: str) -> tuple[str, int]:
    stamp, _, number = swap_id.partition("-")
    return stamp, int(number) if number.isdigit() else 0


def unfinished() -> Swap | None:
    """The swap that is not over, None when there is none. One failed open where nobody swaps."""
    try:
        with open(_open_path()) as file:
            found = named(file.read().strip())
    except OSError:
        return None
    return found if os.path.isdir(found.folder) else None


def is_carried_out() -> bool:
    """Whether somebody carries a swap out now."""
    return is_held(lock_path())


def make_swap(order: dict[str, Any]) -> Swap:
    """Make the folder of a new swap, with its order in it, and mark it as not over. Only the lock's holder may."""
    parent = make_swaps_dir()
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    last = newest()
    number = 1
    if last is not None and _order(last.id)[0] >= stamp:
        stamp, number = _order(last.id)[0], _order(last.id)[1] + 1
    swap = Swap(f"{stamp}-{number}", os.path.join(parent, f"{stamp}-{number}"))
    try:
        unready = make_private(swap.folder + ".new")
        _write(os.path.join(unready, "order.json"), json.dumps({**order, "id": swap.id}, indent=1))
        os.rename(unready, swap.folder)
        _write(_open_path() + ".new", swap.id)
        os.rename(_open_path() + ".new", _open_path())
    except OSError as error:
        raise environment(f"cannot write the swap: {error.strerror}", evidence=[str(error.filename)]) from None
    return swap


def _write(path: str, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text + "\n")


def close(swap: Swap) -> None:
    """The swap is over."""
    found = unfinished()
    if found is not None and found.id == swap.id:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_open_path())


def read_order(swap: Swap) -> dict[str, Any]:
    """What was asked; exit 6 when it cannot be read."""
    try:
        with open(swap.order, "rb") as file:
            order: dict[str, Any] = json.load(file)
    except (OSError, ValueError) as error:
        raise environment("a swap's order cannot be read", evidence=[f"{swap.order}: {error}"]) from None
    return order


def under_way() -> dict[str, Any] | None:
    """The order of the swap that is not over; None when there is none, or it cannot be read."""
    swap = unfinished()
    if swap is None:
        return None
    with contextlib.suppress(KdeployError):
        return read_order(swap)
    return None


def refuse_in_swap(name: str) -> None:
    """Exit 4 when a swap that is not over decides about the deployment `name`."""
    order = under_way()
    if order is not None and name in (order["old"], order["new_plan"]["name"]):
        raise busy(order)


def busy(order: dict[str, Any]) -> KdeployError:
    """The refusal while a swap is under way."""
    holder = read_holder(lock_path())
    return refused(
        f"a swap is under way: {order['old']} -> {order['new_plan']['name']}",
        evidence=[f"{lock_path()}: held by pid {holder.get('pid', '?')} since {holder.get('since', '?')}"],
        fix=[
            "kdeploy swap   follows it to its end",
            f"kdeploy down --force {order['new_plan']['name']}   gives the new one up",
        ],
    )


def reserved_gpus() -> dict[str, str]:
    """GPU UUID -> whom it is kept for, of the swap that is not over: between two launches nobody leases them."""
    order = under_way()
    if order is None:
        return {}
    words = f"the swap {order['old']} -> {order['new_plan']['name']}"
    return {gpu["uuid"]: words for plan in ("new_plan", "old_plan") for gpu in order[plan]["gpus"]}


def reserved_ports() -> list[tuple[str, int]]:
    """(whom for, port) of the swap that is not over."""
    order = under_way()
    if order is None:
        return []
    return [(order[plan]["name"], int(order[plan]["port"])) for plan in ("new_plan", "old_plan")]
