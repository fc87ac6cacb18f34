"""Whether a model's shape can be split the way a profile wants it, by the rules of the vLLM that will load it. Pure.

Every rule was read in vLLM's sources: 0.33.0 and 0.24.0 from the wheels, 0.32.0 from the CPU wheel. Where vLLM would
load it, or where it is not known, nothing is refused: an unknown figure, an unknown version or a fork gives a note at
most.
"""

import math
from typing import NamedTuple, Protocol

from packaging.version import InvalidVersion, Version

from deploy.checkpoint.config import ModelFacts, Quant

ERROR = "error"
NOTE = "note"

# Refining FP8 block scales (fused_moe/oracle/fp8.py): not in 0.24.0, there in 0.32.0 and 0.33.0. Field reports have the
# refusal up to the last 0.2x; of 0.30 and 0.31 no source was read.
REFINES_FROM = (0, 32)
REFUSES_BELOW = (0, 30)
SMALLEST_BLOCK = 32  # refine_fp8_moe_block_shape gives up below
KNOWN_UP_TO = (0, 33)
SPARSE_SM120_FROM = (0, 24)
SPARSE_SM120_TOPK = 2048
# kernels that need the checkpoint's own 128x128 blocks; vLLM then pads the shard or raises (resolve_fp8_moe_…)
WHOLE_BLOCKS_ONLY = {"deep_gemm", "cutlass", "flashinfer_cutlass", "flashinfer_trtllm"}


class Finding(NamedTuple):
    """One thing found: `severity` is `error` (vLLM would end with it) or `note`; `code` a stable slug; `text` holds the
    sum that was done; `fix` what to write instead, empty where there is nothing to do."""

    severity: str
    code: str
    text: str
    fix: str = ""


class Split(NamedTuple):
    """How a model is split: ranks of each kind, and expert parallelism over tensor x data."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: bool = False
    decode_context: int = 1

    @property
    def expert_ranks(self) -> int:
        """Ranks that share the routed experts; without expert parallelism vLLM flattens data into tensor for them."""
        return self.tensor * self.data


class Parallel(Protocol):
    """A profile's `parallel` section."""

    @property
    def tensor(self) -> int: ...
    @property
    def pipeline(self) -> int: ...
    @property
    def data(self) -> int: ...
    @property
    def expert(self) -> bool: ...
    @property
    def decode_context(self) -> int: ...


def split_of(parallel: Parallel) -> Split:
    """A profile's `parallel` section as a Split."""
    return Split(parallel.tensor, parallel.pipeline, parallel.data, parallel.expert, parallel.decode_context)


class Engine(NamedTuple):
    """What is known of the vLLM that will load it: `release` such as (0, 33); None where unknown. A fork (a local
    version that is no build tag) has its own rules."""

    release: tuple[int, int] | None
    stock: bool

    @property
    def known(self) -> bool:
        """Whether its rules are known, so that something may be refused."""
        return self.release is not None and self.stock and self.release <= KNOWN_UP_TO


def engine_of(version: str | None) -> Engine:
    """An engine by its version text."""
    try:
        parsed = Version(version or "")
    except InvalidVersion:
        return Engine(None, False)
    local = parsed.local or ""
    build = local == "" or local.startswith(("cpu", "cu", "rocm", "precompiled"))
    return Engine((parsed.major, parsed.minor), build and not parsed.is_devrelease)


def check(
    facts: ModelFacts,
    split: Split,
    version: str | None,
    quant: Quant | None = None,
    *,
    gpus: int | None = None,
    moe_backend: str = "auto",
    attention_backend: str | None = None,
    capability: str | None = None,
) -> list[Finding]:
    """Everything about the split that vLLM would refuse, and what is worth knowing.

    Args:
        facts: the model.
        split: how it is to be split.
        version: of the vLLM that will load it, None when unknown.
        quant: another quantization than the checkpoint's own.
        gpus: how many there are to be, 0 for a CPU engine, None when unknown.
        moe_backend: `--moe-backend`.
        attention_backend: `--attention-backend`; a named one may come from a plugin with rules of its own.
        capability: CUDA capability such as "12.0".
    """
    engine = engine_of(version)
    quant = quant or facts.quant
    found = [
        *_ranks(split, gpus),
        *_heads(facts, split),
        *_kv_heads(facts, split),
        *_decode_context(facts, split),
        *_sparse(facts, split, engine, attention_backend, capability),
        *_experts(facts, split),
        *_expert_blocks(facts, split, quant, engine, moe_backend),
        *_dense_blocks(facts, split, quant),
        *_groups(facts, split, quant, engine),
    ]
    if engine.known:
        return found
    # kdeploy's own sum of ranks and GPUs holds for every engine
    return [item if item.code == "gpus" else item._replace(severity=NOTE) for item in found]


