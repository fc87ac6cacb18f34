"""What vLLM calls in each of its processes: put the backends in their places. May be called several times.

The sparse backend becomes CUSTOM (`--attention-backend CUSTOM`). The dense one takes TRITON_MLA's place only where that
one is the worse: before 0.33 by the versions whose wheels were read, told by what the installed source holds.
"""

import importlib.util

_SPARSE = "sm120_mla.sparse.Sm120SparseBackend"
_DENSE = "sm120_mla.dense.Sm120DenseBackend"


def stock_dense_is_enough() -> bool:
    """Does the installed TRITON_MLA cut the context by length and SM count? Then it also has the fp8 cache."""
    from vllm.v1.attention.backends.mla import triton_mla

    return hasattr(triton_mla, "_compute_num_kv_splits")


def has_sparse_base() -> bool:
    """Has the installed vLLM the base classes that the sparse backend is written for?"""
    return importlib.util.find_spec("vllm.model_executor.layers.attention.sparse_mla_attention") is not None


def register() -> "str | tuple[str, str]":
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    done = []
    if has_sparse_base():
        register_backend(AttentionBackendEnum.CUSTOM, _SPARSE)
        done.append("sparse as CUSTOM")
    if not stock_dense_is_enough():
        register_backend(AttentionBackendEnum.TRITON_MLA, _DENSE)
        done.append("dense over TRITON_MLA")
    return ", ".join(done) or ("needless", "this version has no sparse base, and its dense backend is enough")
