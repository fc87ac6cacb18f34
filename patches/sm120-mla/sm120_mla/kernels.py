"""Device code: attention over selected rows of a latent KV cache, and the merge of split results.

A latent row is 512 latent values and 64 rotary values. Every query head of a token reads the same rows, scores with all
576 values and sums up the first 512. One program of stage 1 takes one query token, `BLOCK_H` of its heads and one split
of its row list; stage 2 merges the splits by their log-sum-exp.

The 512 latent columns are worked on as four groups of 128. The packed cache has one scale for each group and row, so a
group's scale multiplies the scores of that group, and the probabilities before they meet that group's values; the fp8
numbers themselves are exact in bf16. The tile of a group serves as key and as value, so a row is read once.
"""

import triton
import triton.language as tl

LATENT = 512
ROPE = 64
GROUP = 128

# How the rows of a token are found.
LIST = tl.constexpr(0)  # its own list of physical rows, -1 for "no row"
PAGED = tl.constexpr(1)  # the positions of its request, through a block table

# What a row looks like.
PLAIN = tl.constexpr(0)  # 576 values of one type (bf16, fp16, or fp8 with one scale for the whole cache)
PACKED = tl.constexpr(1)  # 656 bytes: 512 fp8, 4 fp32 scales, 64 bf16

_LOG2E = tl.constexpr(1.4426950408889634)
_LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _group_scores(query, tile, scores, scale, SCALED: tl.constexpr):
    """Add one group's part of the scores: query [H, 128] times tile [N, 128], and the row scales [N] if it has them."""
    part = tl.dot(query, tl.trans(tile), input_precision="ieee")
    if SCALED:
        part = part * scale[None, :]
    return scores + part


@triton.jit
def _group_values(probability, tile, total, keep, scale, SCALED: tl.constexpr):
    """Rescale one group's running sum [H, 128] by `keep` [H] and add probability [H, N] times tile [N, 128]."""
    if SCALED:
        probability = probability * scale[None, :]
    return total * keep[:, None] + tl.dot(probability.to(tile.dtype), tile, input_precision="ieee")