def _ranks(split: Split, gpus: int | None) -> list[Finding]:
    ranks = split.tensor * split.pipeline * split.data
    if not gpus or gpus == ranks:
        return []
    text = f"tensor {split.tensor} x pipeline {split.pipeline} x data {split.data} = {ranks} ranks, and {gpus} GPUs"
    return [Finding(ERROR, "gpus", text, f"hardware.gpus {ranks}, or leave it out")]


def _heads(facts: ModelFacts, split: Split) -> list[Finding]:
    if not facts.heads or facts.heads % split.tensor == 0:
        return []
    text = f"{facts.heads} attention heads / tensor {split.tensor} = {facts.heads / split.tensor:g}, not whole"
    return [Finding(ERROR, "heads", text, f"parallel.tensor one of {_divisors(facts.heads)}")]


def _kv_heads(facts: ModelFacts, split: Split) -> list[Finding]:
    """vLLM splits KV heads, or gives every rank a copy of one (layers/linear.py, QKVParallelLinear)."""
    heads, tensor = facts.kv_heads, split.tensor
    if facts.kv_lora or facts.unusual or not heads or tensor == 1:
        return []
    fix = f"parallel.tensor one of {_divisors(heads)}, or a multiple of {heads}"
    if tensor <= heads:
        text = f"{heads} KV heads / tensor {tensor} = {heads / tensor:g}, not whole"
        return [Finding(ERROR, "kv-heads", text, fix)] if heads % tensor else []
    if tensor % heads:
        text = f"tensor {tensor} / {heads} KV heads = {tensor / heads:g} copies of each, not whole"
        return [Finding(ERROR, "kv-heads", text, fix)]
    text = f"{heads} KV heads on tensor {tensor}: each is kept {tensor // heads} times, so the cache does not shrink"
    return [Finding(NOTE, "kv-heads-replicated", text)]


def _decode_context(facts: ModelFacts, split: Split) -> list[Finding]:
    """config/parallel.py and config/model.py, verify_with_parallel_config."""
    dcp, tensor = split.decode_context, split.tensor
    if dcp == 1:
        return []
    if tensor % dcp:
        text = f"tensor {tensor} / decode_context {dcp} = {tensor / dcp:g}, not whole"
        return [Finding(ERROR, "decode-context", text, f"parallel.decode_context one of {_divisors(tensor)}")]
    if facts.kv_lora or facts.unusual or not facts.kv_heads or not facts.heads:
        return []
    most = tensor // facts.kv_heads
    if tensor <= facts.kv_heads or dcp > most:
        text = (
            f"decode_context shares copies of KV heads: tensor {tensor} / {facts.kv_heads} KV heads = "
            f"{tensor / facts.kv_heads:g} copies, and decode_context is {dcp}"
        )
        most = max(1, most)
        return [Finding(ERROR, "decode-context-gqa", text, f"parallel.decode_context {most}")]
    queries = facts.heads // facts.kv_heads
    if queries % dcp:
        text = f"{queries} query heads for each KV head / decode_context {dcp} = {queries / dcp:g}, not whole"
        return [Finding(ERROR, "decode-context-gqa", text, f"parallel.decode_context one of {_divisors(queries)}")]
    return []


def _sparse(
    facts: ModelFacts, split: Split, engine: Engine, attention_backend: str | None, capability: str | None
) -> list[Finding]:
    """Sparse attention on capability 12.x has one stock backend: from 0.24 on, a top-k of 2048, and no LSE, which
    decode context parallelism needs (v1/worker/cp_utils.py). Other capabilities have backends that give it."""
    if not facts.sparse:
        return []
    found = []
    on_sm120 = (capability or "").startswith("12")
    # a backend that was named may be a plugin's
    severity = ERROR if on_sm120 and attention_backend is None else NOTE
    if split.decode_context > 1:
        text = (
            f"decode_context {split.decode_context} with sparse attention: FLASHINFER_MLA_SPARSE_SM120, the only stock "
            f"backend on capability 12.x, returns no softmax LSE"
        )
        found.append(Finding(severity, "decode-context-sparse", text, "parallel.decode_context 1"))
    if on_sm120 and engine.release is not None and engine.release < SPARSE_SM120_FROM:
        text = "sparse attention on capability 12.x: vLLM has a backend for it since 0.24"
        found.append(Finding(NOTE, "sparse-backend", text, "vLLM 0.24 or newer, or a plugin with a backend"))
    if on_sm120 and facts.index_topk != SPARSE_SM120_TOPK:
        text = f"index_topk {facts.index_topk}: the only stock backend on capability 12.x takes {SPARSE_SM120_TOPK}"
        found.append(Finding(severity, "sparse-topk", text))
    return found


