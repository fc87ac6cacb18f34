"""Start the kernels: shapes in, output and LSE out. No host synchronisation, no shape that depends on data."""

import os

import torch

from . import kernels
from .chooser import LATENT, Launch, choose, workspace_slots
from .layouts import Cache

# The interpreter's bf16 products are not to be trusted; with it, everything is multiplied in fp32.
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def workspace_shapes(heads: int, sms: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the two fp32 buffers that hold split results for any batch: [slots, heads, 512] and [slots, heads]."""
    slots = workspace_slots(heads, sms)
    return (slots, heads, LATENT), (slots, heads)


def attend_lists(
    query: tuple[torch.Tensor, torch.Tensor],
    cache: Cache,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    softmax_scale: float,
    sms: int,
    workspace: tuple[torch.Tensor, torch.Tensor] | None = None,
    launch: Launch | None = None,
    expected: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sparse attention: every token over its own list of rows.

    query: latent part [tokens, heads, 512] and rotary part [tokens, heads, 64]. rows: int32 [tokens, width], a row is
    page * page_size + place; negative entries are no rows. lengths: int32 [tokens], entries of each list that count.
    expected: entries that a list has as a rule (a rank's share under context parallelism); the width if not given.
    Returns the output [tokens, heads, 512] in the query's type and the natural-log LSE [tokens, heads] in fp32; a token
    without rows gets 0 and -inf.
    """
    latent, _ = query
    if launch is None:
        launch = choose(latent.shape[0], latent.shape[1], expected or rows.shape[1], sms, cache.layout)
    return _run(query, cache, rows, lengths, softmax_scale, launch, workspace, kernels.LIST, 1, False)


def attend_pages(
    query: tuple[torch.Tensor, torch.Tensor],
    cache: Cache,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    softmax_scale: float,
    sms: int,
    longest: int,
    causal: bool = True,
    workspace: tuple[torch.Tensor, torch.Tensor] | None = None,
    launch: Launch | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Dense paged decode: the same number of query tokens for each request, the last ones of its sequence.

    block_table: int32 [requests, pages]. lengths: int32 [requests], with the query tokens. longest: an upper bound of
    them known without asking the GPU. Otherwise as `attend_lists`.
    """
    latent, _ = query
    requests = lengths.shape[0]
    query_len, rest = divmod(latent.shape[0], requests) if requests else (1, 0)
    if rest:
        raise ValueError(f"{latent.shape[0]} query tokens do not divide over {requests} requests")
    if launch is None:
        launch = choose(latent.shape[0], latent.shape[1], longest, sms, cache.layout)
    masked = causal and query_len > 1
    return _run(
        query, cache, block_table, lengths, softmax_scale, launch, workspace, kernels.PAGED, max(1, query_len), masked
    )


def locate(
    positions: torch.Tensor,
    request_of_token: torch.Tensor,
    block_table: torch.Tensor,
    page_size: int,
    ranks: int = 1,
    rank: int = 0,
    interleave: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions within a request [tokens, width] to this rank's rows: (rows int32 [tokens, width], lengths)."""
    tokens, width = positions.shape
    rows = torch.empty((tokens, width), dtype=torch.int32, device=positions.device)
    lengths = torch.empty(tokens, dtype=torch.int32, device=positions.device)
    if tokens:
        kernels.locate[(tokens,)](
            positions,
            request_of_token,
            block_table,
            rows,
            lengths,
            width,
            block_table.shape[1],
            page_size,
            positions.stride(0),
            block_table.stride(0),
            rows.stride(0),
            ranks,
            rank,
            interleave,
            BLOCK=1024,
            num_warps=4,
        )
    return rows, lengths


def _run(
    query: tuple[torch.Tensor, torch.Tensor],
    cache: Cache,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    softmax_scale: float,
    launch: Launch,
    workspace: tuple[torch.Tensor, torch.Tensor] | None,
    source: int,
    query_len: int,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    latent, rope = query
    tokens, heads, _ = latent.shape
    for name, part in (
        ("query", latent),
        ("rotary query", rope),
        ("cache", cache.latent),
        ("rotary cache", cache.rope),
    ):
        if part.stride(-1) != 1:
            raise ValueError(f"the {name}'s last dimension is not dense (strides {part.stride()})")
    out = torch.empty((tokens, heads, LATENT), dtype=latent.dtype, device=latent.device)
    lse = torch.empty((tokens, heads), dtype=torch.float32, device=latent.device)
    if tokens == 0:
        return out, lse
    config, splits = launch.config, launch.splits
    part, part_lse = out, lse
    if splits > 1:
        part, part_lse = _parts(tokens * splits, heads, latent.device, workspace)
    packed = cache.layout == "packed"
    scales = cache.scales if cache.scales is not None else cache.latent
    tensor_scale = cache.tensor_scale if cache.tensor_scale is not None else _one(latent.device)
    kernels.attend[(tokens * -(-heads // config.block_h), splits)](
        latent,
        rope,
        cache.latent,
        cache.rope,
        scales,
        tensor_scale,
        rows,
        lengths,
        out,
        lse,
        part,
        part_lse,
        softmax_scale,
        heads,
        splits,
        query_len,
        cache.page_size,
        rows.shape[1],
        latent.stride(0),
        latent.stride(1),
        rope.stride(0),
        rope.stride(1),
        cache.latent.stride(1),
        cache.latent.stride(0),
        cache.rope.stride(1),
        cache.rope.stride(0),
        scales.stride(1),
        scales.stride(0),
        rows.stride(0),
        out.stride(0),
        out.stride(1),
        SOURCE=source,
        LAYOUT=kernels.PACKED if packed else kernels.PLAIN,
        CAUSAL=causal,
        SPLIT=splits > 1,
        DOT_TYPE=_dot_type(latent.dtype),
        BLOCK_H=config.block_h,
        BLOCK_N=config.block_n,
        num_warps=config.warps,
        num_stages=config.stages,
    )
    if splits > 1:
        kernels.merge[(tokens, heads)](
            part, part_lse, out, lse, heads, splits, out.stride(0), out.stride(1), num_warps=4
        )
    return out, lse


def _dot_type(query: torch.dtype) -> object:
    import triton.language as tl

    if _INTERPRETED or query == torch.float32:
        return tl.float32
    return tl.float16 if query == torch.float16 else tl.bfloat16


def _parts(
    slots: int, heads: int, device: torch.device, workspace: tuple[torch.Tensor, torch.Tensor] | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `slots` of a reserved workspace, or a buffer of its own where there is none."""
    if workspace is None:
        parts = torch.empty((slots, heads, LATENT), dtype=torch.float32, device=device)
        return parts, torch.empty((slots, heads), dtype=torch.float32, device=device)
    if workspace[0].numel() < slots * heads * LATENT or workspace[1].numel() < slots * heads:
        raise ValueError(f"workspace of {workspace[1].numel()} results is too small for {slots} x {heads}")
    return workspace


_ONES: dict[torch.device, torch.Tensor] = {}


def _one(device: torch.device) -> torch.Tensor:
    """A scale of 1.0, made once for each device: a graph capture must not meet a copy from the host."""
    if device not in _ONES:
        _ONES[device] = torch.ones(1, dtype=torch.float32, device=device)
    return _ONES[device]
