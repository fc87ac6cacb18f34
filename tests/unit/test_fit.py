"""The memory arithmetic, beside published boot figures. docs/fit.md explains each difference."""

from dataclasses import replace

import pytest

from deploy.checkpoint.config import ModelFacts, Tensor, facts_of, shipped_facts
from deploy.engine.shapes import Split
from deploy.plan.fit import GIB, Case, Fit, estimate, expected_tensors, pipeline_parts, rank_share

# What CUDA sees of an RTX PRO 6000 Blackwell (torch's error texts); the published GLM log implies the same: it would
# raise the utilization by 0.0502 for graphs of 4.77 GiB.
MEMORY_GIB = 94.97


def model(name: str) -> ModelFacts:
    facts = shipped_facts(name)
    assert facts is not None
    return facts


MINIMAX = Case("m", model("MiniMaxAI/MiniMax-M2.5"), (), Split(4), 196_608, memory_gib=MEMORY_GIB, version="0.16.0")
KIMI = Case("k", model("moonshotai/Kimi-K2.5"), (), Split(8), 262_144, "fp8", memory_gib=MEMORY_GIB, version="0.17.0")
GLM51 = Case("g", model("nvidia/GLM-5.1-NVFP4"), (), Split(8), 202_752, "fp8", memory_gib=MEMORY_GIB)
# the flags of the published log
LOGGED = GLM51._replace(
    utilization=0.865, batched_tokens=8192, sequences=64, graphs_counted=False, version="0.20.2", capability="12.0"
)


def room(case: Case, gib: float) -> Fit:
    """The fit where vLLM found `gib` for its cache."""
    return estimate(case._replace(kv_cache_memory_bytes=round(gib * GIB)))


# ---------------------------------------------------------------------- published figures


@pytest.mark.parametrize(("case", "published_gib"), [(MINIMAX, 53.75), (GLM51, 55.67)])
def test_weights_of_a_gpu_as_published(case: Case, published_gib: float) -> None:
    assert estimate(case).weights_gib == pytest.approx(published_gib, rel=0.03)


@pytest.mark.parametrize("name", ["moonshotai/Kimi-K2.5", "moonshotai/Kimi-K2.6"])
def test_the_whole_of_kimi_is_as_large_as_published(name: str) -> None:
    tensors = expected_tensors(model(name))
    assert tensors is not None
    assert sum(tensor.size for tensor in tensors) == pytest.approx(595e9, rel=0.01)


@pytest.mark.parametrize(
    ("case", "gib", "tokens"),
    [
        (MINIMAX, 23.62, 399_424),
        (GLM51._replace(capability="12.0"), 19.55, 341_504),
    ],
)
def test_tokens_of_a_published_cache(case: Case, gib: float, tokens: int) -> None:
    assert room(case, gib).kv_tokens == pytest.approx(tokens, rel=0.001)


@pytest.mark.parametrize(
    ("case", "tokens"),
    [
        # Kimi-K2.5, fp8 KV, utilization 0.93, batches of 4096; and with all ranks sharing a context
        (KIMI._replace(utilization=0.93, batched_tokens=4096, vision="copied"), 449_600),
        (
            KIMI._replace(utilization=0.93, batched_tokens=4096, vision="copied", split=Split(8, 1, 1, False, 8)),
            3_621_504,
        ),
        # Kimi-K2.6, utilization 0.94, no draft model
        (
            LOGGED._replace(
                profile="k", facts=model("moonshotai/Kimi-K2.6"), max_model_len=262_144, utilization=0.94, sequences=128
            ),
            478_992,
        ),
    ],
)
def test_tokens_from_a_published_utilization(case: Case, tokens: int) -> None:
    fit = estimate(case)
    assert fit.kv_tokens == pytest.approx(tokens, rel=0.10)
    assert fit.fits is True