def _experts(facts: ModelFacts, split: Split) -> list[Finding]:
    ranks = split.expert_ranks
    if facts.experts is None:
        return []
    if not facts.experts:
        if not split.expert:
            return []
        text = "expert parallelism, and the model has 0 experts"
        return [Finding(ERROR, "expert-dense", text, "parallel.expert false")]
    if split.tensor > facts.experts:
        text = f"tensor {split.tensor} > {facts.experts} experts"
        return [Finding(ERROR, "experts", text, f"parallel.tensor {facts.experts} or less")]
    if not split.expert or ranks == 1 or facts.experts % ranks == 0:
        return []
    if ranks > facts.experts:
        text = f"{ranks} expert ranks (tensor x data) for {facts.experts} experts: some would have none"
        return [Finding(NOTE, "experts-uneven", text, f"tensor x data {facts.experts} or less")]
    # expert_map_manager.determine_expert_map: the first ranks get one more
    fewest, more = divmod(facts.experts, ranks)
    text = (
        f"{facts.experts} experts / {ranks} expert ranks (tensor x data) = {facts.experts / ranks:.4g}: "
        f"{more} ranks hold {fewest + 1}, the others {fewest}; EPLB and some all2all backends want equal shares"
    )
    return [Finding(NOTE, "experts-uneven", text)]


def _expert_blocks(
    facts: ModelFacts, split: Split, quant: Quant | None, engine: Engine, moe_backend: str
) -> list[Finding]:
    """Routed experts with block FP8 scales. Tensor parallelism cuts their width; expert parallelism does not."""
    if not facts.experts or not facts.expert_width:
        return []
    ranks, width = 1 if split.expert else split.expert_ranks, facts.expert_width
    if width % ranks:
        text = f"expert width {width} / {ranks} ranks (tensor x data) = {width / ranks:g}, not whole"
        return [Finding(ERROR, "expert-width", text, "parallel.expert true, or fewer ranks")]
    if quant is None or quant.block is None or _spared(quant, "experts"):
        return []
    rows, columns = quant.block
    part = width // ranks
    if part % rows == 0 and (ranks == 1 or part % columns == 0):
        return []
    division = f"expert width {width} / {ranks} ranks = {part}, no multiple of the FP8 block {rows}x{columns}"
    release = engine.release
    fix = _whole_blocks(width, ranks, quant.block)
    if release is None:
        return [Finding(NOTE, "fp8-blocks", f"{division}; vLLM before 0.30 refuses that", fix)]
    if release < REFUSES_BELOW:
        return [Finding(ERROR, "fp8-blocks", f"{division}; this vLLM takes whole blocks only", fix)]
    if release < REFINES_FROM:
        text = f"{division}; vLLM 0.32 refines the scales, and no source read tells what this version does"
        return [Finding(NOTE, "fp8-blocks", text, fix)]
    return [_refined(facts, (part, ranks), division, quant.block, moe_backend)._replace(fix=fix)]


def _whole_blocks(width: int, ranks: int, block: tuple[int, int]) -> str:
    """What would give every rank whole blocks."""
    if width % block[0] == 0 == width % block[1]:
        fits = [
            n for n in range(ranks, 0, -1) if width % n == 0 and width // n % block[0] == 0 == width // n % block[1]
        ]
        return f"parallel.expert true, or tensor x data {fits[0]}"
    return ""


