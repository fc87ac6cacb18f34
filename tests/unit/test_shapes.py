"""The shape rules: what vLLM refuses is refused, what it loads is let through, what is not known is never refused."""

from dataclasses import replace

import pytest

from deploy.checkpoint.config import ModelFacts, Quant, facts_of, shipped_facts
from deploy.engine.shapes import ERROR, NOTE, Finding, Split, check, engine_of

V33 = "0.33.0"
FP8 = Quant("fp8", block=(128, 128))
FORK = "0.33.0rc1.dev249+glmkimirebase20260514"


def model(name: str) -> ModelFacts:
    facts = shipped_facts(name)
    assert facts is not None
    return facts


KIMI = model("moonshotai/Kimi-K2.5")
MINIMAX = model("MiniMaxAI/MiniMax-M2.5")
GLM = model("nvidia/GLM-5-NVFP4")
LLAMA = ModelFacts(
    layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, dense_width=14336, vocab=128256, experts=0
)
NARROW = replace(MINIMAX, expert_width=320, hidden=2048)


def codes(found: list[Finding], severity: str = ERROR) -> list[str]:
    return [item.code for item in found if item.severity == severity]


SHIPPED = [
    ("moonshotai/Kimi-K2.5", Split(8), 8),
    ("moonshotai/Kimi-K2.6", Split(8, decode_context=8), 8),
    ("nvidia/Kimi-K2.5-NVFP4", Split(8), 8),
    ("MiniMaxAI/MiniMax-M2.5", Split(4, expert=True), 4),
    ("MiniMaxAI/MiniMax-M2.5", Split(4), 4),
    ("MiniMaxAI/MiniMax-M2.5", Split(8, expert=True), 8),
    ("MiniMaxAI/MiniMax-M2.5", Split(8), 8),
    ("MiniMaxAI/MiniMax-M2.7", Split(2, data=2, expert=True), 4),
    ("nvidia/GLM-5-NVFP4", Split(8), 8),
    ("nvidia/GLM-5-NVFP4", Split(2, pipeline=3), 6),
    ("nvidia/GLM-5.2-NVFP4", Split(4, expert=True), 4),
]


@pytest.mark.parametrize(("name", "split", "gpus"), SHIPPED)
def test_what_033_loads_is_let_through(name: str, split: Split, gpus: int) -> None:
    assert codes(check(model(name), split, V33, gpus=gpus, capability="12.0")) == []


@pytest.mark.parametrize(
    ("facts", "split", "code", "sum_done"),
    [
        (KIMI, Split(6), "heads", "64 attention heads / tensor 6 = 10.6667"),
        (MINIMAX, Split(6), "kv-heads", "8 KV heads / tensor 6"),
        (MINIMAX, Split(12), "kv-heads", "tensor 12 / 8 KV heads = 1.5"),
        (KIMI, Split(8, decode_context=3), "decode-context", "tensor 8 / decode_context 3"),
        (MINIMAX, Split(8, decode_context=2), "decode-context-gqa", "tensor 8 / 8 KV heads = 1"),
        (LLAMA, Split(16, decode_context=4), "decode-context-gqa", "tensor 16 / 8 KV heads = 2"),
        (GLM, Split(8, decode_context=8), "decode-context-sparse", "LSE"),
        (LLAMA, Split(2, expert=True), "expert-dense", "0 experts"),
        (replace(MINIMAX, experts=4, heads=64), Split(8), "experts", "tensor 8 > 4 experts"),
        (replace(KIMI, expert_width=2052), Split(8), "expert-width", "2052 / 8 ranks"),
        (replace(KIMI, expert_width=1920), Split(8), "int4-groups", "= 240, no multiple of the INT4 group of 32"),
    ],
)
def test_what_033_refuses_is_refused_with_the_sum(facts: ModelFacts, split: Split, code: str, sum_done: str) -> None:
    found = check(facts, split, V33, capability="12.0")
    assert code in codes(found)
    assert any(sum_done in item.text for item in found if item.code == code)


def test_ranks_and_gpus() -> None:
    (found,) = check(KIMI, Split(4, pipeline=2, data=2), V33, gpus=8)
    assert (found.severity, found.code) == (ERROR, "gpus")
    assert found.text == "tensor 4 x pipeline 2 x data 2 = 16 ranks, and 8 GPUs"
    assert check(KIMI, Split(8), V33, gpus=0) == []
    assert check(KIMI, Split(8), V33, gpus=None) == []


def test_kv_heads_that_are_replicated_are_only_told() -> None:
    assert codes(check(LLAMA, Split(16), V33), NOTE) == ["kv-heads-replicated"]


@pytest.mark.parametrize("version", ["0.20.2", "0.24.0", "0.29.1"])
def test_whole_fp8_blocks_before_they_could_be_refined(version: str) -> None:
    found = check(MINIMAX, Split(8), version)
    assert codes(found) == ["fp8-blocks"]
    assert "1536 / 8 ranks = 192" in found[0].text
    assert found[0].fix == "parallel.expert true, or tensor x data 6"
    assert codes(check(MINIMAX, Split(8, expert=True), version)) == []
    assert codes(check(MINIMAX, Split(4), version)) == []


def test_fp8_blocks_of_versions_that_nobody_read_are_not_refused() -> None:
    assert codes(check(MINIMAX, Split(8), "0.31.0")) == []
    assert codes(check(MINIMAX, Split(8), "0.31.0"), NOTE) == ["fp8-blocks"]


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu", "0.33.0", "0.33.0+cu130"])
def test_fp8_blocks_are_refined_since_032(version: str) -> None:
    found = check(MINIMAX, Split(8), version)
    assert codes(found) == []
    assert codes(found, NOTE) == ["fp8-blocks-refined"]
    assert "64x64" in found[0].text
    assert "gcd(128, 128, 192, hidden 3072) = 64" in found[0].text


