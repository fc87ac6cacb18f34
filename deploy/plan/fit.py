"""How a model fits a GPU's memory: weights, KV cache, reserve, and what that gives in tokens. Pure arithmetic.

The rules of what a rank holds are those of vLLM 0.33.0's model classes (layers/linear.py, models/deepseek_v2.py,
minimax_m2.py, kimi_k25_vit.py, llama.py); the cache is counted as v1/core/kv_cache_planning.py does. docs/fit.md sets
the results beside published boot figures and explains each difference.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from deploy.checkpoint.config import ModelFacts, Tensor
from deploy.engine.shapes import Split, engine_of

GIB = 1 << 30
DEFAULT_UTILIZATION = 0.92  # vLLM 0.33.0, config/cache.py
BLOCK = 16  # tokens of a KV block unless the backend wants another (config/cache.py)
SPARSE_BLOCK = 64  # FLASHINFER_MLA_SPARSE_SM120 and the index cache take multiples of it
CPU_BLOCK = 128  # platforms/cpu.py; its MLA kernel takes 16
PLUGIN_BACKEND = "CUSTOM"  # the place in vLLM's list of attention backends that plugins take
PACKED_SPARSE = 656  # bytes a token and layer: 512 FP8, 4 FP32 scales, 64 BF16 (mla_attention.py, fp8_ds_mla)
INDEX_SCALE_GROUP = 128  # the index cache keeps FP8 and one FP32 scale for each group (deepseek_v2.py, Indexer)
MODEL_BYTES = 2  # of an element that is not quantized: vLLM runs in bfloat16 or float16, whatever is on disk

# What vLLM takes when a flag is not given (engine/arg_utils.py), for GPUs of 70 GiB and more, and for smaller ones.
LARGE_GPU_GIB = 70
BATCHED_TOKENS = (8192, 2048)
SEQUENCES = (1024, 256)

# The reserve. The first two are sizes that vLLM allocates; the last two are assumptions, see docs/fit.md.
PREFILL_TOKENS = 64 * 1024  # most tokens of context that an MLA prefill step unpacks (mla_attention.py)
INDEX_LOGITS = 512 << 20  # VLLM_SPARSE_INDEXER_MAX_LOGITS_MB
INDEX_PREFILL = 40  # times max_model_len: (576 * 2 // 132) * factor 5 (mla/indexer.py)
RUNTIME = GIB // 2  # allocations of torch, NCCL and kernels during the profile run
GRAPHS = 2 * GIB  # published: 1.22 and 2.39 GiB used, 4.77 and 6.04 GiB as vLLM estimates them beforehand
WORST_RESERVE = round(8.1 * GIB)  # the largest that published figures imply (MiniMax-M2.5 at 0.9 of 94.97 GiB)

# Weights that were not read from headers may be off by this much before anything is refused because of them.
DOUBT = 0.03

# Bytes of one weight: payload, and its share of a scale.
FORMATS = {"bf16": 2.0, "fp8-block": 1 + 4 / (128 * 128), "int4-group32": 0.5 + 2 / 32, "nvfp4": 0.5 + 1 / 16}

# Bytes of one cached element by --kv-cache-dtype.
CACHE_BYTES = {"auto": MODEL_BYTES, "bfloat16": 2, "float16": 2, "half": 2, "float32": 4}

LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
ROUTED = re.compile(r"\.experts\.(?!.*shared)")
SHARED = re.compile(r"\.shared_experts?\.")
VISION = re.compile(r"(?:^|\.)(?:vision_tower|vision_model|visual|mm_projector|multi_modal_projector)\.")
PROJECTOR = re.compile(r"(?:^|\.)(?:mm_projector|multi_modal_projector)\.")
SCALE = re.compile(r"(?:_scale(?:_inv|_2)?|\.input_scale|\.weight_shape|\.[kv]_scale)$")
# a copy on every rank: norms, routers, the low-rank halves of latent attention, the index
COPIED = re.compile(
    r"norm|\.(?:gate|router|shared_expert_gate)\.(?:weight|bias|e_score)|e_score_correction_bias|rotary|inv_freq"
    r"|\.(?:q_a_proj|kv_a_proj_with_mqa|kv_a_proj|fused_qkv_a_proj|wq_a|wkv_a|eh_proj)\.|\.indexer\."
)
KV_HEADS = re.compile(r"\.(?:k_proj|v_proj)\.")
EMBEDDING = re.compile(r"(?:embed_tokens|word_embeddings|wte)\.")
HEAD = re.compile(r"(?:^|\.)lm_head\.")
SPLIT_BY_RANKS = re.compile(
    r"\.(?:q_proj|o_proj|out_proj|qkv_proj|q_b_proj|kv_b_proj|gate_proj|up_proj|down_proj|gate_up_proj|w1|w2|w3)\."
)


class Case(NamedTuple):
    """What is to be loaded, and where. Memory in GiB; None where it is not known.

    `tensors` are those on disk, empty when the checkpoint is not there. `cpu_kv_gib` is VLLM_CPU_KVCACHE_SPACE, the KV
    cache of each CPU rank. `vision` is how the vision tower is kept: `split`, `copied` (--mm-encoder-tp-mode data) or
    `dropped` (--language-model-only).
    """

    profile: str
    facts: ModelFacts | None
    tensors: Sequence[Tensor]
    split: Split
    max_model_len: int | None = None
    kv_cache_dtype: str = "auto"
    block_size: int | None = None
    memory_gib: float | None = None
    utilization: float | None = None
    kv_cache_memory_bytes: int | None = None
    batched_tokens: int | None = None
    sequences: int | None = None
    cpu: bool = False
    cpu_kv_gib: float | None = None
    capability: str | None = None
    vision: str = "split"
    eager: bool = False
    graphs_counted: bool = True
    draft: str | None = None
    version: str | None = None
    attention_backend: str | None = None


class Stage(NamedTuple):
    """The fullest GPU of one pipeline stage: its weights, and the cache that one token takes there, in bytes."""

    weights: float
    kv_per_token: float


@dataclass(frozen=True)
class Fit:
    """The answer, for the GPU that is the tightest. `fits` is None when it cannot be told; `exact` whether weights were
    read from headers; `fix` what would make it fit."""

    profile: str
    fits: bool | None
    memory_gib: float | None
    budget_gib: float | None
    weights_gib: float | None
    exact: bool
    kv_bytes_per_token: float | None
    reserve: dict[str, float]
    kv_gib: float | None
    kv_tokens: int | None
    max_model_len: int | None
    longest_context: int | None
    concurrency: float | None
    notes: list[str] = field(default_factory=list)
    fix: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The public document of `fit --json`."""
        return {
            "schema": 1,
            "profile": self.profile,
            "fits": self.fits,
            "gpu": {"memory_gib": _rounded(self.memory_gib), "budget_gib": _rounded(self.budget_gib)},
            "weights_gib": _rounded(self.weights_gib),
            "weights_exact": self.exact,
            "reserve_gib": _rounded(sum(self.reserve.values()) if self.reserve else None),
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "kv_gib": _rounded(self.kv_gib),
            "kv_tokens": self.kv_tokens,
            "max_model_len": self.max_model_len,
            "longest_context": self.longest_context,
            "concurrency": _rounded(self.concurrency),
            "notes": self.notes,
            "fix": self.fix,
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def estimate(case: Case) -> Fit:
    """The whole answer."""
    notes: list[str] = []
    stages = _stages(case, notes)
    block = _block(case)
    length = case.max_model_len or (case.facts.context if case.facts else None)
    budget = _budget(case, notes)
    reserve = _reserve(case, length)
    rooms = _rooms(case, stages, budget, reserve)
    tightest = min(range(len(stages)), key=lambda at: _tokens(rooms[at], stages[at], block, case) or 0)
    stage, room = stages[tightest], rooms[tightest]
    _say_what_is_missing(case, stage, budget, notes)
    tokens = _tokens(room, stage, block, case)
    context = case.facts.context if case.facts else None
    longest = None if tokens is None else max(0, tokens - block * case.split.decode_context)
    if longest is not None and context:
        longest = min(longest, context)
    if length and context and length > context:
        notes.append(f"max_model_len {length:,} is above the model's own {context:,}: vLLM refuses that by default")
    fits, fix = _verdict(case, stage, room, budget, length, reserve, notes)
    known = stage is not None and not math.isnan(stage.weights)
    return Fit(
        profile=case.profile,
        fits=fits,
        memory_gib=None if case.cpu else case.memory_gib,
        budget_gib=None if budget is None else budget / GIB,
        weights_gib=stage.weights / GIB if known else None,
        exact=bool(case.tensors),
        kv_bytes_per_token=_plain(stage.kv_per_token),
        reserve={name: size / GIB for name, size in reserve.items()},
        kv_gib=None if room is None else max(0.0, room) / GIB,
        kv_tokens=tokens,
        max_model_len=length,
        longest_context=longest,
        concurrency=_concurrency(tokens, length, block * case.split.decode_context),
        notes=notes,
        fix=fix,
    )


def _plain(value: float) -> float | None:
    if math.isnan(value):
        return None
    return int(value) if value == int(value) else round(value, 2)


def _say_what_is_missing(case: Case, stage: Stage, budget: float | None, notes: list[str]) -> None:
    if case.facts is None:
        notes.append(
            "missing: the model's config.json (the checkpoint is not on disk, and no facts are shipped for it)"
        )
        return
    for reason in case.facts.unusual:
        notes.append(f"missing: a rule for the cache of this model ({reason})")
    if math.isnan(stage.kv_per_token) and not case.facts.unusual:
        notes.append("missing: layers, heads or head size in config.json")
    if math.isnan(stage.weights):
        notes.append("missing: the size of the weights (the checkpoint is not on disk)")
    if case.cpu:
        if case.cpu_kv_gib is None and case.kv_cache_memory_bytes is None:
            notes.append(
                "missing: env.VLLM_CPU_KVCACHE_SPACE (GiB a rank); without it vLLM takes a share of the memory that is "
                "free when it starts"
            )
    elif budget is None and case.kv_cache_memory_bytes is None:
        notes.append("missing: a GPU's memory: set hardware.memory_gib, or name GPUs of this machine with --gpus")


# ---------------------------------------------------------------------- weights


def _stages(case: Case, notes: list[str]) -> list[Stage]:
    """The stages of the pipeline, with NaN for what is not known."""
    facts, split = case.facts, case.split
    layers = facts.layers if facts else None
    parts = pipeline_parts(layers, split.pipeline) if layers else []
    cache = [_cache_per_token(case, start, end) for start, end in parts] or [math.nan] * split.pipeline
    tensors: Iterable[Tensor] = case.tensors
    if not case.tensors:
        expected = expected_tensors(facts) if facts else None
        if expected is None:
            total = facts.weight_bytes if facts else None
            if total:
                notes.append("weights: the whole checkpoint by the number of GPUs, since nothing tells how it is made")
            each = total / (split.tensor * split.pipeline) if total else math.nan
            return [Stage(each, kv) for kv in cache]
        notes.append(f"weights: worked out from {facts.source if facts else ''}, not read from headers")
        tensors = expected
    sums = [0.0] * len(cache)
    unknown = 0
    for tensor in tensors:
        stage = _stage_of(tensor.name, layers, parts, case)
        if stage is None:
            continue
        share, certain = rank_share(tensor.name, facts, split, case.vision)
        unknown += 0 if certain else tensor.size
        sums[stage] += _loaded_size(tensor) * share
    if facts and facts.tied and split.pipeline > 1:
        sums[-1] += sum(t.size for t in tensors if EMBEDDING.search(t.name)) / split.tensor
    if unknown:
        text = f"weights: {unknown / GIB:.2f} GiB of tensors that no rule knows, taken as split over the ranks"
        notes.append(text)
    return [Stage(weights, kv) for weights, kv in zip(sums, cache, strict=True)]


def pipeline_parts(layers: int, stages: int) -> list[tuple[int, int]]:
    """First and last+1 layer of each stage (distributed/utils.py, get_pp_indices): what is left over goes to the stages
    before the last one."""
    sizes = [layers // stages] * stages
    for at in range(2, layers % stages + 2):
        sizes[-at] += 1
    ends = [sum(sizes[: at + 1]) for at in range(stages)]
    return [(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def _stage_of(name: str, layers: int | None, parts: Sequence[tuple[int, int]], case: Case) -> int | None:
    """The pipeline stage that holds a tensor; None for one that is not loaded."""
    if VISION.search(name):
        return None if case.vision == "dropped" else 0
    last = max(0, len(parts) - 1)
    found = LAYER.search(name)
    if found is not None:
        number = int(found[1])
        if layers is not None and number >= layers:  # a layer for multi-token prediction
            return last if case.draft == "mtp" else None
        return next((at for at, (start, end) in enumerate(parts) if start <= number < end), 0)
    if re.search(r"(?:^|\.)mtp", name):
        return last if case.draft == "mtp" else None
    return last if HEAD.search(name) or re.search(r"(?:^|\.)norm\.", name) else 0


def rank_share(name: str, facts: ModelFacts | None, split: Split, vision: str = "split") -> tuple[float, bool]:
    """The share of a tensor that the fullest rank holds, and whether a rule says so.

    Args:
        name: of the tensor in the checkpoint; a scale goes with its weight.
        facts: the model.
        split: how it is split.
        vision: see Case.
    """
    tensor = split.tensor
    if VISION.search(name):
        copied = vision == "copied" or PROJECTOR.search(name) or "norm" in name
        return (1.0 if copied else 1 / tensor), True
    if ROUTED.search(name) and not SHARED.search(name):
        experts = facts.experts if facts else None
        if not split.expert or split.expert_ranks == 1:
            return 1 / split.expert_ranks, True
        # the first ranks hold one expert more where they do not divide
        return (math.ceil(experts / split.expert_ranks) / experts if experts else 1 / split.expert_ranks), True
    if COPIED.search(name):
        return 1.0, True
    if SHARED.search(name):
        # with expert and data parallelism tokens are split over the ranks, and every rank holds the whole shared expert
        return (1.0 if split.expert and split.data > 1 and tensor > 1 else 1 / tensor), True
    if KV_HEADS.search(name) and facts and facts.kv_heads and not facts.kv_lora:
        return 1 / min(tensor, facts.kv_heads), True
    known = EMBEDDING.search(name) or HEAD.search(name) or SPLIT_BY_RANKS.search(name)
    return 1 / tensor, bool(known) or tensor == 1


def _loaded_size(tensor: Tensor) -> float:
    """Bytes in the GPU: full-precision weights are kept in the model's type, apart from routers and scales."""
    wide = tensor.dtype in ("F32", "F64") and tensor.name.endswith(".weight")
    if wide and not re.search(r"\.(?:gate|router)\.weight$", tensor.name) and not SCALE.search(tensor.name):
        return math.prod(tensor.shape) * MODEL_BYTES
    return tensor.size


def expected_tensors(facts: ModelFacts) -> list[Tensor] | None:
    """The tensors that a model of this shape has, several of a kind as one; None where the shape or the format of the
    weights is not known."""
    hidden, layers, vocab = facts.hidden, facts.layers, facts.vocab
    experts_format, linear_format = facts.experts_format, facts.linear_format
    if not (hidden and layers and vocab) or facts.unusual or linear_format is None:
        return None
    if facts.experts and (experts_format is None or not facts.expert_width):
        return None
    attention = _attention_shapes(facts)
    if attention is None:
        return None
    made: list[Tensor] = []

    def add(name: str, elements: int, kind: str = "bf16") -> None:
        made.append(Tensor(name, "", (), round(elements * FORMATS[kind])))

    for number in range(layers):
        layer = f"model.layers.{number}"
        for name, elements in attention.items():
            add(f"{layer}.self_attn.{name}.weight", elements, linear_format)
        for name, elements in _index_shapes(facts, number).items():
            add(f"{layer}.self_attn.indexer.{name}.weight", elements)
        add(f"{layer}.input_layernorm.weight", 2 * hidden)
        if facts.experts and number >= (facts.dense_layers or 0):
            width = facts.expert_width or 0
            add(f"{layer}.mlp.gate.weight", facts.experts * hidden)
            add(f"{layer}.mlp.experts.all.gate_proj.weight", 3 * facts.experts * width * hidden, experts_format or "")
            shared = facts.shared_width or (facts.shared_experts or 0) * width
            add(f"{layer}.mlp.shared_experts.gate_proj.weight", 3 * shared * hidden, linear_format)
        elif facts.dense_width:
            add(f"{layer}.mlp.gate_proj.weight", 3 * facts.dense_width * hidden, linear_format)
        else:
            return None
    add("model.embed_tokens.weight", vocab * hidden)
    if not facts.tied:
        add("lm_head.weight", vocab * hidden)
    if facts.vision_weights:
        add("vision_tower.weight", facts.vision_weights)
    return made


def _attention_shapes(facts: ModelFacts) -> dict[str, int] | None:
    """Elements of one layer's attention projections."""
    hidden, heads = facts.hidden or 0, facts.heads
    if heads is None:
        return None
    if not facts.latent:
        if facts.kv_heads is None or facts.head_dim is None:
            return None
        query, key = heads * facts.head_dim, facts.kv_heads * facts.head_dim
        return {"q_proj": hidden * query, "k_proj": hidden * key, "v_proj": hidden * key, "o_proj": query * hidden}
    latent, rope, nope, value = facts.kv_lora, facts.rope_dim, facts.nope_dim, facts.value_dim
    if not (latent and rope and nope and value):
        return None
    queries = heads * (nope + rope)
    low = facts.q_lora
    first = {"q_a_proj": hidden * low, "q_b_proj": low * queries} if low else {"q_proj": hidden * queries}
    return {
        **first,
        "kv_a_proj_with_mqa": hidden * (latent + rope),
        "kv_b_proj": latent * heads * (nope + value),
        "o_proj": heads * value * hidden,
    }


def _index_shapes(facts: ModelFacts, number: int) -> dict[str, int]:
    """Elements of one layer's index; layers that share another's have none, and are taken from the end here, since only
    their number is known."""
    if not (facts.sparse and facts.index_heads and facts.index_dim and facts.q_lora):
        return {}
    if number >= (facts.indexer_layers or 0):
        return {}
    hidden = facts.hidden or 0
    return {
        "wq_b": facts.q_lora * facts.index_heads * facts.index_dim,
        "wk": hidden * facts.index_dim,
        "weights_proj": hidden * facts.index_heads,
    }


# ---------------------------------------------------------------------- cache


def _block(case: Case) -> int:
    """Tokens of one KV block."""
    facts = case.facts
    if facts and facts.sparse:
        return math.ceil((case.block_size or SPARSE_BLOCK) / SPARSE_BLOCK) * SPARSE_BLOCK
    if case.cpu and not (facts and facts.latent):
        return case.block_size or CPU_BLOCK
    return BLOCK if case.cpu else case.block_size or BLOCK


def _cache_per_token(case: Case, start: int, end: int) -> float:
    """Bytes of cache that one token of a request takes on each rank of a stage with these layers."""
    facts, split = case.facts, case.split
    if facts is None or facts.unusual or not facts.layers:
        return math.nan
    layers = end - start
    if case.draft == "mtp" and end == facts.layers:
        layers += facts.mtp_layers or 0
    element = cache_bytes(case.kv_cache_dtype, facts)
    if facts.latent:
        if not (facts.kv_lora and facts.rope_dim):
            return math.nan
        vector = (facts.kv_lora + facts.rope_dim) * element
        if facts.sparse and _packed(case, element):
            vector = PACKED_SPARSE
        total = layers * vector + _index_cache(facts, layers)
    else:
        if not (facts.kv_heads and facts.head_dim):
            return math.nan
        total = layers * max(1, facts.kv_heads // split.tensor) * 2 * facts.head_dim * element
    return total / split.decode_context


def _packed(case: Case, element: float) -> bool:
    """Whether a sparse model's cache is the packed one. vLLM packs by the backend's name, and not for a plugin's."""
    if case.attention_backend == PLUGIN_BACKEND:
        return case.kv_cache_dtype == "fp8_ds_mla"
    return _on_sm120(case) or element == 1


def _on_sm120(case: Case) -> bool:
    return (case.capability or "").startswith("12")


def cache_bytes(dtype: str, facts: ModelFacts) -> float:
    """Bytes of one cached element. `auto` is the model's own type, unless the checkpoint says that its cache is FP8."""
    if dtype == "auto" and facts.quant is not None and facts.quant.kv_fp8:
        return 1
    if dtype in CACHE_BYTES:
        return CACHE_BYTES[dtype]
    return 0.5 + 1 / 16 if dtype.startswith("nvfp4") else 1


def _index_cache(facts: ModelFacts, layers: int) -> float:
    """Bytes a token of the index caches: FP8 and one FP32 scale for each group of a vector."""
    if not (facts.sparse and facts.index_dim and facts.layers):
        return 0
    vector = facts.index_dim + facts.index_dim // INDEX_SCALE_GROUP * 4
    return vector * (facts.indexer_layers or 0) * layers / facts.layers


# ---------------------------------------------------------------------- memory


def _budget(case: Case, notes: list[str]) -> float | None:
    """Bytes that vLLM may use of a GPU."""
    if case.cpu or case.memory_gib is None:
        return None
    if case.utilization is None:
        notes.append(f"serve.gpu_memory_utilization is not set: {DEFAULT_UTILIZATION}, vLLM's own")
    return case.memory_gib * GIB * (case.utilization or DEFAULT_UTILIZATION)


def _reserve(case: Case, length: int | None) -> dict[str, float]:
    """What a GPU needs besides weights and cache while vLLM profiles itself, in bytes: an estimate.

    The sampler and the forward pass do not peak together. What NCCL and cuBLAS take before is outside vLLM's budget
    (v1/worker/gpu_worker.py takes its snapshot after them).
    """
    facts = case.facts
    if case.cpu or facts is None:
        return {}
    small = case.memory_gib is not None and case.memory_gib < LARGE_GPU_GIB
    batched = case.batched_tokens or BATCHED_TOKENS[small]
    rows = min(batched, case.sequences or SEQUENCES[small])
    sampler = rows * (facts.vocab or 0) * (MODEL_BYTES + 4 + 4)  # logits, their FP32 copy, probabilities
    hidden = facts.hidden or 0
    forward = 6.0 * batched * hidden * MODEL_BYTES  # residual, hidden, norm, projections
    kept = 0.0
    if facts.experts and facts.expert_width:
        width = facts.expert_width / (1 if case.split.expert else case.split.expert_ranks)
        forward += batched * (facts.experts_per_token or 0) * (hidden + 3 * width) * MODEL_BYTES
    if facts.sparse:
        kept += (length or 0) * INDEX_PREFILL * ((facts.index_dim or 0) + 4)
        kept += batched * (facts.index_topk or 0) * 4
        forward += INDEX_LOGITS
    elif facts.latent:
        tokens = min(PREFILL_TOKENS, 8 * (length or PREFILL_TOKENS))
        kept += tokens * ((facts.kv_lora or 0) + (facts.rope_dim or 0)) * MODEL_BYTES
        unpacked = 2 * (facts.nope_dim or 0) + (facts.value_dim or 0) + (facts.rope_dim or 0)
        forward += tokens * (facts.heads or 0) / case.split.tensor * unpacked * MODEL_BYTES
    reserve = {"activations": max(sampler, forward) + kept, "runtime": float(RUNTIME)}
    if _graphs_counted(case):
        reserve["cuda graphs"] = float(GRAPHS)
    return reserve


def _graphs_counted(case: Case) -> bool:
    """vLLM takes its own estimate of CUDA graphs off the cache since 0.21, unless told not to."""
    release = engine_of(case.version).release
    return case.graphs_counted and not case.eager and (release is None or release >= (0, 21))


def _rooms(case: Case, stages: Sequence[Stage], budget: float | None, reserve: dict[str, float]) -> list[float | None]:
    """Bytes for the cache on the GPUs of each stage; None where it cannot be told."""
    if case.kv_cache_memory_bytes is not None:
        return [float(case.kv_cache_memory_bytes) for _ in stages]
    if case.cpu:
        return [None if case.cpu_kv_gib is None else case.cpu_kv_gib * GIB for _ in stages]
    if budget is None:
        return [None for _ in stages]
    taken = sum(reserve.values())
    return [None if math.isnan(stage.weights) else budget - stage.weights - taken for stage in stages]


def _tokens(room: float | None, stage: Stage, block: int, case: Case) -> int | None:
    """Tokens that a cache holds: whole blocks, each of them on every rank that shares a context."""
    if room is None or math.isnan(stage.kv_per_token) or not stage.kv_per_token:
        return None
    dcp = case.split.decode_context
    return math.floor(max(0.0, room) / (stage.kv_per_token * dcp * block)) * block * dcp


def _concurrency(tokens: int | None, length: int | None, block: int) -> float | None:
    if tokens is None or not length:
        return None
    return tokens / block / math.ceil(length / block)


def _needed(stage: Stage, length: int, block: int) -> float:
    """Bytes of cache for one request of `length` tokens, and the block that vLLM keeps back."""
    return (math.ceil(length / block) + 1) * block * stage.kv_per_token


def _verdict(
    case: Case,
    stage: Stage,
    room: float | None,
    budget: float | None,
    length: int | None,
    reserve: dict[str, float],
    notes: list[str],
) -> tuple[bool | None, list[str]]:
    """Whether one request of the asked length can be served, and what would fit.

    False only where nothing could make it fit: with no reserve at all, and estimated weights a little lighter. Between
    that and the estimated reserve the answer is None.
    """
    if room is None or math.isnan(stage.kv_per_token) or not length:
        if budget is not None and stage.weights * (1 if case.tensors else 1 - DOUBT) > budget:
            notes.append(_too_heavy(stage, budget))
            return False, _lighter(case)
        return None, []
    block = _block(case) * case.split.decode_context
    needed = _needed(stage, length, block)
    fixed = case.cpu or case.kv_cache_memory_bytes is not None
    most = room
    if not fixed and budget is not None:
        most = budget - stage.weights * (1 if case.tensors else 1 - DOUBT)
    fix = [] if needed <= room else _what_would_fit(case, stage, room, budget, needed, reserve)
    if most <= 0:
        notes.append(_too_heavy(stage, budget or 0))
        return False, _lighter(case)
    if needed > most:
        notes.append(
            f"one request of {length:,} tokens needs {needed / GIB:.2f} GiB of KV cache, and there are at most "
            f"{most / GIB:.2f} GiB"
        )
        return False, fix
    if needed > room:
        notes.append(
            f"too close to tell: one request of {length:,} tokens needs {needed / GIB:.2f} GiB of KV cache; about "
            f"{max(0.0, room) / GIB:.2f} GiB are left with the estimated reserve, {most / GIB:.2f} GiB without any"
        )
        return None, fix
    if not fixed and budget is not None and needed > budget - stage.weights - WORST_RESERVE:
        notes.append(
            f"tight: with the largest reserve that published figures imply ({WORST_RESERVE / GIB:.1f} GiB) it would "
            f"not fit"
        )
    return True, fix


def _too_heavy(stage: Stage, budget: float) -> str:
    return (
        f"the weights alone, {stage.weights / GIB:.2f} GiB a GPU, exceed the {budget / GIB:.2f} GiB that vLLM may use"
    )


def _lighter(case: Case) -> list[str]:
    more = case.split.tensor * 2
    heads = case.facts.heads if case.facts else None
    fix = [f"parallel.tensor {more}, on as many GPUs"] if heads and heads % more == 0 else ["more GPUs"]
    return [*fix, "or a smaller checkpoint (NVFP4, INT4)"]


def _what_would_fit(
    case: Case, stage: Stage, room: float, budget: float | None, needed: float, reserve: dict[str, float]
) -> list[str]:
    fix = []
    block = _block(case) * case.split.decode_context
    tokens = _tokens(room, stage, _block(case), case) or 0
    longest = tokens - block
    if case.facts is not None and case.facts.context:
        longest = min(longest, case.facts.context)
    if longest > 0:
        fix.append(f"serve.max_model_len {longest}")
    if case.cpu:
        fix.append(f"env.VLLM_CPU_KVCACHE_SPACE {math.ceil(needed / GIB)}")
    elif case.kv_cache_memory_bytes is not None:
        fix.append(f"args.kv-cache-memory-bytes {math.ceil(needed)}")
    elif budget is not None and case.memory_gib:
        share = math.ceil((stage.weights + sum(reserve.values()) + needed) / (case.memory_gib * GIB) * 100) / 100
        if share <= 0.97:
            fix.append(f"serve.gpu_memory_utilization {share:.2f}")
        facts = case.facts
        halves = facts is not None and not facts.sparse and cache_bytes(case.kv_cache_dtype, facts) == MODEL_BYTES
        if halves:
            fix.append("serve.kv_cache_dtype fp8 (half the cache)")
        if facts is not None and facts.latent and not facts.sparse and case.split.decode_context < case.split.tensor:
            fix.append(f"parallel.decode_context {case.split.tensor} (the ranks share one context)")
        if not fix:
            fix = _lighter(case)
    return fix
