"""Runs inside an interpreter with torch and triton: answers questions about the MLA kernels, one JSON line each.

Started by tests/real/test_mla_kernels.py, which makes up the cases and holds the answers against the reference.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "patches" / "sm120-mla"))

import torch
from sm120_mla import attention, layouts, reference
from sm120_mla.chooser import Launch, config_for

SCALE = 0.1


def make_cache(case: dict[str, Any], pages: int) -> tuple[torch.Tensor, torch.Tensor | None, float]:
    """A cache of the case's layout with room between its pages, and its scale twice (kernel, reference)."""
    values = torch.randn(pages, case["page_size"], layouts.ROW) * case["magnitude"]
    scale, tensor_scale = 1.0, None
    if case["layout"] == "fp8":
        scale = max(float(values.abs().max()) / 448, 1e-6)
        values, tensor_scale = (values / scale).to(torch.float8_e4m3fn), torch.tensor([scale])
        scale = float(tensor_scale[0])
    elif case["layout"] == "bf16":
        values = values.to(torch.bfloat16)
    else:
        values = reference.pack(values, power_of_two=case["layout"] == "packed-pow2")
    # pages of another layer lie between ours, and hold what must never be read
    gap = case["page_gap"]
    poison = torch.full((pages, gap + 1, *values.shape[1:]), 255, dtype=torch.uint8)
    storage = values.view(torch.uint8) if values.dtype == torch.float8_e4m3fn else values
    holder = poison.view(torch.float8_e4m3fn).to(values.dtype) if values.dtype == torch.bfloat16 else poison
    holder = holder.clone()
    holder[:, 0] = storage
    cache = holder[:, 0]
    return (cache.view(torch.float8_e4m3fn) if case["layout"] == "fp8" else cache), tensor_scale, scale


def compare(got: tuple[torch.Tensor, torch.Tensor], want: tuple[torch.Tensor, torch.Tensor]) -> dict[str, Any]:
    finite = torch.isfinite(want[1])
    size = float(want[0].abs().max()) or 1.0
    return {
        "out": float((got[0].to(torch.float64) - want[0]).abs().max()) / max(size, 1.0),
        "lse": float((got[1].to(torch.float64) - want[1])[finite].abs().max()) if bool(finite.any()) else 0.0,
        "lse_size": float(want[1][finite].abs().max()) if bool(finite.any()) else 0.0,
        "empty_agree": bool(torch.equal(torch.isneginf(got[1]), torch.isneginf(want[1]))),
        "finite": bool(torch.isfinite(got[0]).all()),
    }


def lists(case: dict[str, Any]) -> dict[str, Any]:
    pages = case["pages"]
    cache, tensor_scale, scale = make_cache(case, pages)
    query = torch.randn(case["tokens"], case["heads"], layouts.ROW) * case["query_magnitude"]
    count = pages * case["page_size"]
    rows = torch.randint(0, count, (case["tokens"], case["width"]), dtype=torch.int32)
    rows[torch.rand(rows.shape) < case["holes"]] = -1
    lengths = torch.tensor([min(n, case["width"]) for n in case["lengths"]][: case["tokens"]], dtype=torch.int32)
    view = layouts.view(cache, tensor_scale)
    launch = Launch(config_for(case["heads"], view.layout), case["splits"])
    parts = (query[..., : layouts.LATENT], query[..., layouts.LATENT :])
    got = attention.attend_lists(parts, view, rows, lengths, SCALE, 188, launch=launch)
    want = reference.attend(query, cache, [r[:n].tolist() for r, n in zip(rows, lengths, strict=True)], SCALE, scale)
    return compare(got, want)


