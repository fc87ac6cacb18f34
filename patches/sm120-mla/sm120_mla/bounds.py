"""What no backend of ours can do, refused when a layer is built, with its reason."""

from typing import Any

from vllm.v1.attention.backend import AttentionType

from . import layouts


class Bounded:
    """Stands before vLLM's implementation class, whose constructor vLLM calls by position."""

    kv_lora_rank: int
    qk_rope_head_dim: int
    supports_quant_query_input: bool

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None,
        attn_type: str,
        kv_sharing_target_layer_name: str | None,
        **mla_args: Any,
    ) -> None:
        for name, value in (
            ("alibi_slopes", alibi_slopes),
            ("sliding_window", sliding_window),
            ("logits_soft_cap", logits_soft_cap),
        ):
            if value:
                raise NotImplementedError(f"sm120-mla does not support {name}")
        if attn_type != AttentionType.DECODER:
            raise NotImplementedError(f"sm120-mla supports decoder self-attention, not {attn_type}")
        super().__init__(
            num_heads,
            head_size,
            scale,
            num_kv_heads,
            alibi_slopes,
            sliding_window,
            kv_cache_dtype,
            logits_soft_cap,
            attn_type,
            kv_sharing_target_layer_name,
            **mla_args,
        )
        if (self.kv_lora_rank, self.qk_rope_head_dim) != (layouts.LATENT, layouts.ROPE):
            raise NotImplementedError(
                f"sm120-mla reads rows of {layouts.LATENT} + {layouts.ROPE} values, "
                f"not {self.kv_lora_rank} + {self.qk_rope_head_dim}"
            )
        # the kernels take bf16 queries with every cache
        self.supports_quant_query_input = False
