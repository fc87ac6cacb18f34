"""Dense MLA (Kimi) over TRITON_MLA, for vLLM versions whose own lacks an fp8 cache or splits that follow the GPU.

0.15.1 refuses an fp8 cache and cuts every context in four; 0.19.1 takes fp8 and still cuts in four. What is replaced is
the decode; prefill, metadata and everything around stay the installed version's. Interfaces read in the wheels of
0.15.1, 0.19.1 and 0.33.0: they differ in the name of the decode method, and both names are here.
"""

from typing import Any, ClassVar

import torch
from vllm.model_executor.layers.attention.mla_attention import (
    MLACommonImpl,
    MLACommonMetadata,
    MLACommonMetadataBuilder,
)
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends.mla.triton_mla import TritonMLABackend

from . import attention, layouts, workspace
from .bounds import Bounded


class Sm120DenseBuilder(MLACommonMetadataBuilder[MLACommonMetadata]):
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        workspace.reserve(device, self.num_heads * self.dcp_world_size)


class Sm120DenseBackend(TritonMLABackend):
    """TRITON_MLA's place and name; takes fp8 caches in every version."""

    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "bfloat16", "fp8", "fp8_e4m3"]

    @staticmethod
    def get_impl_cls() -> type["Sm120DenseImpl"]:
        return Sm120DenseImpl

    @staticmethod
    def get_builder_cls() -> type[Sm120DenseBuilder]:
        return Sm120DenseBuilder

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [layouts.ROW]

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return bool(capability.major in (9, 10, 12))

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return False  # the number of splits follows the batch

    @classmethod
    def supports_non_causal(cls) -> bool:
        return False


class Sm120DenseImpl(Bounded, MLACommonImpl[MLACommonMetadata]):
    can_return_lse_for_decode: bool = True
    supports_dcp: bool = True

    def forward_mqa(
        self, q: Any, kv_c_and_k_pe_cache: torch.Tensor, attn_metadata: MLACommonMetadata, layer: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """q: [tokens, heads, 576] or its two parts; cache [pages, page_size, 576]. Returns output and LSE."""
        decode = attn_metadata.decode
        assert decode is not None
        if not isinstance(q, tuple) and q.dtype == torch.float8_e4m3fn:
            # 0.15 quantises the query with an fp8 cache, whether the backend wants it or not
            q = q.to(torch.bfloat16) * layer._q_scale.to(torch.bfloat16)
        query = q if isinstance(q, tuple) else (q[..., : layouts.LATENT], q[..., layouts.LATENT :])
        tokens, heads = query[0].shape[:2]
        if tokens != decode.seq_lens.shape[0] and self.dcp_world_size > 1:
            raise NotImplementedError("sm120-mla: several query tokens of a request with context parallelism")
        cache_rows = kv_c_and_k_pe_cache
        if self.kv_cache_dtype.startswith("fp8"):
            cache_rows = cache_rows.view(torch.float8_e4m3fn)
        device = query[0].device
        return attention.attend_pages(
            query,
            layouts.view(cache_rows, layer._k_scale),
            decode.block_table,
            decode.seq_lens,
            self.scale,
            workspace.multiprocessors(device),
            longest=attn_metadata.max_seq_len,
            causal=getattr(attn_metadata, "causal", True),
            workspace=workspace.reserve(device, heads),
        )

    # the name that 0.15 calls it by
    _forward_decode = forward_mqa