def paged(case: dict[str, Any]) -> dict[str, Any]:
    requests, query_len, size = case["requests"], case["query_len"], case["page_size"]
    lengths = [max(n, query_len) for n in case["lengths"][:requests]]
    each = -(-max(lengths) // size)
    cache, tensor_scale, scale = make_cache(case, requests * each + 1)
    table = torch.randperm(requests * each).to(torch.int32).reshape(requests, each)
    query = torch.randn(requests * query_len, case["heads"], layouts.ROW) * case["query_magnitude"]
    view = layouts.view(cache, tensor_scale)
    config = config_for(case["heads"], view.layout)
    # the interpreter takes a while for each step: a long cache is walked in long ones
    launch = Launch(replace(config, block_n=case.get("block_n", config.block_n)), case["splits"])
    parts = (query[..., : layouts.LATENT], query[..., layouts.LATENT :])
    seen = torch.tensor(lengths, dtype=torch.int32)
    got = attention.attend_pages(parts, view, table, seen, SCALE, 188, max(lengths), True, launch=launch)
    rows = []
    for request, length in enumerate(lengths):
        for token in range(query_len):
            end = length - (query_len - 1 - token)
            rows.append([int(table[request, p // size]) * size + p % size for p in range(end)])
    return compare(got, reference.attend(query, cache, rows, SCALE, scale))


def context_parallel(case: dict[str, Any]) -> dict[str, Any]:
    """Positions interleaved over ranks, each rank with a cache of its own; merged, against one rank that has all."""
    ranks, interleave, size, length = case["ranks"], case["interleave"], case["page_size"], case["length"]
    values = torch.randn(length, layouts.ROW).to(torch.bfloat16)
    tokens, heads = 2, case["heads"]
    query = torch.randn(tokens, heads, layouts.ROW)
    parts = (query[..., : layouts.LATENT], query[..., layouts.LATENT :])
    topk = torch.full((tokens, case["width"]), -1, dtype=torch.int32)
    for token in range(tokens):
        chosen = torch.randperm(length)[: case["width"]].to(torch.int32)
        topk[token, : len(chosen)] = chosen
    request_of_token = torch.zeros(tokens, dtype=torch.int32)
    outputs, lses = [], []
    for rank in range(ranks):
        mine = [p for p in range(length) if p // interleave % ranks == rank]
        pages = max(1, -(-len(mine) // size))
        cache = torch.zeros(pages, size, layouts.ROW, dtype=torch.bfloat16)
        table = torch.randperm(pages).to(torch.int32)[None]
        for local, position in enumerate(mine):
            cache[int(table[0, local // size]), local % size] = values[position]
        rows, lengths = attention.locate(topk, request_of_token, table, size, ranks, rank, interleave)
        out, lse = attention.attend_lists(parts, layouts.view(cache), rows, lengths, SCALE, 188, expected=16)
        outputs.append(out)
        lses.append(lse)
    want = reference.attend(query, values[None], [t.tolist() for t in topk], SCALE)
    return compare(reference.merge(outputs, lses), want)


def writer(case: dict[str, Any]) -> dict[str, Any]:
    """Our packed rows against the ones that vLLM's own quantisation op writes, where the installed wheel has one."""
    import vllm._custom_ops as ops

    values = torch.randn(8, layouts.ROW, dtype=torch.bfloat16)
    cache = torch.zeros(1, 16, layouts.ROW, dtype=torch.uint8)
    slots = torch.arange(8)
    scale = torch.tensor(0.05)
    try:
        ops.concat_and_cache_mla(values[:, :512], values[:, 512:], cache, slots, kv_cache_dtype="fp8", scale=scale)
    except (NotImplementedError, RuntimeError, AttributeError) as failure:
        return {"absent": str(failure).splitlines()[0][:200]}
    want = (values.float() / 0.05).clamp(-448, 448).to(torch.float8_e4m3fn).float()
    return {"worst": float((cache.view(torch.float8_e4m3fn)[0, :8].float() - want).abs().max())}


ANSWERS = {"lists": lists, "paged": paged, "context_parallel": context_parallel, "writer": writer}

if __name__ == "__main__":
    for line in sys.stdin:
        case = json.loads(line)
        torch.manual_seed(case.get("seed", 0))
        print(json.dumps(ANSWERS[case["kind"]](case)), flush=True)
