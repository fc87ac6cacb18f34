"""Bad peer access for the all-reduce test: on PYTHONPATH of an interpreter with torch, it bends all_reduce.

PLANT=wrong: the last value of each sum of 64 KiB and more is one too large on rank 1. PLANT=hang: such an all-reduce
never returns on rank 1. As with real bad peer access, NCCL_P2P_DISABLE=1 cures both.
"""

import builtins
import os
import sys
import time
from typing import Any

PLANT = os.environ.get("PLANT") if os.environ.get("NCCL_P2P_DISABLE") != "1" else None
THRESHOLD = 64 << 10
real_import = builtins.__import__


def planted(name, *args, **kwargs):  # type: ignore[no-untyped-def]
    """Import as ever, and bend all_reduce once torch.distributed is whole."""
    module = real_import(name, *args, **kwargs)
    distributed: Any = sys.modules.get("torch.distributed")
    if hasattr(distributed, "all_reduce") and not hasattr(distributed, "planted"):
        real = distributed.all_reduce
        distributed.planted = True

        def all_reduce(tensor, *args, **kwargs):  # type: ignore[no-untyped-def]
            large = tensor.numel() * tensor.element_size() >= THRESHOLD and distributed.get_rank() == 1
            if large and PLANT == "hang":
                time.sleep(3600)
            outcome = real(tensor, *args, **kwargs)
            if large:
                tensor[-1] += 1
            return outcome

        distributed.all_reduce = all_reduce
    return module


if PLANT:
    builtins.__import__ = planted
