"""Runs inside the real CPU engine's interpreter: vLLM's metadata through the backend classes.

Prints one JSON object. Started by tests/real/test_mla_backend.py.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "patches" / "sm120-mla"))

import torch
from sm120_mla import layouts, reference, register

SCALE, PAGE, HEADS = 0.1, 64, 8
MLA = {
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "qk_head_dim": 192,
    "v_head_dim": 128,
    "kv_b_proj": None,
}
COMMON: dict[str, Any] = {
    "num_heads": HEADS,
    "head_size": 576,
    "scale": SCALE,
    "num_kv_heads": 1,
    "alibi_slopes": None,
    "sliding_window": None,
    "logits_soft_cap": None,
    "attn_type": "decoder",
    "kv_sharing_target_layer_name": None,
}


def cache_of(kind: str, pages: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    values = torch.randn(pages, PAGE, layouts.ROW)
    if kind in ("fp8", "fp8_e4m3"):
        scale = torch.tensor(0.02)
        return (values / 0.02).clamp(-448, 448).to(torch.float8_e4m3fn), scale, float(scale)
    if kind == "fp8_ds_mla":
        return reference.pack(values, power_of_two=False), torch.tensor(1.0), 1.0
    return values.to(torch.bfloat16), torch.tensor(1.0), 1.0


def worst(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.to(torch.float64) - want).abs().max() / want.abs().max().clamp(min=1))


def sparse(kind: str, query_lens: list[int], decodes: int) -> dict[str, Any]:
    """One batch: requests of 100 to 160 cached positions, the first `decodes` of them decodes."""
    from sm120_mla.sparse import Sm120SparseImpl
    from vllm.model_executor.layers.attention.sparse_mla_attention import SparseMLACommonMetadata

    tokens, requests = sum(query_lens), len(query_lens)
    seq_lens = [100 + 20 * i for i in range(requests)]
    topk = torch.full((tokens + 3, 96), -1, dtype=torch.int32)
    request_of_token = torch.repeat_interleave(torch.arange(requests), torch.tensor(query_lens)).to(torch.int32)
    for t in range(tokens):
        chosen = torch.randperm(seq_lens[int(request_of_token[t])])[: 5 + 13 * t].to(torch.int32)[:96]
        topk[t, : len(chosen)] = chosen
    table = torch.randperm(requests * 3).to(torch.int32).reshape(requests, 3)
    cache, k_scale, scale = cache_of(kind, requests * 3)
    starts = torch.tensor([0, *torch.tensor(query_lens).cumsum(0).tolist()], dtype=torch.int32)
    metadata = SparseMLACommonMetadata(
        num_reqs=requests,
        max_query_len=max(query_lens),
        max_seq_len=max(seq_lens),
        num_actual_tokens=tokens,
        query_start_loc=starts,
        slot_mapping=torch.zeros(tokens, dtype=torch.int64),
        block_table=table,
        req_id_per_token=request_of_token,
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        block_size=PAGE,
        topk_tokens=96,
        num_decodes=decodes,
        num_prefills=requests - decodes,
        num_decode_tokens=sum(query_lens[:decodes]),
    )
    impl = Sm120SparseImpl(**COMMON, **MLA, kv_cache_dtype=kind, topk_indices_buffer=topk)
    query = torch.randn(tokens, HEADS, 576, dtype=torch.bfloat16)
    impl.need_to_return_lse_for_decode = True
    layer = SimpleNamespace(_k_scale=k_scale)
    out, lse = impl.forward_mqa((query[..., :512], query[..., 512:]), cache, metadata, layer)
    joined, _ = impl.forward_mqa(query, cache, metadata, layer)
    assert lse is not None
    assert torch.equal(out, joined)
    rows = [
        [int(table[request_of_token[t], p // PAGE]) * PAGE + p % PAGE for p in topk[t].tolist() if p >= 0]
        for t in range(tokens)
    ]
    want, want_lse = reference.attend(query, cache, rows, SCALE, scale)
    return {"out": worst(out, want), "lse": worst(lse, want_lse), "shape": list(out.shape), "lse_type": str(lse.dtype)}


def dense(kind: str) -> dict[str, Any]:
    from sm120_mla.dense import Sm120DenseImpl
    from vllm.model_executor.layers.attention.mla_attention import MLACommonDecodeMetadata, MLACommonMetadata

    seq_lens = torch.tensor([1, 70, 150], dtype=torch.int32)
    table = torch.randperm(9).to(torch.int32).reshape(3, 3)
    cache, k_scale, scale = cache_of(kind, 9)
    metadata: Any = MLACommonMetadata(
        num_reqs=3,
        max_query_len=1,
        max_seq_len=150,
        num_actual_tokens=3,
        query_start_loc=torch.arange(4, dtype=torch.int32),
        slot_mapping=torch.zeros(3, dtype=torch.int64),
        num_decodes=3,
        num_decode_tokens=3,
        num_prefills=0,
        decode=MLACommonDecodeMetadata(block_table=table, seq_lens=seq_lens, dcp_tot_seq_lens=None),
    )
    impl = object.__new__(Sm120DenseImpl)
    impl.dcp_world_size = 1
    impl.kv_cache_dtype, impl.scale = kind, SCALE
    query = torch.randn(3, HEADS, 576, dtype=torch.bfloat16)
    out, lse = impl.forward_mqa(query, cache, metadata, SimpleNamespace(_k_scale=k_scale))
    rows = [[int(table[r, p // PAGE]) * PAGE + p % PAGE for p in range(int(n))] for r, n in enumerate(seq_lens)]
    want, want_lse = reference.attend(query, cache, rows, SCALE, scale)
    return {"out": worst(out, want), "lse": worst(lse, want_lse), "shape": list(out.shape), "lse_type": str(lse.dtype)}


def refusals() -> dict[str, Any]:
    """What the sparse backend answers to vLLM's own validation."""
    from sm120_mla.sparse import Sm120SparseBackend
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.platforms.interface import DeviceCapability

    def ask(**changes: Any) -> list[str]:
        question: dict[str, Any] = {
            "head_size": 576,
            "dtype": torch.bfloat16,
            "kv_cache_dtype": "fp8",
            "block_size": 64,
            "use_mla": True,
            "has_sink": False,
            "use_sparse": True,
            "use_mm_prefix": False,
            "use_per_head_quant_scales": False,
            "device_capability": DeviceCapability(12, 0),
            "attn_type": "decoder",
            "use_dcp": True,
        }
        return Sm120SparseBackend.validate_configuration(**(question | changes))

    with set_current_vllm_config(VllmConfig()):
        return {
            "sm120 with fp8 and context parallelism": ask(),
            "bf16": ask(kv_cache_dtype="auto"),
            "packed": ask(kv_cache_dtype="fp8_ds_mla"),
            "capability 8.0": ask(device_capability=DeviceCapability(8, 0)),
            "dense model": ask(use_sparse=False),
            "another head": ask(head_size=512),
            "pcp": ask(use_pcp=True),
            "batch invariance": ask(use_batch_invariant=True),
        }


