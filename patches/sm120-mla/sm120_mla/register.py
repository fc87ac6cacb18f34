"""What vLLM calls in each of its processes: put the backends in their places. May be called several times.

The sparse backend becomes CUSTOM (`--attention-backend CUSTOM`). The dense one takes TRITON_MLA's place only where that
one cuts every context in four: 0.15.1 and 0.19.1 do, 0.23.0 does not. Told by what the installed source holds, and held
against the wheels by tests/wheels.
"""

import importlib.util
from pathlib import Path

_SPARSE = "sm120_mla.sparse.Sm120SparseBackend"
_DENSE = "sm120_mla.dense.Sm120DenseBackend"
SPARSE_BASE = "vllm.model_executor.layers.attention.sparse_mla_attention"
STOCK_DENSE = "vllm.v1.attention.backends.mla.triton_mla"


def dense_follows_the_gpu(source: str) -> bool:
    """Does this text of TRITON_MLA choose its splits by SM count? Where it does, it has the fp8 cache too."""
    return "num_compute_units" in source


def source_of(module: str) -> "Path | None":
    """The installed source of a module; None where there is no such module. Imports the packages above it only."""
    spec = importlib.util.find_spec(module)
    return Path(spec.origin) if spec is not None and spec.origin is not None else None


def register() -> "str | tuple[str, str]":
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    done = []
    if source_of(SPARSE_BASE) is not None:
        register_backend(AttentionBackendEnum.CUSTOM, _SPARSE)
        done.append("sparse as CUSTOM")
    stock = source_of(STOCK_DENSE)
    if stock is None:
        raise RuntimeError(f"this vLLM has no {STOCK_DENSE}")
    if not dense_follows_the_gpu(stock.read_text()):
        register_backend(AttentionBackendEnum.TRITON_MLA, _DENSE)
        done.append("dense over TRITON_MLA")
    return ", ".join(done) or ("needless", "this version has no sparse base, and its dense backend is enough")
