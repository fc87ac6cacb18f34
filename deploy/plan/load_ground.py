"""What a load will find: how much of the weights is in memory, the filesystem, the disk's rate, memory, the past."""

import os
from collections.abc import Sequence

from deploy.checkpoint.weights import WeightFile
from deploy.host.memory import memory
from deploy.host.pagecache import resident_share
from deploy.host.storage import probe_rate, storage
from deploy.plan.strategy import SMALL, Ground
from deploy.store import load_memory


def ground_of(folder: str, weights: Sequence[WeightFile], *, probe: bool) -> Ground | None:
    """The ground under the weight files in `folder`; None when they cannot be looked at. `probe`: the disk may be
    measured for half a second, once for each disk."""
    files = [(os.path.join(folder, file.name), file.size) for file in weights]
    if not files:
        return None
    try:
        resident = resident_share(files)
        disk = storage(files[0][0])
    except OSError:
        return None
    rate = load_memory.disk_rate(disk.device)
    if rate is None and probe and resident < 0.5 and sum(size for _, size in files) > 16 * SMALL:
        rate = probe_rate(files, limit_s=0.5)
        if rate is not None:
            load_memory.note_disk_rate(disk.device, rate)
    return Ground(
        folder=folder,
        filesystem=disk.kind,
        network=disk.network,
        available=memory().available,
        resident=resident,
        probe=rate,
        crashed=load_memory.crashed(folder),
        measured=load_memory.rates(folder),
    )
