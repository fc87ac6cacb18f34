"""Which variables an engine gets, and from where."""

import pytest

from deploy.plan.environment import Environment, compose
from deploy.plan.references import references


def made(
    inherited: dict[str, str],
    profile: dict[str, str | None] | None = None,
    *,
    engine: dict[str, str] | None = None,
    gpus: list[int] | None = None,
    limit_s: float = 21600,
) -> Environment:
    """The environment that these make."""
    return compose(inherited, profile=profile or {}, engine=engine or {}, gpus=gpus, limit_s=limit_s)


OWN = {"NO_COLOR", "VLLM_LOGGING_COLOR", "PYTHONUNBUFFERED", "VLLM_ENGINE_READY_TIMEOUT_S"}


def test_nothing_inherited_is_what_kdeploy_sets() -> None:
    assert set(made({}).values) == OWN


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "HOME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "HF_HOME", "HF_HUB_OFFLINE", "XDG_CACHE_HOME"),
        *("https_proxy", "NO_PROXY", "SSL_CERT_FILE", "CUDA_HOME", "TMPDIR"),
    ],
)
def test_what_a_program_needs_passes_and_is_listed(name: str) -> None:
    found = made({name: "value"})
    assert found.values[name] == "value"
    assert found.passed == [name]
    assert found.dropped == {}


@pytest.mark.parametrize(
    "name", ["EDITOR", "PS1", "SSH_AUTH_SOCK", "AWS_SECRET_ACCESS_KEY", "KDEPLOY_STATE_DIR", "FOO"]
)
def test_anything_else_stays_outside_silently(name: str) -> None:
    found = made({name: "value"})
    assert set(found.values) == OWN
    assert found.dropped == {}


# field reports P42 and P61
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VLLM_PORT", "tcp://10.0.0.9:8000"),
        ("VLLM_PORT", "8000"),
        ("NCCL_ALGO", "allreduce:tree"),
        ("NCCL_GRAPH_FILE", ""),
        ("CUDA_VISIBLE_DEVICES", "3"),
        ("CUDA_DEVICE_ORDER", "FASTEST_FIRST"),
        ("LD_PRELOAD", "/x.so"),
        ("PYTHONPATH", "/home/me/src"),
        ("PYTHONHOME", "/usr"),
        ("MASTER_ADDR", "10.0.0.1"),
        ("RANK", "3"),
        ("WORLD_SIZE", "8"),
        ("OMP_NUM_THREADS", "96"),
        ("TORCHDYNAMO_DISABLE", "1"),
        ("TORCH_CUDA_ARCH_LIST", "9.0"),
        ("PYTORCH_CUDA_ALLOC_CONF", "x"),
        ("FLASHINFER_DISABLE_VERSION_CHECK", "1"),
    ],
)
def test_what_would_change_the_launch_is_dropped_and_told(name: str, value: str) -> None:
    found = made({name: value}, gpus=[0])
    assert found.values.get(name) != value
    assert found.dropped[name]
    assert name not in found.passed


def test_the_profile_brings_back_what_would_be_dropped() -> None:
    found = made({"NCCL_ALGO": "tree"}, {"NCCL_ALGO": "ring"})
    assert found.values["NCCL_ALGO"] == "ring"
    assert found.dropped == {}


def test_the_profile_wins_over_everything() -> None:
    found = made(
        {"PATH": "/usr/bin", "HOME": "/root"},
        {"PATH": "/opt", "NO_COLOR": "0", "CUDA_VISIBLE_DEVICES": "7", "E": "profile"},
        engine={"E": "engine", "F": "engine", "VLLM_LOGGING_COLOR": "1"},
        gpus=[0],
    )
    expected = {"PATH": "/opt", "NO_COLOR": "0", "CUDA_VISIBLE_DEVICES": "7", "E": "profile", "F": "engine"}
    assert expected.items() <= found.values.items()
    assert found.values["VLLM_LOGGING_COLOR"] == "1"
    assert found.passed == ["HOME"]


@pytest.mark.parametrize("name", ["PATH", "NO_COLOR", "CUDA_DEVICE_ORDER", "OF_THE_ENGINE"])
def test_null_takes_a_variable_out_wherever_it_came_from(name: str) -> None:
    found = made({"PATH": "/usr/bin"}, {name: None}, engine={"OF_THE_ENGINE": "1"}, gpus=[0])
    assert name not in found.values
    assert name not in found.passed


def test_null_for_what_is_dropped_anyway_is_silence() -> None:
    assert made({"NCCL_ALGO": "tree"}, {"NCCL_ALGO": None}).dropped == {}


def test_the_gpus_are_named_in_bus_order_numbers() -> None:
    found = made({"CUDA_VISIBLE_DEVICES": "0"}, gpus=[3, 1])
    assert found.values["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert found.values["CUDA_VISIBLE_DEVICES"] == "3,1"


def test_a_cpu_engine_gets_no_cuda_variables() -> None:
    found = made({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "x"}, gpus=None)
    assert not [name for name in found.values if name.startswith("CUDA_")]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "hf_abcdef"),
        ("HUGGINGFACE_HUB_TOKEN", "hf_abcdef"),
        ("HF_API_KEY", "k"),
        ("https_proxy", "http://me:pass@proxy:3128"),
        ("HTTPS_PROXY", "http://token@proxy:3128"),
        ("HF_ENDPOINT", "https://me:pass@hub"),
    ],
)
def test_secrets_pass_as_references(name: str, value: str) -> None:
    found = made({name: value})
    assert references(found.values[name]) == [("env", name)]
    assert value not in repr(found)
    assert found.passed == [name]


@pytest.mark.parametrize("value", ["http://proxy:3128", "http://proxy:3128/a@b", "http://[::1]:3128"])
def test_a_proxy_without_a_login_is_shown(value: str) -> None:
    assert made({"http_proxy": value}).values["http_proxy"] == value


@pytest.mark.parametrize(("limit_s", "shown"), [(14400, "14400"), (0.5, "600"), (900.7, "900")])
def test_vllms_own_patience_is_ours_and_never_less_than_its_default(limit_s: float, shown: str) -> None:
    assert made({}, limit_s=limit_s).values["VLLM_ENGINE_READY_TIMEOUT_S"] == shown


def test_the_engines_module_path_comes_before_the_profiles() -> None:
    assert made({}, {"PYTHONPATH": "/p"}, engine={"PYTHONPATH": "/e"}).values["PYTHONPATH"] == "/e:/p"
    assert "PYTHONPATH" not in made({}, {"PYTHONPATH": None}, engine={"PYTHONPATH": "/e"}).values


def test_a_value_that_is_no_text_is_dropped_and_told() -> None:
    found = made({"LC_ALL": "C\udcff"})
    assert "LC_ALL" not in found.values
    assert "UTF-8" in found.dropped["LC_ALL"]


def test_a_temporary_folder_too_long_for_vllms_sockets_is_dropped_and_told() -> None:
    long = "/tmp/" + "x" * 66
    composed = compose({"TMPDIR": long}, profile={}, engine={}, gpus=None, limit_s=60)
    assert "TMPDIR" not in composed.values
    assert "sockets" in composed.dropped["TMPDIR"]
    assert compose({"TMPDIR": long[:-1]}, profile={}, engine={}, gpus=None, limit_s=60).values["TMPDIR"] == long[:-1]
