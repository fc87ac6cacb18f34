"""Every bound that a shipped patch or profile claims, held against the real sources of vLLM's wheels.

`scripts/fetch-vllm-sources` fetches them; without them these tests are skipped.
"""

import ast
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from deploy.homes import vllm_sources_dir
from deploy.patching import catalogue
from deploy.patching.patch import Patch
from deploy.profile.catalogue import Catalogue
from deploy.shipped import shipped
from tests.wheels.sources import Sources, class_variables, methods, parameters, read_of

HOME = Path(vllm_sources_dir())  # now: a fixture hides the developer's own homes from each test
FETCH = runpy.run_path(str(Path(__file__).resolve().parents[2] / "scripts/fetch-vllm-sources"))
VERSIONS: tuple[str, ...] = FETCH["VERSIONS"]
FIXED_SPLITS = ("0.15.1", "0.19.1")
SPARSE = ("0.33.0",)

PATCHES = Path(str(shipped("patches")))
MLA = "vllm.v1.attention.backends.mla"
LAYER = "vllm.model_executor.layers.attention.mla_attention"
SPARSE_LAYER = "vllm.model_executor.layers.attention.sparse_mla_attention"
BACKEND = "vllm.v1.attention.backend"
REGISTRY = "vllm.v1.attention.backends.registry"
ENUM = "AttentionBackendEnum"


def wheel(version: str) -> Sources:
    """The sources of one version, with our own patches before them; skips where they were not fetched."""
    if not (HOME / version / "vllm/__init__.py").exists():
        pytest.skip(f"no sources of vLLM {version} in {HOME}: scripts/fetch-vllm-sources {version}")
    return Sources(PATCHES / "sm120-mla", PATCHES / "cpu-metadata", HOME / version)


def patch(name: str) -> Patch:
    return catalogue.read(str(PATCHES / name))


def ours(sources: Sources, module: str) -> list[tuple[str, ast.ClassDef]]:
    return list(sources.need(f"sm120_mla.{module}").classes.items())


@pytest.fixture(scope="module")
def register() -> dict[str, Any]:
    """The functions of sm120_mla/register.py, which imports nothing of vLLM before it is called."""
    names: dict[str, Any] = {}
    exec(compile((PATCHES / "sm120-mla/sm120_mla/register.py").read_text(), "register.py", "exec"), names)
    return names


def members(sources: Sources) -> dict[str, ast.expr]:
    """The attention backends that a version knows, and the path of each."""
    node = sources.need(REGISTRY).classes[ENUM]
    return {
        entry.targets[0].id: entry.value
        for entry in node.body
        if isinstance(entry, ast.Assign) and isinstance(entry.targets[0], ast.Name)
    }