def test_where_published_figures_do_not_determine_the_reserve() -> None:
    """The reserve is missing here: that of a fork's kernels (GLM-5.1), of an unknown version (MiniMax)."""
    glm = estimate(LOGGED)
    minimax = estimate(MINIMAX._replace(utilization=0.9))
    assert glm.kv_tokens == pytest.approx(341_504 * 1.19, rel=0.02)
    assert minimax.kv_tokens == pytest.approx(399_424 * 1.25, rel=0.02)


def test_a_stock_engine_with_measured_weights() -> None:
    """GLM-5.2 pruned, stock 0.25.1, four GPUs: 79.1 GB a GPU, 164,160 tokens without DCP."""
    case = Case("r", model("nvidia/GLM-5.2-NVFP4"), (), Split(4, expert=True), 250_000, "fp8", memory_gib=MEMORY_GIB)
    measured = [Tensor("x.all.o_proj.weight", "", (), round(79.1e9 * 4))]
    fit = estimate(case._replace(tensors=measured, utilization=0.92, capability="12.0", version="0.25.1"))
    assert fit.kv_bytes_per_token == 78 * 656 + 21 * 132
    assert fit.kv_tokens == pytest.approx(164_160, rel=0.12)


def test_the_recorded_log_of_the_demo() -> None:
    tiny = facts_of(
        {
            "model_type": "deepseek_v3",
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
            "hidden_size": 512,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "max_position_embeddings": 4096,
        },
        "here",
    )
    fit = estimate(Case("t", tiny, (), Split(2, expert=True), 1024, cpu=True, cpu_kv_gib=1))
    assert fit.kv_tokens == 233_008
    assert fit.concurrency == pytest.approx(227.55, abs=0.005)
    assert (fit.fits, fit.longest_context, fit.memory_gib) == (True, 4096, None)


# ---------------------------------------------------------------------- cache


@pytest.mark.parametrize(
    ("case", "size"),
    [
        (KIMI, 61 * 576),
        (KIMI._replace(kv_cache_dtype="auto"), 61 * 576 * 2),
        (KIMI._replace(split=Split(8, 1, 1, False, 8)), 61 * 576 / 8),
        (MINIMAX, 62 * 2 * 2 * 128 * 2),
        (MINIMAX._replace(split=Split(8)), 62 * 1 * 2 * 128 * 2),
        (MINIMAX._replace(split=Split(16)), 62 * 1 * 2 * 128 * 2),  # copies do not shrink it
        (MINIMAX._replace(kv_cache_dtype="fp8"), 62 * 2 * 2 * 128),
        (GLM51._replace(capability="12.0", kv_cache_dtype="auto"), 78 * (656 + 132)),
        (GLM51._replace(capability="9.0", kv_cache_dtype="bfloat16"), 78 * (1152 + 132)),
        # a plugin's sparse backend: vLLM leaves the cache as it was named
        (GLM51._replace(capability="12.0", attention_backend="CUSTOM"), 78 * (576 + 132)),
        (GLM51._replace(capability="12.0", attention_backend="CUSTOM", kv_cache_dtype="bfloat16"), 78 * (1152 + 132)),
        (GLM51._replace(attention_backend="CUSTOM", kv_cache_dtype="fp8_ds_mla"), 78 * (656 + 132)),
        (GLM51._replace(attention_backend="CUSTOM", split=Split(8, decode_context=8)), 78 * (576 + 132) / 8),
    ],
)
def test_bytes_of_a_token(case: Case, size: float) -> None:
    assert estimate(case).kv_bytes_per_token == pytest.approx(size, abs=0.01)


def test_shared_indexes_have_no_cache_of_their_own() -> None:
    assert model("nvidia/GLM-5.2-NVFP4").indexer_layers == 21
    assert model("nvidia/GLM-5.1-NVFP4").indexer_layers == 78
    pattern = facts_of({"num_hidden_layers": 4, "index_topk": 2048, "index_topk_pattern": "FSSF"}, "here")
    assert pattern.indexer_layers == 2


