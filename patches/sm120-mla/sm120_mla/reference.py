"""The plain answer, in fp64 and without blocks or splits. Nothing here is shared with the kernels."""

import math
from collections.abc import Sequence

import torch

from .layouts import GROUP, LATENT, PACKED_BYTES, ROPE


def read_rows(cache: torch.Tensor, rows: Sequence[int], scale: float = 1.0) -> torch.Tensor:
    """Rows (page * page_size + place) of a cache [pages, page_size, width] as fp64 [n, 576], by definition."""
    index = torch.tensor([r for r in rows if r >= 0], dtype=torch.int64)
    page_size, width = cache.shape[1:]
    found = cache.view(torch.uint8) if cache.element_size() == 1 else cache
    found = found[index // page_size, index % page_size]
    if width == PACKED_BYTES:
        latent = found[:, :LATENT].contiguous().view(torch.float8_e4m3fn).to(torch.float64)
        scales = found[:, LATENT : LATENT + 16].contiguous().view(torch.float32).to(torch.float64)
        rope = found[:, LATENT + 16 :].contiguous().view(torch.bfloat16).to(torch.float64)
        return torch.cat([latent * scales.repeat_interleave(GROUP, 1), rope], 1)
    return found.view(cache.dtype).to(torch.float64) * scale


def attend_rows(query: torch.Tensor, rows: torch.Tensor, softmax_scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """query [heads, 576] over rows [n, 576], both fp64: (output [heads, 512], natural-log LSE [heads])."""
    heads = query.shape[0]
    if rows.shape[0] == 0:
        return query.new_zeros(heads, LATENT), query.new_full((heads,), -math.inf)
    scores = query @ rows.T * softmax_scale
    return torch.softmax(scores, -1) @ rows[:, :LATENT], torch.logsumexp(scores, -1)


def attend(
    query: torch.Tensor, cache: torch.Tensor, rows: Sequence[Sequence[int]], softmax_scale: float, scale: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """query [tokens, heads, 576]; rows: each token's rows (page * page_size + place), negatives skipped."""
    outputs, lses = [], []
    for token, chosen in enumerate(rows):
        output, lse = attend_rows(query[token].to(torch.float64), read_rows(cache, chosen, scale), softmax_scale)
        outputs.append(output)
        lses.append(lse)
    return torch.stack(outputs), torch.stack(lses)


def merge(outputs: Sequence[torch.Tensor], lses: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge the answers of several parts [tokens, heads, 512] by their LSE [tokens, heads]."""
    lse = torch.stack(list(lses)).to(torch.float64)
    total = torch.logsumexp(lse, 0)
    weights = torch.where(torch.isneginf(lse), torch.zeros_like(lse), torch.exp(lse - total))
    return (torch.stack(list(outputs)).to(torch.float64) * weights[..., None]).sum(0), total


def pack(values: torch.Tensor, power_of_two: bool) -> torch.Tensor:
    """Write rows [..., 576] in the packed layout, [..., 656] uint8. power_of_two: round each scale up to one."""
    groups = values[..., :LATENT].to(torch.float32).unflatten(-1, (LATENT // GROUP, GROUP))
    scales = (groups.abs().amax(-1) / 448.0).clamp(min=1e-10)
    if power_of_two:
        scales = torch.exp2(torch.ceil(torch.log2(scales)))
    latent = (groups / scales[..., None]).clamp(-448, 448).to(torch.float8_e4m3fn).flatten(-2)
    rope = values[..., LATENT:].to(torch.bfloat16).contiguous()
    assert rope.shape[-1] == ROPE
    return torch.cat([latent.view(torch.uint8), scales.contiguous().view(torch.uint8), rope.view(torch.uint8)], -1)