def imported(sources: Sources, module: str) -> list[tuple[str, str]]:
    """Everything that a module of ours takes from vLLM, at its top and inside functions."""
    return [
        (node.module, entry.name)
        for node in ast.walk(sources.need(module).tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "vllm"
        for entry in node.names
    ]


# ---------------------------------------------------------------------- all patches


def test_every_shipped_patch_is_proven_here() -> None:
    proven = {"cpu-metadata", "sm120-mla", "tuned-moe-configs"}
    assert set(catalogue.names([str(PATCHES)])) == proven, "a patch without a proof of its bounds in this file"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_sources_are_those_of_the_version(version: str) -> None:
    wheel(version)
    (metadata,) = (HOME / version).glob("vllm-*.dist-info/METADATA")
    assert f"\nVersion: {version}\n" in metadata.read_text()


@pytest.mark.parametrize("version", VERSIONS)
def test_vllm_calls_general_plugins_in_every_process(version: str) -> None:
    sources = wheel(version)
    assert "vllm.general_plugins" in sources.need("vllm.plugins").text
    for module in ("vllm.engine.arg_utils", "vllm.v1.engine.core", "vllm.v1.worker.worker_base"):
        assert "load_general_plugins()" in sources.need(module).text, module


# ---------------------------------------------------------------------- cpu-metadata


@pytest.mark.parametrize("version", VERSIONS)
def test_the_platform_and_the_command_ask_for_metadata_of_vllm(version: str) -> None:
    sources = wheel(version)
    assert 'version("vllm")' in sources.need("vllm.entrypoints.cli.main").text
    platforms = sources.need("vllm.platforms").text
    assert "cpu" in platforms
    assert 'version("vllm")' in platforms
    distribution = patch("cpu-metadata").file.distribution
    assert distribution is not None
    assert (distribution.name, distribution.version) == ("vllm", "{version}+cpu")


# ---------------------------------------------------------------------- sm120-mla


@pytest.mark.parametrize("version", VERSIONS)
def test_the_bounds_hold_every_version_whose_interfaces_were_read(version: str) -> None:
    applies = patch("sm120-mla").file.applies
    assert applies.vllm is not None
    assert Version(version) in SpecifierSet(applies.vllm)
    sources = wheel(version)
    assert parameters(sources.need(REGISTRY).functions["register_backend"])[0][:2] == ["backend", "class_path"]
    found = members(sources)
    assert ast.unparse(found["CUSTOM"]) == "None"
    assert ast.unparse(found["TRITON_MLA"]) == repr(f"{MLA}.triton_mla.TritonMLABackend")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_dense_backend_takes_the_place_of_fixed_splits_only(version: str, register: dict[str, Any]) -> None:
    text = wheel(version).need(register["STOCK_DENSE"]).text
    fixed = re.search(r"num_kv_splits = 1 if .+ else 4\b", text) is not None
    assert fixed == (version in FIXED_SPLITS)
    assert register["dense_follows_the_gpu"](text) != fixed
    has_fp8 = '"fp8_e4m3"' in text
    assert has_fp8 == (version != "0.15.1")
    if not fixed:
        assert has_fp8


@pytest.mark.parametrize("version", VERSIONS)
def test_the_sparse_backend_is_registered_only_where_its_base_is(version: str, register: dict[str, Any]) -> None:
    base = register["SPARSE_BASE"]
    assert base == SPARSE_LAYER
    assert (wheel(version).module(base) is not None) == (version in SPARSE)


CLAIMED = [("dense", version) for version in FIXED_SPLITS] + [("sparse", version) for version in SPARSE]
CLAIMED += [("bounds", version) for version in (*FIXED_SPLITS, *SPARSE)]


@pytest.mark.parametrize(("module", "version"), [*CLAIMED, *(("register", version) for version in VERSIONS)])
def test_everything_that_is_imported_of_vllm_exists(module: str, version: str) -> None:
    sources = wheel(version)
    taken = imported(sources, f"sm120_mla.{module}")
    assert taken
    missing = [f"from {origin} import {name}" for origin, name in taken if not sources.has(origin, name)]
    assert missing == []


@pytest.mark.parametrize(("module", "version"), [entry for entry in CLAIMED if entry[0] != "bounds"])
def test_every_method_that_vllm_calls_takes_what_vllm_hands_it(module: str, version: str) -> None:
    sources = wheel(version)
    wrong, held = [], 0
    for name, _ in ours(sources, module):
        lineage = sources.lineage(f"sm120_mla.{module}", name)
        own = [node for origin, node in lineage if origin.startswith("sm120_mla")]
        theirs = [node for origin, node in lineage if origin.startswith("vllm")]
        assert theirs, f"{name} has no base in vLLM {version}"
        for node in own:
            for method, function in methods(node).items():
                base = next((m for t in theirs if (m := methods(t).get(method)) and not m.args.vararg), None)
                if base is None:
                    continue
                held += 1
                (given, needed), (wanted, base_needed) = parameters(function), parameters(base)
                same = given[: len(wanted)] == wanted[: len(given)]
                takes_rest = len(given) >= base_needed or function.args.kwarg is not None
                if not same or not takes_rest or needed > len(wanted):
                    wrong.append(f"{name}.{method}({', '.join(given)}), and vLLM has ({', '.join(wanted)})")
    assert wrong == []
    assert held >= 4


@pytest.mark.parametrize("version", FIXED_SPLITS)
def test_vllm_calls_the_dense_decode_by_a_name_that_we_have(version: str) -> None:
    sources = wheel(version)
    called = set(re.findall(r"self(?:\.impl)?\.(forward_mqa|_forward_decode)\(", sources.need(LAYER).text))
    assert called == ({"_forward_decode"} if version == "0.15.1" else {"forward_mqa"})
    names = sources.has_attribute("sm120_mla.dense", "Sm120DenseImpl")
    assert called <= names
    node = sources.need("sm120_mla.dense").classes["Sm120DenseImpl"]
    function = methods(node)["forward_mqa"]
    for method in called:
        stock = methods(sources.need(f"{MLA}.triton_mla").classes["TritonMLAImpl"])[method]
        assert parameters(function) == parameters(stock)
    assert read_of(function, "attn_metadata") <= sources.has_attribute(LAYER, "MLACommonMetadata")
    assert read_of(function, "decode") <= sources.has_attribute(LAYER, "MLACommonDecodeMetadata")
    assert read_of(function, "layer") <= sources.has_attribute(BACKEND, "AttentionLayer")
    assert read_of(function, "self") <= names


@pytest.mark.parametrize("version", SPARSE)
def test_what_the_sparse_decode_reads_is_there(version: str) -> None:
    sources = wheel(version)
    node = sources.need("sm120_mla.sparse").classes["Sm120SparseImpl"]
    names = sources.has_attribute("sm120_mla.sparse", "Sm120SparseImpl")
    for function in methods(node).values():
        assert read_of(function, "self") <= names, function.name
    function = methods(node)["forward_mqa"]
    assert read_of(function, "attn_metadata") <= sources.has_attribute(SPARSE_LAYER, "SparseMLACommonMetadata")
    assert read_of(function, "layer") <= sources.has_attribute(BACKEND, "AttentionLayer")
    builder = sources.need("sm120_mla.sparse").classes["Sm120SparseBuilder"]
    names = sources.has_attribute("sm120_mla.sparse", "Sm120SparseBuilder")
    assert read_of(methods(builder)["__init__"], "self") <= names


@pytest.mark.parametrize("version", SPARSE)
def test_every_answer_of_ours_is_one_that_vllm_asks_for(version: str) -> None:
    sources = wheel(version)
    for name, node in ours(sources, "sparse"):
        lineage = sources.lineage("sm120_mla.sparse", name)
        asked = set[str]().union(*(sources.has_attribute(origin, cls.name) for origin, cls in lineage[1:]))
        unknown = class_variables(node) - asked
        assert unknown == set(), name


def test_what_landed_upstream_landed_there() -> None:
    upstream = {entry.reference.rpartition("#")[2]: entry.landed for entry in patch("sm120-mla").file.upstream}
    assert upstream == {"43477": "0.24.0", "38476": None, "47779": None}
    assert "FLASHINFER_MLA_SPARSE_SM120" not in members(wheel("0.23.0"))
    assert "FLASHINFER_MLA_SPARSE_SM120" in members(wheel("0.24.0"))
    assert not [name for name in members(wheel("0.33.0")) if name.startswith("TRITON") and "SPARSE" in name]
    newest = wheel("0.33.0")
    lineage = newest.lineage(f"{MLA}.flashinfer_mla_sparse_sm120", "FlashInferMLASparseSM120Impl")
    said = [node for _, node in lineage if {"can_return_lse_for_decode", "supports_dcp"} & class_variables(node)]
    # only the common base speaks of it, and says no
    assert [node.name for node in said] == ["AttentionImplBase"]
    text = ast.unparse(said[0])
    assert "can_return_lse_for_decode: bool = False" in text
    assert "supports_dcp: bool = False" in text


# ---------------------------------------------------------------------- tuned-moe-configs


@pytest.mark.parametrize("version", VERSIONS)
def test_vllm_takes_a_moe_file_of_the_named_folder_before_its_own(version: str) -> None:
    applies = patch("tuned-moe-configs").file.applies
    assert applies.vllm is not None
    assert Version(version) in SpecifierSet(applies.vllm)
    sources = wheel(version)
    module = sources.need("vllm.model_executor.layers.fused_moe.fused_moe")
    text = ast.unparse(module.functions["get_moe_configs"])
    assert 0 < text.index("envs.VLLM_TUNED_CONFIG_FOLDER") < text.index("'configs'")
    # what scripts/tune-moe-configs calls
    assert parameters(module.functions["get_config_file_name"])[0] == ["E", "N", "dtype", "block_shape"]
    assert parameters(module.functions["fused_experts"])[0][:5] == [
        "hidden_states",
        "w1",
        "w2",
        "topk_weights",
        "topk_ids",
    ]
    assert sources.has("vllm.model_executor.layers.fused_moe", "override_config")
    for name in ("FUSED_MOE_UNQUANTIZED_CONFIG", "fp8_w8a8_moe_quant_config"):
        assert sources.has("vllm.model_executor.layers.fused_moe.config", name), name
    # the dense block FP8 kernels have no such variable: no file of ours reaches them
    assert "VLLM_TUNED" not in sources.need("vllm.model_executor.layers.quantization.utils.fp8_utils").text


# ---------------------------------------------------------------------- GLM-5


class Capability:
    """SM120 as vLLM asks for it."""

    major, minor = 12, 0


def sparse_for_sm120(sources: Sources) -> list[str]:
    """Sparse MLA backends that a version's CUDA platform may choose and that take capability 12.0."""
    found = []
    chosen = sources.need("vllm.platforms.cuda").text
    for member, value in members(sources).items():
        module, _, name = str(ast.literal_eval(value) or "").rpartition(".")
        lineage = sources.lineage(module, name) if module.startswith(MLA) else []
        answers = {}
        for question in ("is_sparse", "supports_compute_capability"):
            function = next((methods(node)[question] for _, node in lineage if question in methods(node)), None)
            returned = [node for node in ast.walk(function) if isinstance(node, ast.Return)] if function else []
            if len(returned) == 1 and returned[0].value is not None:
                answers[question] = ast.unparse(returned[0].value)
        if f"{ENUM}.{member}" not in chosen or answers.get("is_sparse") != "True":
            continue
        if eval(answers["supports_compute_capability"], {"capability": Capability}):
            found.append(member)
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_glm5_is_refused_where_vllm_has_no_sparse_attention_for_sm120(version: str) -> None:
    profiles = Catalogue([str(shipped("profiles"))])
    possible = sparse_for_sm120(wheel(version))
    assert possible == ([] if Version(version) < Version("0.24") else ["FLASHINFER_MLA_SPARSE_SM120"])
    for found in profiles.all():
        profile = profiles.resolve(found.file).profile
        if found.name.startswith("glm5"):
            assert profile.engine.version is not None
            allowed = Version(version) in SpecifierSet(profile.engine.version)
            assert not allowed or possible, found.name
