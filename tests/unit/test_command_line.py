"""From a profile to the words of `vllm serve`."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.engine.flags import MANAGED, objections, shipped_flags
from deploy.errors import USAGE, KdeployError
from deploy.plan.command_line import serve_arguments
from deploy.profile.schema import Profile
from deploy.profile.validate import validate
from deploy.profile.yaml_reader import read_document

FLAGS = shipped_flags()


def profile(text: str) -> Profile:
    """The profile that the text is."""
    found, problems = validate(read_document(text.encode(), "x.yaml"))
    assert found is not None, problems
    return found


def words(args: str, rest: str = "") -> list[str]:
    """What `args: {…}` adds to the bare command."""
    bare = serve_arguments(profile(rest or "{}"), "M", FLAGS)
    full = serve_arguments(profile(f"{rest}\nargs: {args}\n"), "M", FLAGS)
    assert full[: len(bare)] == bare
    return full[len(bare) :]


def refusal(args: str, rest: str = "") -> KdeployError:
    """The error that `args: {…}` ends in."""
    with pytest.raises(KdeployError) as caught:
        words(args, rest)
    assert caught.value.code == USAGE
    return caught.value


# ---------------------------------------------------------------- the managed ones


def test_the_model_comes_first_and_defaults_are_not_written() -> None:
    assert serve_arguments(profile("{}"), "/m", FLAGS) == ["serve", "/m", "--host", "127.0.0.1", "--port", "8000"]


def test_every_profile_key_has_its_flag() -> None:
    text = """
model: {id: a/b, revision: abc, served_name: [x, 3.10], trust_remote_code: true}
parallel: {tensor: 8, pipeline: 2, data: 3, expert: true, decode_context: 4}
serve:
  host: "::"
  port: 017
  max_model_len: 1e5
  gpu_memory_utilization: 9e-1
  kv_cache_dtype: fp8
  reasoning_parser: kimi_k2
  tool_call_parser: kimi_k2