@triton.jit
def attend(
    q_latent,  # [tokens, heads, 512]
    q_rope,  # [tokens, heads, 64]
    cache,  # latent part of the cache: first element of row 0
    cache_rope,  # rotary part: first element of row 0 (may be of another type than the latent part)
    cache_scales,  # PACKED: fp32, the four group scales of row 0
    tensor_scale,  # fp32 [1]: scale of the whole cache (1.0 where it has none)
    rows,  # LIST: int32 [tokens, width]; PAGED: block table int32 [requests, pages]
    lengths,  # int32: LIST: entries of each token's list [tokens]; PAGED: sequence lengths [requests]
    out,  # [tokens, heads, 512] in the query's type: written where there is one split
    out_lse,  # fp32 [tokens, heads]: natural logarithm; -inf for a token without rows
    part,  # fp32 [tokens, splits, heads, 512]: written where there are several
    part_lse,  # fp32 [tokens, splits, heads]
    softmax_scale,
    heads,
    splits,
    query_len,  # PAGED: query tokens of each request
    page_size,
    pages,  # PAGED: width of the block table
    q_latent_token,
    q_latent_head,
    q_rope_token,
    q_rope_head,
    row_stride,  # elements between two rows of a page, for the latent part
    page_stride,  # elements between two pages
    rope_row_stride,
    rope_page_stride,
    scales_row_stride,
    scales_page_stride,
    rows_stride,
    out_token,
    out_head,
    SOURCE: tl.constexpr,
    LAYOUT: tl.constexpr,
    CAUSAL: tl.constexpr,
    SPLIT: tl.constexpr,
    DOT_TYPE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Stage 1. Grid: (tokens * ceil(heads / BLOCK_H), splits)."""
    blocks_of_heads = tl.cdiv(heads, BLOCK_H)
    token = (tl.program_id(0) // blocks_of_heads).to(tl.int64)
    head = (tl.program_id(0) % blocks_of_heads) * BLOCK_H + tl.arange(0, BLOCK_H)
    split = tl.program_id(1)
    head_here = head < heads
    column = tl.arange(0, 128)
    rope_column = tl.arange(0, 64)

    if SOURCE == LIST:
        length = tl.load(lengths + token)
        list_start = rows + token * rows_stride
    else:
        request = token // query_len
        length = tl.load(lengths + request)
        if CAUSAL:
            # query token i of a request's last query_len tokens sees everything up to itself
            length = length - (query_len - 1 - (token % query_len).to(tl.int32))
        list_start = rows + request * rows_stride
    length = tl.maximum(length, 0)

    # every split gets the same number of whole blocks, so that a short list is shared out as evenly as a long one
    blocks_each = tl.cdiv(tl.cdiv(length, BLOCK_N), splits)
    start = split * blocks_each * BLOCK_N
    end = tl.minimum(start + blocks_each * BLOCK_N, length)

    q_at = q_latent + token * q_latent_token + head[:, None] * q_latent_head + column[None, :]
    q0 = tl.load(q_at, mask=head_here[:, None], other=0.0).to(DOT_TYPE)
    q1 = tl.load(q_at + 128, mask=head_here[:, None], other=0.0).to(DOT_TYPE)
    q2 = tl.load(q_at + 256, mask=head_here[:, None], other=0.0).to(DOT_TYPE)
    q3 = tl.load(q_at + 384, mask=head_here[:, None], other=0.0).to(DOT_TYPE)
    qr_at = q_rope + token * q_rope_token + head[:, None] * q_rope_head + rope_column[None, :]
    qr = tl.load(qr_at, mask=head_here[:, None], other=0.0).to(DOT_TYPE)

    whole = tl.load(tensor_scale)
    score_scale = softmax_scale * _LOG2E
    if LAYOUT == PLAIN:
        score_scale = score_scale * whole

    best = tl.full([BLOCK_H], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    sum0 = tl.zeros([BLOCK_H, 128], tl.float32)
    sum1 = tl.zeros([BLOCK_H, 128], tl.float32)
    sum2 = tl.zeros([BLOCK_H, 128], tl.float32)
    sum3 = tl.zeros([BLOCK_H, 128], tl.float32)

    for first in range(start, end, BLOCK_N):
        position = first + tl.arange(0, BLOCK_N)
        here = position < end
        if SOURCE == LIST:
            row = tl.load(list_start + position, mask=here, other=-1)
            here = row >= 0
            page = (row // page_size).to(tl.int64)
            inside = row % page_size
        else:
            # a table that is too short hides rows instead of reading behind it
            here = here & (position < pages * page_size)
            page = tl.load(list_start + position // page_size, mask=here, other=0).to(tl.int64)
            inside = position % page_size

        at = cache + page[:, None] * page_stride + inside[:, None] * row_stride + column[None, :]
        k0 = tl.load(at, mask=here[:, None], other=0.0).to(DOT_TYPE)
        k1 = tl.load(at + 128, mask=here[:, None], other=0.0).to(DOT_TYPE)
        k2 = tl.load(at + 256, mask=here[:, None], other=0.0).to(DOT_TYPE)
        k3 = tl.load(at + 384, mask=here[:, None], other=0.0).to(DOT_TYPE)
        rope_at = cache_rope + page[:, None] * rope_page_stride + inside[:, None] * rope_row_stride
        kr = tl.load(rope_at + rope_column[None, :], mask=here[:, None], other=0.0).to(DOT_TYPE)
        if LAYOUT == PACKED:
            scales_at = cache_scales + page * scales_page_stride + inside * scales_row_stride
            s0 = tl.load(scales_at, mask=here, other=0.0)
            s1 = tl.load(scales_at + 1, mask=here, other=0.0)
            s2 = tl.load(scales_at + 2, mask=here, other=0.0)
            s3 = tl.load(scales_at + 3, mask=here, other=0.0)
        else:
            s0 = 0.0
            s1 = 0.0
            s2 = 0.0
            s3 = 0.0

        SCALED: tl.constexpr = LAYOUT == PACKED
        score = tl.dot(qr, tl.trans(kr), input_precision="ieee")
        score = _group_scores(q0, k0, score, s0, SCALED)
        score = _group_scores(q1, k1, score, s1, SCALED)
        score = _group_scores(q2, k2, score, s2, SCALED)
        score = _group_scores(q3, k3, score, s3, SCALED)
        score = tl.where(here[None, :], score * score_scale, float("-inf"))

        higher = tl.maximum(best, tl.max(score, 1))
        # no row so far: subtract 0, so that exp2(-inf - 0) is 0 instead of exp2(-inf + inf)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        keep = tl.exp2(best - base)
        probability = tl.exp2(score - base[:, None])
        total = total * keep + tl.sum(probability, 1)
        best = higher
        sum0 = _group_values(probability, k0, sum0, keep, s0, SCALED)
        sum1 = _group_values(probability, k1, sum1, keep, s1, SCALED)
        sum2 = _group_values(probability, k2, sum2, keep, s2, SCALED)
        sum3 = _group_values(probability, k3, sum3, keep, s3, SCALED)

    none = total == 0.0
    lse = tl.where(none, float("-inf"), best * _LN2 + tl.log(tl.where(none, 1.0, total)))
    weight = 1.0 / tl.where(none, 1.0, total)
    if LAYOUT == PLAIN:
        weight = weight * whole

    if SPLIT:
        slot = token * splits + split
        part_at = part + (slot * heads + head[:, None]) * 512 + column[None, :]
        tl.store(part_lse + slot * heads + head, lse, mask=head_here)
        tl.store(part_at, sum0 * weight[:, None], mask=head_here[:, None])
        tl.store(part_at + 128, sum1 * weight[:, None], mask=head_here[:, None])
        tl.store(part_at + 256, sum2 * weight[:, None], mask=head_here[:, None])
        tl.store(part_at + 384, sum3 * weight[:, None], mask=head_here[:, None])
    else:
        out_at = out + token * out_token + head[:, None] * out_head + column[None, :]
        kind = out.dtype.element_ty
        tl.store(out_lse + token * heads + head, lse, mask=head_here)
        tl.store(out_at, (sum0 * weight[:, None]).to(kind), mask=head_here[:, None])
        tl.store(out_at + 128, (sum1 * weight[:, None]).to(kind), mask=head_here[:, None])
        tl.store(out_at + 256, (sum2 * weight[:, None]).to(kind), mask=head_here[:, None])
        tl.store(out_at + 384, (sum3 * weight[:, None]).to(kind), mask=head_here[:, None])


@triton.jit
def merge(
    part,  # fp32 [tokens, splits, heads, 512]
    part_lse,  # fp32 [tokens, splits, heads]
    out,
    out_lse,
    heads,
    splits,
    out_token,
    out_head,
):
    """Stage 2: weigh every split by exp(its LSE) and normalise. Grid: (tokens, heads)."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    column = tl.arange(0, 512)
    best = float("-inf")
    total = 0.0
    result = tl.zeros([512], tl.float32)
    for split in range(splits):
        slot = (token * splits + split) * heads + head
        lse = tl.load(part_lse + slot)
        value = tl.load(part + slot * 512 + column)
        higher = tl.maximum(best, lse)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        keep = tl.exp(best - base)
        weight = tl.exp(lse - base)
        result = result * keep + value * weight
        total = total * keep + weight
        best = higher
    none = total == 0.0
    safe = tl.where(none, 1.0, total)
    tl.store(out_lse + token * heads + head, tl.where(none, float("-inf"), best + tl.log(safe)))
    at = out + token * out_token + head * out_head + column
    tl.store(at, (result / safe).to(out.dtype.element_ty))


@triton.jit
def locate(
    positions,  # int32 [tokens, width]: positions within the token's request, -1 for none
    request_of_token,  # int32 [tokens]
    block_table,  # int32 [requests, pages]
    rows,  # int32 [tokens, width]: physical rows (page * page_size + place), packed to the front
    lengths,  # int32 [tokens]: how many rows; what lies behind them is not read
    width,
    pages,
    page_size,
    positions_stride,
    table_stride,
    rows_stride,
    ranks,  # decode context parallelism: number of ranks that share a cache
    rank,
    interleave,  # consecutive positions that lie on one rank
    BLOCK: tl.constexpr,
):
    """Turn the indexer's positions into rows of this rank's cache, the rows of other ranks left out. Grid: (tokens,).

    The rows are packed to the front, so that the splits of `attend` share out what this rank holds, not what it lacks.
    """
    token = tl.program_id(0).to(tl.int64)
    request = tl.load(request_of_token + token).to(tl.int64)
    found = 0
    for first in range(0, width, BLOCK):
        slot = first + tl.arange(0, BLOCK)
        position = tl.load(positions + token * positions_stride + slot, mask=slot < width, other=-1)
        mine = (position >= 0) & ((position // interleave) % ranks == rank)
        local = position // (ranks * interleave) * interleave + position % interleave
        page = local // page_size
        mine = mine & (page < pages)
        block = tl.load(block_table + request * table_stride + page, mask=mine, other=0)
        target = found + tl.cumsum(mine.to(tl.int32), 0) - 1
        tl.store(rows + token * rows_stride + target, block * page_size + local % page_size, mask=mine)
        found += tl.sum(mine.to(tl.int32), 0)
    tl.store(lengths + token, found)