def _refined(
    facts: ModelFacts, shard: tuple[int, int], division: str, block: tuple[int, int], moe_backend: str
) -> Finding:
    """What vLLM 0.32 and later make of a shard (width, ranks) without whole blocks (fused_moe/oracle/fp8.py)."""
    (part, ranks), (rows, columns) = shard, block
    if facts.hidden is None:
        return Finding(NOTE, "fp8-blocks", f"{division}; whether vLLM can refine the scales depends on the hidden size")
    finer = math.gcd(rows, columns, part, facts.hidden)
    sum_done = f"gcd({rows}, {columns}, {part}, hidden {facts.hidden}) = {finer}"
    refines = finer >= SMALLEST_BLOCK
    if refines and moe_backend in ("auto", "triton"):
        text = f"{division}; vLLM refines the scales to {finer}x{finer} ({sum_done}), which only Triton kernels take"
        return Finding(NOTE, "fp8-blocks-refined", text)
    if moe_backend == "auto" or ranks == 1:
        text = f"{division}, and {sum_done} is below {SMALLEST_BLOCK}: the scales cannot be refined"
        if refines:
            text = f"{division}; {sum_done}: --moe-backend {moe_backend} may not take refined scales, Triton does"
        return Finding(NOTE if refines else ERROR, "fp8-blocks", text)
    width = part * ranks
    if rows == columns and width % rows == 0 and facts.hidden % rows == 0:
        padded = -(-part // rows) * rows
        text = f"{division}; --moe-backend {moe_backend}: vLLM 0.33 pads each shard to {padded} where it cannot refine"
        return Finding(NOTE, "fp8-blocks-padded", text)
    text = f"{division}; {sum_done}; --moe-backend {moe_backend} cannot pad either: {width} is no multiple of {rows}"
    certain = not refines or moe_backend in WHOLE_BLOCKS_ONLY
    return Finding(ERROR if certain else NOTE, "fp8-blocks", text)


def _dense_blocks(facts: ModelFacts, split: Split, quant: Quant | None) -> list[Finding]:
    """Linear layers outside the routed experts: those cut along their input need whole blocks; merged columns are let
    through (fp8_utils.validate_fp8_block_shape, linear.py _maybe_allow_fp8_block_shape_mismatch)."""
    if quant is None or quant.block is None or split.tensor == 1:
        return []
    columns = quant.block[1]
    widths = [("mlp.down_proj", "dense MLP width", facts.dense_width if _has_dense(facts) else None)]
    if facts.experts and facts.shared_experts and facts.expert_width:
        shared = facts.shared_width or facts.shared_experts * facts.expert_width
        widths.append(("shared_expert", "shared expert width", shared))
    if facts.heads and (dim := facts.value_dim if facts.kv_lora else facts.head_dim):
        widths.append(("self_attn", f"{facts.heads} heads x {dim} =", facts.heads * dim))
    found = []
    for name, words, width in widths:
        if not width or _spared(quant, name):
            continue
        part, rest = divmod(width, split.tensor)
        if rest == 0 and part % columns:
            text = f"{words} {width} / tensor {split.tensor} = {part}, no multiple of the FP8 block's {columns} columns"
            fits = [tp for tp in range(split.tensor, 0, -1) if width % (tp * columns) == 0]
            found.append(Finding(ERROR, "fp8-blocks-dense", text, f"parallel.tensor {fits[0]}" if fits else ""))
    return found


def _has_dense(facts: ModelFacts) -> bool:
    return not facts.experts or bool(facts.dense_layers)


def _groups(facts: ModelFacts, split: Split, quant: Quant | None, engine: Engine) -> list[Finding]:
    """Experts of 4-bit integers: a group of elements shares a scale and may not be cut (compressed_tensors_moe_wna16:
    in 0.24.0 and 0.33.0)."""
    if quant is None or not facts.experts or not facts.expert_width or split.expert or split.expert_ranks == 1:
        return []
    part, rest = divmod(facts.expert_width, split.expert_ranks)
    if rest:
        return []  # told as expert-width
    division = f"expert width {facts.expert_width} / {split.expert_ranks} ranks (tensor x data) = {part}"
    if quant.integer4 and quant.group and part % quant.group:
        sure = quant.method == "compressed-tensors" and engine.release is not None and engine.release >= (0, 24)
        text = f"{division}, no multiple of the INT4 group of {quant.group}"
        return [Finding(ERROR if sure else NOTE, "int4-groups", text, "parallel.expert true, or fewer ranks")]
    if quant.method == "modelopt_fp4" and part % 32:
        text = f"{division}, no multiple of 32: NVFP4 kernels have given rubbish there (vLLM issue 48898)"
        return [Finding(NOTE, "nvfp4-alignment", text, "parallel.expert true, or fewer ranks")]
    return []


def _spared(quant: Quant, name: str) -> bool:
    """Whether the checkpoint leaves a kind of layer unquantized."""
    return any(name in ignored for ignored in quant.ignored)


def _divisors(number: int) -> str:
    return ", ".join(str(value) for value in range(1, number + 1) if number % value == 0)