def test_a_cache_that_cannot_be_counted_gives_no_verdict() -> None:
    hybrid = replace(model("MiniMaxAI/MiniMax-M2.5"), unusual=("a sliding window of 4096 tokens",))
    fit = estimate(MINIMAX._replace(facts=hybrid))
    assert (fit.fits, fit.kv_tokens) == (None, None)
    assert any("sliding window" in note for note in fit.notes)


# ---------------------------------------------------------------------- weights


SHARES = [
    ("model.layers.3.self_attn.q_a_proj.weight", 1),
    ("model.layers.3.self_attn.kv_a_proj_with_mqa.weight", 1),
    ("model.layers.3.self_attn.q_b_proj.weight", 1 / 8),
    ("model.layers.3.self_attn.kv_b_proj.weight", 1 / 8),
    ("model.layers.3.self_attn.o_proj.weight_scale_inv", 1 / 8),
    ("model.layers.3.self_attn.indexer.wq_b.weight", 1),
    ("model.layers.3.input_layernorm.weight", 1),
    ("model.layers.3.mlp.gate.weight", 1),
    ("model.layers.3.mlp.gate.e_score_correction_bias", 1),
    ("model.layers.3.mlp.experts.7.down_proj.weight_packed", 1 / 8),
    ("model.layers.3.mlp.shared_experts.down_proj.weight", 1 / 8),
    ("model.layers.0.mlp.gate_proj.weight", 1 / 8),
    ("language_model.model.embed_tokens.weight", 1 / 8),
    ("language_model.lm_head.weight", 1 / 8),
    ("vision_tower.encoder.blocks.0.wqkv.weight", 1 / 8),
    ("mm_projector.proj.0.weight", 1),
]


@pytest.mark.parametrize(("name", "share"), SHARES)
def test_the_share_of_a_rank(name: str, share: float) -> None:
    assert rank_share(name, model("moonshotai/Kimi-K2.5"), Split(8)) == (share, True)


def test_shares_under_other_splits() -> None:
    minimax = model("MiniMaxAI/MiniMax-M2.5")
    expert = "model.layers.0.block_sparse_moe.experts.255.w1.weight"
    assert rank_share(expert, minimax, Split(4, expert=True)) == (64 / 256, True)
    assert rank_share(expert, minimax, Split(1, data=3, expert=True)) == (86 / 256, True)
    assert rank_share(expert, minimax, Split(2, data=2)) == (1 / 4, True)
    assert rank_share("model.layers.0.self_attn.k_proj.weight", minimax, Split(16)) == (1 / 8, True)
    assert rank_share("model.layers.0.mixer.something", minimax, Split(4)) == (1 / 4, False)
    assert rank_share("vision_tower.blocks.0.wo.weight", minimax, Split(4), "copied") == (1, True)


def test_headers_win_and_layers_for_drafts_are_left_out() -> None:
    facts = model("nvidia/GLM-5.1-NVFP4")
    tensors = [
        Tensor("model.layers.0.self_attn.o_proj.weight", "BF16", (8, 8), 8 * GIB),
        Tensor("model.layers.78.mlp.experts.0.up_proj.weight", "BF16", (8, 8), 80 * GIB),
    ]
    case = GLM51._replace(facts=facts, tensors=tensors)
    assert estimate(case).weights_gib == 1
    assert estimate(case).exact
    assert estimate(case._replace(draft="mtp")).weights_gib == 11


def test_full_precision_weights_are_kept_in_the_models_type() -> None:
    tensors = [Tensor("model.layers.0.mlp.up_proj.weight", "F32", (1 << 14, 1 << 14), GIB)]
    assert estimate(MINIMAX._replace(tensors=tensors, split=Split(1))).weights_gib == 0.5