def built(**changes: Any) -> str:
    """What the sparse layer says against being built so; empty when it is built."""
    from sm120_mla.sparse import Sm120SparseImpl

    buffer = torch.zeros(1, 96, dtype=torch.int32)
    arguments = {**COMMON, **MLA, "kv_cache_dtype": "bfloat16", "topk_indices_buffer": buffer, **changes}
    try:
        Sm120SparseImpl(**arguments)
    except NotImplementedError as error:
        return str(error)
    return ""


def registered() -> dict[str, str]:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    register.register()
    register.register()
    return {name: AttentionBackendEnum[name].get_path() for name in ("CUSTOM", "TRITON_MLA")}


def main() -> None:
    from vllm.config import VllmConfig, set_current_vllm_config

    torch.manual_seed(0)
    answers: dict[str, Any] = {"registered": registered(), "refusals": refusals(), "sparse": {}, "dense": {}}
    batches = {"decode": ([1, 1, 1], 3), "speculative": ([2, 2], 2), "prefill": ([7], 0), "mixed": ([1, 1, 6], 2)}
    # the base class asks the tensor-parallel group for its size; one process is a group of one
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    import tempfile

    from vllm.distributed import parallel_state

    with set_current_vllm_config(VllmConfig()), tempfile.TemporaryDirectory() as folder:
        parallel_state.init_distributed_environment(1, 0, f"file://{folder}/meet", 0, "gloo")
        parallel_state.initialize_model_parallel(1)
        for kind in ("bfloat16", "fp8", "fp8_ds_mla"):
            for name, (lens, decodes) in batches.items():
                answers["sparse"][f"{kind} {name}"] = sparse(kind, lens, decodes)
        answers["built"] = {
            "as it is": built(),
            "alibi": built(alibi_slopes=[1.0]),
            "window": built(sliding_window=4096),
            "encoder": built(attn_type="encoder"),
            "rank": built(kv_lora_rank=256),
            "no buffer": built(topk_indices_buffer=None),
        }
        for kind in ("bfloat16", "fp8"):
            answers["dense"][kind] = dense(kind)
        parallel_state.destroy_model_parallel()
        parallel_state.destroy_distributed_environment()
    print("ANSWER " + json.dumps(answers))


if __name__ == "__main__":
    main()
