"""The engine's environment: what passes through, what kdeploy sets, what the profile says, what is dropped. Pure."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from deploy.patching.folder import PLUGIN

# Passed through when set: what a program needs to find itself, its user, its certificates, proxies and the hub.
PASSED = {
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NO_PROXY",
    "no_proxy",
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
}
PASSED_PREFIXES = ("LC_", "XDG_", "HF_", "HUGGINGFACE_", "NVIDIA_")

# Inherited ones that would change the launch behind the profile's back; dropped, and said so.
MEDDLING_PREFIXES = (
    "NCCL_",
    "VLLM_",
    "CUDA_",
    "TORCH",
    "PYTORCH_",
    "TRITON_",
    "FLASHINFER_",
    "OMP_",
    "MKL_",
    "GLOO_",
    "RAY_",
)
MEDDLING = {
    "PYTHONPATH": "would change which modules the engine imports",
    "PYTHONHOME": "would change which modules the engine imports",
    "PYTHONSTARTUP": "would run in the engine's interpreter",
    "LD_PRELOAD": "would be loaded into every process of the engine",
    "MASTER_ADDR": "left over from a distributed launch",
    "MASTER_PORT": "left over from a distributed launch",
    "RANK": "left over from a distributed launch",
    "LOCAL_RANK": "left over from a distributed launch",
    "WORLD_SIZE": "left over from a distributed launch",
}

SECRET = re.compile(r"TOKEN(?!IZ)|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|PRIVATE_?KEY", re.IGNORECASE)
SURROGATE = re.compile("[\ud800-\udfff]")  # how Python shows bytes that are not UTF-8
LOGIN_IN_URL = re.compile(r"//[^/@\s]+@")


# What a start compiles or tunes, and the next one can take over.
CACHES = {
    "VLLM_CACHE_ROOT": "vllm",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "CUDA_CACHE_PATH": "cuda",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
}
CPU_CACHES = ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR")


class Environment(NamedTuple):
    """`values`: the whole environment, secrets as references. `passed`: names that came from the caller's own
    environment. `dropped`: meddling names that did not, with the reason."""

    values: dict[str, str]
    passed: list[str]
    dropped: dict[str, str]


# vLLM puts sockets named by a UUID below TMPDIR, and the kernel's limit ends the engine in its first seconds.
SOCKET_NAME_LIMIT = 107
TMPDIR_LIMIT = SOCKET_NAME_LIMIT - len("/00000000-0000-0000-0000-000000000000")


def compose(
    inherited: Mapping[str, str],
    *,
    profile: Mapping[str, str | None],
    engine: Mapping[str, str],
    gpus: list[int] | None,
    limit_s: float,
    patches: Mapping[str, str] | None = None,
    patch_folder: str | None = None,
    caches: str | None = None,
) -> Environment:
    """The environment of a launch.

    Args:
        inherited: the caller's environment.
        profile: `env:` of the profile; wins over everything, and None takes a variable out.
        engine: what the installed engine needs to start.
        gpus: indices in PCI bus order of the leased GPUs; None for a CPU engine.
        limit_s: seconds the load may take; vLLM's own start limits are raised to it.
        patches: variables that the loaded patches set.
        patch_folder: the folder that carries them; first on Python's path.
        caches: the folder where this version of the engine keeps what it compiles; None leaves it its own.
    """
    values: dict[str, str] = {}
    passed: list[str] = []
    dropped: dict[str, str] = {}
    for name, value in sorted(inherited.items()):
        if name in profile:
            continue
        if SURROGATE.search(name + value):
            dropped[name] = "not UTF-8 text"
        elif name == "TMPDIR" and len(value.encode()) > TMPDIR_LIMIT:
            dropped[name] = f"vLLM's sockets below it would have names of more than {SOCKET_NAME_LIMIT} bytes"
        elif name in PASSED or name.startswith(PASSED_PREFIXES):
            secret = SECRET.search(name) or LOGIN_IN_URL.search(value)
            values[name] = f"${{env:{name}}}" if secret else value
            passed.append(name)
        elif name in MEDDLING:
            dropped[name] = MEDDLING[name]
        elif name.startswith(MEDDLING_PREFIXES):
            dropped[name] = "inherited from the shell, would change the launch; name it under env: to keep it"
    values |= _own(gpus, limit_s)
    if caches is not None:
        values |= {
            name: f"{caches}/{place}" for name, place in CACHES.items() if gpus is not None or name in CPU_CACHES
        }
    values |= engine
    values |= patches or {}
    values |= {name: value for name, value in profile.items() if value is not None}
    path = [profile.get("PYTHONPATH")]
    if profile.get("PYTHONPATH", "not named"):
        path.insert(0, engine.get("PYTHONPATH"))
    values = {name: value for name, value in values.items() if profile.get(name, "") is not None}
    if patch_folder is not None:
        path.insert(0, patch_folder)
        named = profile.get("VLLM_PLUGINS")
        if named is not None:  # a list of its own, which would leave ours out
            values["VLLM_PLUGINS"] = f"{named},{PLUGIN}".lstrip(",")
    if any(path):
        values["PYTHONPATH"] = ":".join(part for part in path if part)
    return Environment(values, passed, dropped)


def _own(gpus: list[int] | None, limit_s: float) -> dict[str, str]:
    """What kdeploy sets in every launch."""
    own = {
        # the log is a file: no colour codes in it, and nothing held back when a process dies
        "NO_COLOR": "1",
        "VLLM_LOGGING_COLOR": "0",
        "PYTHONUNBUFFERED": "1",
        # vLLM would give up a slow load after 600 s
        "VLLM_ENGINE_READY_TIMEOUT_S": str(max(600, int(limit_s))),
    }
    if gpus is not None:
        own["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        own["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
    return own
