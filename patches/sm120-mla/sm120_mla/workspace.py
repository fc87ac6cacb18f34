"""The buffer for split results: one for each device, made before the first CUDA graph and never moved."""

import torch

from .attention import workspace_shapes
from .chooser import workspace_slots

# what the chooser assumes where there is no GPU (tests): a full RTX PRO 6000
SMS_ASSUMED = 188

_BUFFERS: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}
_SMS: dict[torch.device, int] = {}


def multiprocessors(device: torch.device) -> int:
    """SM count of a device, asked once (the question costs microseconds, each layer and step would ask it)."""
    if device not in _SMS:
        cuda = device.type == "cuda"
        _SMS[device] = torch.cuda.get_device_properties(device).multi_processor_count if cuda else SMS_ASSUMED
    return _SMS[device]


def reserve(device: torch.device, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The buffer for `heads` query heads, grown for a layer with more of them (in the builder).

    A graph keeps the address that it was captured with, so growing keeps no promise to graphs captured before.
    """
    have = _BUFFERS.get(device)
    slots = workspace_slots(heads, multiprocessors(device))
    if have is None or have[1].numel() < slots * heads:
        parts, lses = workspace_shapes(heads, multiprocessors(device))
        have = (
            torch.empty(parts, dtype=torch.float32, device=device),
            torch.empty(lses, dtype=torch.float32, device=device),
        )
        _BUFFERS[device] = have
    return have
