"""What a model is: its shape from config.json, its tensors from the safetensors headers. Weights are never read.

Three sources, the surest first: the tensors on disk, config.json on disk, and `model_facts.json` beside this module,
which holds published figures of models that kdeploy has profiles for. What no source gives is None.
"""

import json
import math
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from deploy.checkpoint.weights import read_weights
from deploy.errors import environment

SHIPPED = Path(__file__).resolve().parent / "model_facts.json"
TEXT_CONFIGS = ("text_config", "llm_config", "language_config")
CONFIG_LIMIT = 16 << 20  # bytes; a config.json has some kilobytes

# vLLM 0.33.0, transformers_utils/model_arch_config_convertor.py, is_deepseek_mla: model types whose cache is the latent
# vector. Another type with a kv_lora_rank (MiniCPM3) keeps whole heads.
LATENT_TYPES = {
    *("axk1", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe_lite", "kimi_k2", "kimi_k25"),
    *("longcat_flash", "pangu_ultra_moe"),
}


class Tensor(NamedTuple):
    """One tensor of a checkpoint. `size` in bytes; `dtype` by its safetensors name."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class Quant:
    """How a checkpoint is quantized: the method by its vLLM name; `block` of a scale (rows, columns) for block FP8;
    elements that share a scale (`group`); `bits` of a weight; names of layers that stay as they are."""

    method: str
    block: tuple[int, int] | None = None
    group: int | None = None
    bits: int | None = None
    ignored: tuple[str, ...] = ()
    kv_fp8: bool = False

    @property
    def integer4(self) -> bool:
        """Whether weights are 4-bit integers with a scale for each group."""
        return self.bits == 4 and self.method in ("compressed-tensors", "awq", "gptq", "awq_marlin", "gptq_marlin")


@dataclass(frozen=True)
class ModelFacts:
    """The shape of a model. Counts and widths in elements; None where it is not known, 0 where there is none.

    `expert_width` is the width of one routed expert, `dense_width` that of an MLP without experts; `indexer_layers` are
    the layers with an index cache of their own (sparse attention); `unusual` says why the cache cannot be counted.
    """

    source: str = ""
    architecture: str | None = None
    model_type: str | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    dense_width: int | None = None
    vocab: int | None = None
    context: int | None = None
    experts: int | None = None
    experts_per_token: int | None = None
    expert_width: int | None = None
    shared_experts: int | None = None
    shared_width: int | None = None
    dense_layers: int | None = None
    q_lora: int | None = None
    kv_lora: int | None = None
    rope_dim: int | None = None
    nope_dim: int | None = None
    value_dim: int | None = None
    index_topk: int | None = None
    index_heads: int | None = None
    index_dim: int | None = None
    indexer_layers: int | None = None
    mtp_layers: int | None = None
    tied: bool | None = None
    vision: bool = False
    vision_weights: int | None = None
    quant: Quant | None = None
    experts_format: str | None = None
    linear_format: str | None = None
    weight_bytes: int | None = None
    unusual: tuple[str, ...] = ()

    @property
    def latent(self) -> bool:
        """Whether the cache holds one latent vector a token (MLA) in place of heads."""
        return bool(self.kv_lora) and self.model_type in LATENT_TYPES

    @property
    def sparse(self) -> bool:
        """Whether attention picks its tokens through an index (DSA)."""
        return bool(self.index_topk)


def read_config(folder: str) -> ModelFacts:
    """The model in a checkpoint folder, by its config.json (and hf_quant_config.json where there is one).

    Raises:
        KdeployError: (exit 6) config.json is missing, unreadable, or no JSON object.
    """
    path = os.path.join(folder, "config.json")
    config = _json_object(path)
    if config is None:
        raise environment(f"{path} is missing", fix=["name the folder that holds config.json: --set model.path=…"])
    quant = _json_object(os.path.join(folder, "hf_quant_config.json")) or {}
    return facts_of(config, path, beside=quant.get("quantization"))


def _json_object(path: str) -> dict[str, Any] | None:
    """The JSON object in a file; None when there is no such file."""
    try:
        with open(path, "rb") as file:
            document = json.loads(file.read(CONFIG_LIMIT))
        if not isinstance(document, dict):
            raise ValueError(f"a JSON {type(document).__name__} where an object belongs")
        return document
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise environment(
            f"{path} cannot be read", evidence=[f"{type(error).__name__}: {error}"], fix=["fetch it again"]
        ) from None


def read_tensors(folder: str) -> list[Tensor]:
    """Every tensor of a checkpoint folder by the headers of its safetensors files; empty for another format.

    Raises:
        KdeployError: (exit 6) the checkpoint is not whole.
    """
    tensors = []
    for file in read_weights(folder):
        with open(os.path.join(folder, file.name), "rb") as shard:
            (length,) = struct.unpack("<Q", shard.read(8))
            header = json.loads(shard.read(length))
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                tensors.append(Tensor(name, str(entry.get("dtype", "")), tuple(entry.get("shape", ())), end - begin))
    return tensors


def shipped_facts(model_id: str | None) -> ModelFacts | None:
    """What `model_facts.json` knows of a hub id; None when it does not know it."""
    models = _shipped()
    if model_id not in models:
        return None
    entry = models[model_id]
    base = models[entry["same_as"]] if "same_as" in entry else {}
    config = {**base.get("config", {}), **entry.get("config", {})}
    if "quantization_config" in entry:  # the same model in another format
        text = {key: value for key, value in config.get("text_config", {}).items() if key != "quantization_config"}
        config = {**config, **({"text_config": text} if text else {})}
        config["quantization_config"] = entry["quantization_config"]
    merged = {**base, **entry}
    return facts_of(
        config,
        f"{SHIPPED.name}: {model_id}",
        experts_format=merged.get("experts_format"),
        linear_format=merged.get("linear_format"),
        weight_bytes=entry.get("weight_bytes"),
    )


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    models: dict[str, dict[str, Any]] = json.loads(SHIPPED.read_text())["models"]
    return models


class _Keys:
    """Keys of the text model's config: nested ones win over those of the whole, as vLLM's hf_text_config does."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        nested = next((config[key] for key in TEXT_CONFIGS if isinstance(config.get(key), dict)), None)
        self.layers: list[Mapping[str, Any]] = [nested or {}, config]

    def get(self, *names: str) -> Any:
        """The first of `names` that is set."""
        for layer in self.layers:
            for name in names:
                if layer.get(name) is not None:
                    return layer[name]
        return None

    def count(self, *names: str) -> int | None:
        """As `get`, where it is a count; lists (layers that differ) and nonsense are None."""
        value = self.get(*names)
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        return value if whole else None


def facts_of(
    config: Mapping[str, Any],
    source: str,
    *,
    beside: Any = None,
    experts_format: str | None = None,
    linear_format: str | None = None,
    weight_bytes: int | None = None,
) -> ModelFacts:
    """The facts in a config.json that is already read.

    Args:
        config: the document.
        source: where it came from, for people.
        beside: the `quantization` map of hf_quant_config.json.
        experts_format, linear_format: storage of routed experts and of other linear layers, where it is known.
        weight_bytes: size of the whole checkpoint.
    """
    keys = _Keys(config)
    architectures = keys.layers[1].get("architectures") or keys.get("architectures")
    heads = keys.count("num_attention_heads", "n_head")
    hidden = keys.count("hidden_size", "n_embd")
    experts = keys.count("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts") or 0
    width = keys.count("intermediate_size")
    moe_width = keys.count("moe_intermediate_size")
    layers = keys.count("num_hidden_layers", "n_layer")
    kv_heads = keys.count("num_kv_heads", "num_key_value_heads", "multi_query_group_num")
    quant = _quant(keys.get("quantization_config") or beside)
    formats = _formats(quant, keys)
    model_type = keys.get("model_type")
    return ModelFacts(
        source=source,
        architecture=architectures[0] if isinstance(architectures, list) and architectures else None,
        model_type=model_type if isinstance(model_type, str) else None,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads if kv_heads is not None else heads,
        head_dim=keys.count("head_dim") or (hidden // heads if hidden and heads else None),
        # a model of experts only (MiniMax, Mixtral) names their width intermediate_size
        dense_width=None if experts and moe_width is None else width,
        vocab=keys.count("vocab_size"),
        context=keys.count("max_position_embeddings", "max_sequence_length", "n_positions"),
        # a config that names a shape and no experts is a dense model; one without a shape says nothing
        experts=experts if layers else (experts or None),
        experts_per_token=keys.count("num_experts_per_tok", "moe_top_k", "num_experts_per_token"),
        expert_width=(moe_width if moe_width is not None else width) if experts else None,
        shared_experts=keys.count("n_shared_experts", "num_shared_experts"),
        shared_width=keys.count("shared_expert_intermediate_size"),
        dense_layers=keys.count("first_k_dense_replace") or 0,
        q_lora=keys.count("q_lora_rank"),
        kv_lora=keys.count("kv_lora_rank"),
        rope_dim=keys.count("qk_rope_head_dim"),
        nope_dim=keys.count("qk_nope_head_dim"),
        value_dim=keys.count("v_head_dim"),
        index_topk=keys.count("index_topk"),
        index_heads=keys.count("index_n_heads"),
        index_dim=keys.count("index_head_dim"),
        indexer_layers=_indexer_layers(keys, layers),
        mtp_layers=keys.count("num_nextn_predict_layers", "num_mtp_modules") or 0,
        tied=keys.get("tie_word_embeddings") if isinstance(keys.get("tie_word_embeddings"), bool) else None,
        vision=isinstance(config.get("vision_config"), dict),
        vision_weights=_vision_weights(config.get("vision_config")),
        quant=quant,
        experts_format=experts_format or formats[0],
        linear_format=linear_format or formats[1],
        weight_bytes=weight_bytes,
        unusual=_unusual(keys),
    )


def _quant(document: Any) -> Quant | None:
    """The quantization_config of config.json, or the `quantization` map of ModelOpt's hf_quant_config.json."""
    if not isinstance(document, dict):
        return None
    inner = document["quantization"] if isinstance(document.get("quantization"), dict) else document
    algorithm = str(inner.get("quant_algo") or "").upper()
    method = str(document.get("quant_method") or ("modelopt" if algorithm else "")).lower()
    weights = _first_group(document)
    lists = (inner.get(key) for key in ("ignore", "modules_to_not_convert", "exclude_modules"))
    ignored: list[Any] = next((names for names in lists if isinstance(names, list)), [])
    scheme = inner.get("kv_cache_scheme")
    kv_bits = scheme.get("num_bits") if isinstance(scheme, dict) else None
    return Quant(
        method={"NVFP4": "modelopt_fp4"}.get(algorithm, method) if "modelopt" in method else method,
        block=_pair(inner.get("weight_block_size")),
        group=_whole(weights.get("group_size")) or _whole(inner.get("group_size")),
        bits=4 if algorithm == "NVFP4" else _whole(weights.get("num_bits")) or _whole(inner.get("bits")),
        ignored=tuple(str(name) for name in ignored),
        kv_fp8=str(inner.get("kv_cache_quant_algo") or "").upper() == "FP8" or kv_bits == 8,
    )


def _first_group(document: Mapping[str, Any]) -> Mapping[str, Any]:
    groups = document.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    return weights if isinstance(weights, dict) else {}


def _pair(value: Any) -> tuple[int, int] | None:
    whole = isinstance(value, Sequence) and len(value) == 2 and all(_whole(item) for item in value)
    return (value[0], value[1]) if whole else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _formats(quant: Quant | None, keys: _Keys) -> tuple[str | None, str | None]:
    """How routed experts and other linear layers are stored, where the quantization says it without doubt."""
    if quant is None:
        return ("bf16", "bf16") if keys.get("quantization_config") is None else (None, None)
    if quant.method == "fp8" and quant.block == (128, 128):
        return "fp8-block", "fp8-block"
    if quant.method == "compressed-tensors" and quant.integer4 and quant.group == 32:
        spared = any("self_attn" in name for name in quant.ignored)
        return "int4-group32", "bf16" if spared else "int4-group32"
    return None, None


def _indexer_layers(keys: _Keys, layers: int | None) -> int | None:
    """Layers that build an index of their own; the others reuse the one below (vLLM, deepseek_v2.py, `_skip_topk`)."""
    if not layers or keys.count("index_topk") is None:
        return 0 if layers else None
    pattern = keys.get("index_topk_pattern")
    if isinstance(pattern, str):
        return sum(1 for number in range(layers) if pattern[number : number + 1] != "S")
    every = keys.count("index_topk_freq") or 1
    offset = keys.count("index_skip_topk_offset")
    offset = 2 if offset is None else offset
    return sum(1 for number in range(layers) if max(number - offset + 1, 0) % every == 0)


def _vision_weights(vision: Any) -> int | None:
    """Elements of a Kimi-K2.5 vision tower and projector, by the shapes in vLLM's kimi_k25_vit.py."""
    if not isinstance(vision, dict):
        return None
    names = ("vt_num_hidden_layers", "vt_hidden_size", "vt_intermediate_size", "text_hidden_size")
    layers, width, inner, text = (_whole(vision.get(name)) for name in names)
    if not (layers and width and inner and text):
        return None
    merged = width * math.prod(_pair(vision.get("merge_kernel_size")) or (2, 2))
    blocks = layers * (4 * width * width + 2 * width * inner)
    return blocks + merged * merged + merged * text


def _unusual(keys: _Keys) -> tuple[str, ...]:
    """Why layers do not all keep one vector (or one set of heads) a token for the whole context."""
    reasons = []
    kinds = keys.get("layer_types")
    if isinstance(kinds, list):
        others = sorted({str(kind) for kind in kinds} - {"full_attention", "deepseek_sparse_attention"})
        if others:
            reasons.append(f"layers of other kinds: {', '.join(others)}")
    window = keys.count("sliding_window")
    if window and keys.get("use_sliding_window") is not False and kinds is None:
        reasons.append(f"a sliding window of {window} tokens")
    linear = ("linear_attn_config", "hybrid_override_pattern", "full_attention_interval", "ssm_cfg", "mamba_d_state")
    for name in (*linear, "compress_ratios", "block_configs", "attention_chunk_size", "is_encoder_decoder"):
        if keys.get(name):
            reasons.append(f"config.json has {name}")
    mixed = keys.get("attn_type_list")
    if isinstance(mixed, list) and len(set(map(str, mixed))) > 1:
        reasons.append("attn_type_list names more than one kind")
    if keys.count("kv_lora_rank") and keys.get("model_type") not in LATENT_TYPES:
        reasons.append(f"latent attention of the model type {keys.get('model_type')}")
    return tuple(reasons)