load: {strategy: prefetch}
"""
    assert serve_arguments(profile(text), "a/b", FLAGS, ["--extra", "v"]) == [
        *("serve", "a/b", "--served-model-name", "x", "3.10", "--revision", "abc", "--trust-remote-code"),
        *("--host", "::", "--port", "17"),
        *("--tensor-parallel-size", "8", "--pipeline-parallel-size", "2", "--data-parallel-size", "3"),
        *("--decode-context-parallel-size", "4", "--enable-expert-parallel"),
        *("--max-model-len", "100000", "--gpu-memory-utilization", "0.9", "--kv-cache-dtype", "fp8"),
        *("--reasoning-parser", "kimi_k2", "--tool-call-parser", "kimi_k2", "--enable-auto-tool-choice"),
        *("--safetensors-load-strategy", "prefetch", "--extra", "v"),
    ]


def test_a_local_folder_has_no_revision() -> None:
    assert "--revision" not in serve_arguments(profile("model: {path: /m, revision: abc}"), "/m", FLAGS)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("auto", []),
        ("lazy", ["--safetensors-load-strategy", "lazy"]),
        ("instanttensor", ["--load-format", "instanttensor"]),
        ("fastsafetensors", ["--load-format", "fastsafetensors"]),
    ],
)
def test_a_load_strategy_is_one_flag_or_the_other(strategy: str, expected: list[str]) -> None:
    assert serve_arguments(profile(f"load: {{strategy: {strategy}}}"), "M", FLAGS)[6:] == expected


def test_automatic_tool_choice_can_be_switched_off() -> None:
    assert words("{enable-auto-tool-choice: false}") == ["--no-enable-auto-tool-choice"]
    text = "serve: {tool_call_parser: x}\nargs: {enable_auto_tool_choice: false}"
    assert serve_arguments(profile(text), "M", FLAGS)[6:] == ["--tool-call-parser", "x", "--no-enable-auto-tool-choice"]


# ---------------------------------------------------------------- args, one rule a type


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("{async-scheduling: true}", ["--async-scheduling"]),
        ("{async-scheduling: false}", ["--no-async-scheduling"]),
        ("{enable_prefix_caching: false}", ["--no-enable-prefix-caching"]),
        ("{max-num-seqs: null}", []),
        ("{max-num-seqs: 017}", ["--max-num-seqs", "017"]),
        ("{max-num-batched-tokens: 32k}", ["--max-num-batched-tokens", "32k"]),
        ("{max_num_seqs: '8'}", ["--max-num-seqs", "8"]),
        ("{tokenizer-revision: 3.10}", ["--tokenizer-revision", "3.10"]),
        ("{tokenizer-revision: ''}", ["--tokenizer-revision", ""]),
        ("{tokenizer: no}", ["--tokenizer", "no"]),
        ("{seed: -1}", ["--seed", "-1"]),
        # the parser takes an argument that begins with a dash for a flag; with a dot in it, even for a JSON key
        ("{x: -0.5}", ["--x=-0.5"]),
        ("{x: -1e5}", ["--x=-1e5"]),
        ("{x: '-a b'}", ["--x=-a b"]),
        ("{x: --y.z}", ["--x=--y.z"]),
        ("{x: '-'}", ["--x=-"]),
    ],
)
def test_switches_and_values(args: str, expected: list[str]) -> None:
    assert words(args) == expected


@pytest.mark.parametrize(
    "switch",
    [
        *("aggregate-engine-logging", "data-parallel-multi-port-external-lb"),
        *("disable-log-stats", "grpc", "headless"),
    ],
)
def test_false_for_a_switch_without_a_no_form_leaves_it_out(switch: str) -> None:
    assert words(f"{{{switch}: false}}") == []
    assert words(f"{{{switch}: true}}") == [f"--{switch}"]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("{logits-processors: [a.b, c]}", ["--logits-processors", "a.b", "c"]),
        ("{cudagraph-capture-sizes: [1, 2, 017]}", ["--cudagraph-capture-sizes", "1", "2", "017"]),
        ("{api-key: [one]}", ["--api-key", "one"]),
        ("{api-key: [-one]}", ["--api-key=-one"]),
        ("{api-key: []}", []),
        ("{middleware: [a.b, c.d]}", ["--middleware", "a.b", "--middleware", "c.d"]),
        ("{allowed-origins: ['*', b]}", ["--allowed-origins", '["*","b"]']),
        ("{allowed_methods: [GET]}", ["--allowed-methods", '["GET"]']),
        (
            "{disable-access-log-for-endpoints: [/health, /metrics]}",
            ["--disable-access-log-for-endpoints", "/health,/metrics"],
        ),
    ],
)
def test_lists_as_vllm_takes_them(args: str, expected: list[str]) -> None:
    assert words(args) == expected
    assert objections(["serve", "M", *expected], FLAGS) == []


def test_a_list_item_that_would_be_taken_for_a_flag_is_refused() -> None:
    assert "args.api-key" in refusal("{api-key: [a, -b]}").what


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("{method: mtp, num_speculative_tokens: 3}", {"method": "mtp", "num_speculative_tokens": 3}),
        ("{a: 'x y', b: [no, 017, 1.5, null, true], c: {d: \"q\\\"'`$HOME\\n\"}}", None),
        ("{}", {}),
    ],
)
def test_a_map_is_one_json_argument(value: str, meant: Any) -> None:
    flag, text = words(f"{{speculative-config: {value}}}")
    assert flag == "--speculative-config"
    expected = {"a": "x y", "b": ["no", 17, 1.5, None, True], "c": {"d": "q\"'`$HOME\n"}} if meant is None else meant
    assert json.loads(text) == expected


def test_a_part_of_a_json_argument_is_json() -> None:
    args = "{compilation-config.mode: 3, compilation_config.use_inductor: false, compilation-config.x: {a: no}}"
    assert words(args) == [
        *("--compilation-config.mode", "3"),
        *("--compilation-config.use_inductor", "false"),  # a bare flag would swallow the next argument
        *("--compilation-config.x", '{"a":"no"}'),
    ]


def test_a_map_and_a_part_of_it_are_refused_since_vllm_drops_one() -> None:
    assert "given twice" in refusal("{compilation-config: {mode: 3}, compilation-config.mode: 2}").what
    assert "given twice" in refusal("{compilation-config.mode: 3, compilation_config: {mode: 2}}").what
    assert "list" in refusal("{compilation-config.custom_ops: [a]}").what


@pytest.mark.parametrize(
    "args",
    [
        "{max-num-seqs: 1, max_num_seqs: 2}",
        "{quantization: a, quantization-config: {}, quant: b}",
        "{enable-prefix-caching: true, disable-prefix-caching: true}",
    ],
)
def test_one_flag_under_two_names_is_refused(args: str) -> None:
    error = refusal(args)
    assert "given twice" in error.what
    assert error.fix


def test_a_switch_is_not_switched_off_by_its_no_form() -> None:
    error = refusal("{no-enable-prefix-caching: true}")
    assert error.fix == ("args: {enable-prefix-caching: false}",)


@pytest.mark.parametrize(
    ("key", "where"),
    [
        *((flag, where) for flag, where in MANAGED.items() if "." in where),
        ("tensor_parallel_size", "parallel.tensor"),
        ("tensor-parallel", "parallel.tensor"),  # vLLM's parser takes abbreviations
        ("max-model", "serve.max_model_len"),
        ("no-trust-remote-code", "model.trust_remote_code"),
        ("disable-expert-parallel", "parallel.expert"),
        ("device-memory-utilization", "serve.gpu_memory_utilization"),
    ],
)
def test_what_a_profile_key_decides_is_no_business_of_args(key: str, where: str) -> None:
    error = refusal(f"{{{key}: 1}}")
    assert f"args.{key}" in error.what
    assert where in error.what
    assert error.fix


def test_the_load_strategy_decides_its_flags() -> None:
    assert "load.strategy" in refusal("{load-format: auto}", "load: {strategy: lazy}").what
    assert words("{load-format: auto}") == ["--load-format", "auto"]


# ---------------------------------------------------------------- whatever the text

anything = st.text(st.characters(codec="utf-8", exclude_characters="\0"))


def with_args(args: dict[str, Any]) -> list[str]:
    """The words that a JSON-written profile with these `args` ends in."""
    bare = serve_arguments(profile("{}"), "M", FLAGS)
    base = Profile.model_validate({})
    return serve_arguments(base.model_copy(update={"args": args}), "M", FLAGS)[len(bare) :]


@given(anything)
def test_any_text_survives_as_exactly_one_argument(text: str) -> None:
    found = with_args({"chat-template": text})
    assert found in (["--chat-template", text], [f"--chat-template={text}"])
    # and the parser takes neither form for a flag: a dash in front only where a `=` holds it
    assert len(found) == 1 or not text.startswith("-") or text[1:].isdigit()


@given(st.lists(anything.filter(lambda text: not text.startswith("-")), min_size=2))
def test_any_list_keeps_its_items(items: list[str]) -> None:
    assert with_args({"logits-processors": items}) == ["--logits-processors", *items]


@given(
    st.dictionaries(
        anything,
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | anything,
            lambda inner: st.lists(inner) | st.dictionaries(anything, inner),
            max_leaves=8,
        ),
    )
)
def test_any_map_comes_back_from_its_json(value: dict[str, Any]) -> None:
    flag, text = with_args({"speculative-config": value})
    assert flag == "--speculative-config"
    assert json.loads(text) == value
    assert "\n" not in text


# ---------------------------------------------------------------- what the catalogue says


@pytest.mark.parametrize(
    ("tail", "word"),
    [
        (["--enable-reasoning"], "no flag --enable-reasoning"),
        (["--max-num-sequences", "3"], "--max-num-seqs"),
        (["--max-num-s", "3"], "no flag --max-num-s;"),  # a prefix is not a name
        (["--enable-prefix-caching", "true"], "takes no value"),
        (["--no-headless"], "no --no- form"),
        (["--no-max-num-seqs"], "takes a value"),
        (["--max-num-seqs"], "wants a value"),
        (["--max-num-seqs", "1", "2"], "one value"),
        (["--max-num-seqs", "32k"], "no whole number"),
        (["--kv-cache-dtype", "fp9"], "did you mean fp8?"),
        (["--reasoning-parser", "kimi_k22"], "did you mean kimi_k2?"),
        (["--tool-call-parser", "nothing-like-it"], "there are "),
        (["--quantization", "nvfp4"], "knows no 'nvfp4'"),
        (["--all2all-backend", "PPLX"], "pplx"),
        (["--moe-backend", "tritton"], "did you mean triton?"),
        (["--compilation-config", "{mode: 3}"], "no JSON"),
    ],
)
def test_objections(tail: list[str], word: str) -> None:
    (text,) = objections(["serve", "M", *tail], FLAGS)
    assert word in text


@pytest.mark.parametrize(
    "tail",
    [
        ["-tp", "8", "-O3", "-q", "fp8"],
        ["--max_model_len=32K", "--max-num-batched-tokens", "1.5k", "--seed", "-1"],
        ["--disable-flashinfer-autotune", "--no-enable-flashinfer-autotune", "--no-disable-prefix-caching"],
        ["--compilation-config.mode", "3", "-cc.x=3"],
        ["--moe-backend", "FlashInfer-CUTLASS"],
        ["--api-key", "${env:KEY}", "--hf-token"],
        ["--attention-backend", "triton_mla", "--load-format", "AUTO", "--reasoning-parser", "none"],
        ["--gpu-memory-utilization", ".9", "--device-memory-utilization=0.9"],
    ],
)
def test_no_objections(tail: list[str]) -> None:
    assert objections(["serve", "M", *tail], FLAGS) == []
