"""The three caches that the kernels read, as views of vLLM's tensors. Nothing is copied.

bf16    [pages, page_size, 576] in bf16 or fp16: 512 latent and 64 rotary values, 1,152 bytes a row.
fp8     [pages, page_size, 576] in float8_e4m3fn with one fp32 scale for the whole cache, 576 bytes a row.
packed  [pages, page_size, 656] bytes, vLLM's `fp8_ds_mla`: 512 float8_e4m3fn, then 4 fp32 scales (one for each 128 of
        them), then 64 bf16 rotary values. Writers differ in whether a scale is any fp32 or a power of two; both are
        fp32 in the row, so a reader that multiplies by what it finds reads both.
"""

from dataclasses import dataclass

import torch

LATENT = 512
ROPE = 64
GROUP = 128
ROW = LATENT + ROPE
PACKED_BYTES = LATENT + 4 * (LATENT // GROUP) + 2 * ROPE
_SCALES_AT = LATENT // 4  # in fp32 elements
_ROPE_AT = (LATENT + 4 * (LATENT // GROUP)) // 2  # in bf16 elements


@dataclass(frozen=True)
class Cache:
    """Views of one layer's cache: latent [pages, page_size, 512], rope [.., 64], scales [.., 4] (packed) or None."""

    layout: str
    latent: torch.Tensor
    rope: torch.Tensor
    scales: torch.Tensor | None
    tensor_scale: torch.Tensor | None

    @property
    def page_size(self) -> int:
        return self.latent.shape[1]


def view(tensor: torch.Tensor, tensor_scale: torch.Tensor | None = None) -> Cache:
    """Read the layout off a cache [pages, page_size, width].

    tensor_scale: fp32 with one element, for a float8_e4m3fn cache. Raises ValueError for a cache that the kernels
    cannot read: another width, another type, rows that are not dense.
    """
    if tensor.dim() != 3 or tensor.stride(-1) != 1:
        raise ValueError(
            f"cache of shape {tuple(tensor.shape)}, strides {tensor.stride()}: expected [pages, page, row]"
        )
    width = tensor.shape[-1]
    if width == PACKED_BYTES and tensor.element_size() == 1:
        raw = tensor.view(torch.uint8)
        if raw.stride(1) % 4 or raw.stride(0) % 4 or raw.storage_offset() % 4:
            raise ValueError(f"packed cache with strides {raw.stride()}: its scales are not aligned to 4 bytes")
        singles = raw.view(torch.float32)
        halves = raw.view(torch.bfloat16)
        return Cache(
            "packed",
            raw.view(torch.float8_e4m3fn)[..., :LATENT],
            halves[..., _ROPE_AT : _ROPE_AT + ROPE],
            singles[..., _SCALES_AT : _SCALES_AT + LATENT // GROUP],
            None,
        )
    if width != ROW:
        raise ValueError(f"cache rows of {width} elements: the kernels read {ROW} values or {PACKED_BYTES} bytes")
    if tensor.dtype == torch.float8_e4m3fn:
        if tensor_scale is None:
            raise ValueError("an fp8 cache comes with its scale")
        return Cache("fp8", tensor[..., :LATENT], tensor[..., LATENT:], None, tensor_scale)
    if tensor.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(f"cache of {tensor.dtype}: the kernels read bf16, fp16 and float8_e4m3fn")
    return Cache("bf16", tensor[..., :LATENT], tensor[..., LATENT:], None, None)