@pytest.mark.parametrize(
    ("split", "severity", "code"),
    [
        (Split(1), NOTE, "fp8-blocks-refined"),  # gcd 64
        (Split(2), NOTE, "fp8-blocks-refined"),  # 160: gcd 32
        (Split(4), ERROR, "fp8-blocks"),  # 80: gcd 16
        (Split(8), ERROR, "fp8-blocks"),  # 40: gcd 8
        (Split(8, expert=True), NOTE, "fp8-blocks-refined"),  # the whole width on each rank
        (Split(1, data=2), NOTE, "fp8-blocks-refined"),  # data ranks cut experts, too
        (Split(2, data=2), ERROR, "fp8-blocks"),
    ],
)
def test_experts_of_width_320(split: Split, severity: str, code: str) -> None:
    found = check(NARROW, split, V33)
    assert [(item.severity, item.code) for item in found if item.code.startswith("fp8")] == [(severity, code)]


def test_fp8_blocks_with_a_backend_that_was_named() -> None:
    assert codes(check(MINIMAX, Split(8), V33, moe_backend="triton"), NOTE) == ["fp8-blocks-refined"]
    padded = check(MINIMAX, Split(8), V33, moe_backend="deep_gemm")
    assert codes(padded, NOTE) == ["fp8-blocks-padded"]
    assert "to 256" in padded[0].text
    assert codes(check(NARROW, Split(2), V33, moe_backend="deep_gemm")) == ["fp8-blocks"]
    assert codes(check(NARROW, Split(2), V33, moe_backend="marlin")) == []
    assert codes(check(NARROW, Split(4), V33, moe_backend="triton")) == ["fp8-blocks"]


def test_dense_and_shared_layers_in_fp8_blocks() -> None:
    dense = replace(LLAMA, dense_width=1536)
    assert codes(check(dense, Split(8), V33, FP8)) == ["fp8-blocks-dense"]
    assert codes(check(LLAMA, Split(8), V33, FP8)) == []
    shared = replace(GLM, shared_experts=1, expert_width=1536, index_topk=None)
    assert "fp8-blocks-dense" in codes(check(shared, Split(8), V33, FP8))
    spared = replace(FP8, ignored=("re:.*shared_experts.*", "re:.*mlp.down_proj"))
    assert codes(check(shared, Split(8), V33, spared)) == []


def test_sparse_attention_depends_on_gpu_backend_and_version() -> None:
    split = Split(8, decode_context=8)
    assert codes(check(GLM, split, V33, capability="9.0")) == []
    assert codes(check(GLM, split, V33)) == []
    assert codes(check(GLM, split, V33, capability="12.0", attention_backend="TRITON_MLA")) == []
    assert codes(check(GLM, split, FORK, capability="12.0")) == []
    assert codes(check(GLM, Split(8), "0.19.1", capability="12.0"), NOTE) == ["sparse-backend"]
    assert codes(check(replace(GLM, index_topk=1024), Split(8), V33, capability="12.0")) == ["sparse-topk"]


def test_uneven_experts_load() -> None:
    found = check(MINIMAX, Split(1, data=3, expert=True), V33)
    assert codes(found) == []
    assert codes(found, NOTE) == ["experts-uneven"]
    assert "1 ranks hold 86, the others 85" in found[0].text


@pytest.mark.parametrize("version", [None, "", "unknown", FORK, "0.34.0", "1.0", "0.33.0.dev5"])
def test_an_engine_with_unknown_rules_is_not_refused(version: str | None) -> None:
    for facts, split in [(KIMI, Split(6)), (MINIMAX, Split(8)), (GLM, Split(8, decode_context=3)), (LLAMA, Split(3))]:
        assert codes(check(facts, split, version, capability="12.0")) == []
    assert codes(check(KIMI, Split(8), version, gpus=4)) == ["gpus"]


@pytest.mark.parametrize("split", [Split(7), Split(8, decode_context=8), Split(4, data=2, expert=True), Split(2, 3)])
def test_a_model_that_is_not_known_is_not_refused(split: Split) -> None:
    assert codes(check(ModelFacts(), split, V33, capability="12.0")) == []


def test_engines_by_their_version() -> None:
    assert engine_of("0.33.0+cpu").known
    assert not engine_of("0.20.2rc1.dev249+glmkimirebase20260514").known
    assert engine_of("0.25.1").release == (0, 25)


def test_the_text_config_of_a_multimodal_model_is_the_model() -> None:
    config = {
        "architectures": ["X"],
        "vision_config": {"num_attention_heads": 3},
        "text_config": {"model_type": "qwen3", "num_hidden_layers": 2, "num_attention_heads": 12, "hidden_size": 768},
    }
    facts = facts_of(config, "here")
    assert (facts.heads, facts.kv_heads, facts.head_dim, facts.vision) == (12, 12, 64, True)
    assert codes(check(facts, Split(8), V33)) == ["heads", "kv-heads"]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"num_hidden_layers": "many", "num_attention_heads": [1, 2], "quantization_config": 7},
        {"text_config": None, "quantization_config": {"weight_block_size": [128]}},
        {"quantization_config": {"config_groups": {"a": {"weights": None}}, "ignore": "lm_head"}},
        {"architectures": "X", "num_experts": [8, 8], "vision_config": {"merge_kernel_size": "2"}},
    ],
)
def test_a_strange_config_is_a_model_that_is_not_known(config: dict[str, object]) -> None:
    facts = facts_of(config, "here")
    assert facts.heads is None
    assert codes(check(facts, Split(8), V33)) == []