def test_the_fullest_stage_of_a_pipeline_decides() -> None:
    assert pipeline_parts(61, 2) == [(0, 31), (31, 61)]
    assert pipeline_parts(78, 4) == [(0, 19), (19, 39), (39, 59), (59, 78)]
    whole = estimate(KIMI._replace(split=Split(8)))
    halves = estimate(KIMI._replace(split=Split(4, 2)))
    assert whole.weights_gib is not None
    assert halves.weights_gib == pytest.approx(whole.weights_gib, rel=0.06)
    assert halves.kv_bytes_per_token == 31 * 576


def test_weights_that_no_rule_knows_are_told() -> None:
    fit = estimate(MINIMAX._replace(tensors=[Tensor("blob.1", "BF16", (2,), 4 * GIB)]))
    assert fit.weights_gib == 1
    assert any("4.00 GiB of tensors that no rule knows" in note for note in fit.notes)


# ---------------------------------------------------------------------- verdicts


def test_weights_that_exceed_the_budget() -> None:
    fit = estimate(MINIMAX._replace(split=Split(2), utilization=0.95))
    assert fit.fits is False
    assert fit.kv_tokens == 0
    assert fit.fix[0] == "parallel.tensor 4, on as many GPUs"


def test_a_context_that_exceeds_the_cache_gets_the_number_that_fits() -> None:
    fit = room(KIMI, 8)
    assert fit.fits is False
    assert fit.kv_tokens is not None
    length = fit.kv_tokens - 16  # vLLM keeps one block back
    assert fit.fix[0] == f"serve.max_model_len {length}"
    assert room(KIMI._replace(max_model_len=length), 8).fits is True
    assert room(KIMI._replace(max_model_len=length + 16), 8).fits is False


def test_a_utilization_that_would_do() -> None:
    fit = estimate(KIMI._replace(utilization=0.87, version="0.33.0"))
    assert fit.fits is None  # the reserve decides, and it is an estimate
    share = float(next(word for word in fit.fix if "utilization" in word).split()[1])
    assert estimate(KIMI._replace(utilization=share, version="0.33.0")).fits is True
    assert estimate(KIMI._replace(utilization=share - 0.02, version="0.33.0")).fits is not True


def test_close_calls_are_not_refused() -> None:
    close = estimate(KIMI._replace(utilization=0.86))
    assert close.fits is None
    assert any("too close to tell" in note for note in close.notes)
    tight = estimate(KIMI._replace(utilization=0.92))
    assert tight.fits is True
    assert any(note.startswith("tight") for note in tight.notes)


@pytest.mark.parametrize(
    ("case", "missing"),
    [
        (KIMI._replace(memory_gib=None), "hardware.memory_gib"),
        (KIMI._replace(facts=None), "config.json"),
        (KIMI._replace(cpu=True), "VLLM_CPU_KVCACHE_SPACE"),
        (KIMI._replace(facts=replace(model("moonshotai/Kimi-K2.5"), linear_format=None, weight_bytes=None)), "weights"),
        (KIMI._replace(facts=ModelFacts()), "heads"),
    ],
)
def test_what_is_missing_is_named(case: Case, missing: str) -> None:
    fit = estimate(case)
    assert fit.fits is None
    assert any(note.startswith("missing") and missing in note for note in fit.notes), fit.notes
    document = fit.to_json()
    assert document["schema"] == 1
    assert document["fits"] is None


def test_facts_that_are_shipped_name_their_sources_and_invent_nothing() -> None:
    assert shipped_facts("somebody/else") is None
    assert shipped_facts(None) is None
    nvfp4 = model("nvidia/Kimi-K2.5-NVFP4")
    assert nvfp4.weight_bytes is None
    assert nvfp4.quant is not None
    assert nvfp4.quant.method == "modelopt_fp4"
    assert model("MiniMaxAI/MiniMax-M2.5").weight_bytes is None
    assert model("nvidia/GLM-5.2-NVFP4").context == 1_048_576
