"""A launch as something that another manager runs: a systemd unit, a compose file, a Kubernetes manifest, a Slurm job.

Pure. systemd runs our supervisor in the foreground; the others run vLLM's own image or program directly.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import yaml

from deploy.errors import usage
from deploy.plan.launch_plan import LaunchPlan
from deploy.plan.references import REFERENCE, references

IMAGE = "vllm/vllm-openai"
STACK_BYTES = 67_108_864

# What is true of this machine's shell only, and not of a container's.
LOCAL_ONLY = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
LOCAL_PREFIXES = ("LC_", "XDG_", "CUDA_HOME", "CUDA_PATH", "SSL_", "REQUESTS_CA", "CURL_CA")


class Invocation(NamedTuple):
    """How `kdeploy` itself is called again: its program and the words that choose this launch."""

    program: str
    words: Sequence[str]


def systemd_unit(plan: LaunchPlan, call: Invocation) -> str:
    """A unit for Type=notify: ready when the deployment is, extended while the load makes progress."""
    limits = plan.limits
    stop_s = int(limits["drain_s"] + limits["term_s"] + limits["kill_s"]) + 30
    return f"""\
[Unit]
Description=kdeploy {plan.name}: {_unit_text(plan.model)}
Wants=network-online.target
After=network-online.target nvidia-persistenced.service

[Service]
Type=notify
NotifyAccess=main
ExecStart={" ".join(_unit_word(word) for word in (call.program, "supervise", *call.words))}
# a load takes minutes; the supervisor asks for more time as long as it moves
TimeoutStartSec=300
TimeoutStopSec={stop_s}
WatchdogSec=60
# the supervisor ends the engine itself; if it dies, the engine serves on, and the next supervisor adopts it
KillMode=process
Restart=on-failure
RestartSec=5
# 1: failed for good, 2: bad arguments, 4: refused, 5: will not fit, 6: environment; starting again would not help
RestartPreventExitStatus=1 2 4 5 6
Delegate=yes
LimitMEMLOCK=infinity
LimitNOFILE=1048576
LimitSTACK={STACK_BYTES}

[Install]
WantedBy=multi-user.target
"""


def _unit_text(text: str) -> str:
    return text.replace("%", "%%").replace("\n", " ")


def _unit_word(word: str) -> str:
    """A word of ExecStart: systemd expands `%` and `$`, and takes C escapes in double quotes."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    escaped = escaped.replace("\n", "\\n").replace("\t", "\\t")
    return escaped if word and not any(char in word for char in " \t\n\"'\\;#") else f'"{escaped}"'


def compose_file(plan: LaunchPlan) -> str:
    """A compose file with vLLM's image, the GPUs, shared memory and limits."""
    service: dict[str, Any] = {
        "image": _image(plan),
        "command": [_no_interpolation(word) for word in _server_words(plan)],
        "environment": {key: _no_interpolation(value) for key, value in _container_env(plan).items()},
        "ports": [f"{_published(plan)}{plan.port}:{plan.port}"],
        # its own shared memory would be 64 MB, where NCCL ends in "No space left on device"
        "ipc": "host",
        "ulimits": {"memlock": -1, "stack": STACK_BYTES, "nofile": 1048576},
        "stop_grace_period": f"{int(plan.limits['term_s'])}s",
        "restart": "unless-stopped" if plan.limits["restart"]["policy"] != "never" else "no",
        "healthcheck": {
            "test": ["CMD", "curl", "-sf", f"http://127.0.0.1:{plan.port}/health"],
            "interval": f"{max(5, int(plan.health['interval_s']))}s",
            "timeout": f"{int(plan.health['timeout_s'])}s",
            "retries": int(plan.health["failures"]),
            "start_period": f"{int(plan.limits['limit_s'])}s",
        },
    }
    if plan.model.startswith("/"):
        service["volumes"] = [f"{plan.model}:{plan.model}:ro"]
    if plan.gpus_wanted:
        devices = {"driver": "nvidia", "device_ids": [str(gpu.index) for gpu in plan.gpus], "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [devices]}}}
    return _dump({"name": _dns_name(plan.name), "services": {_dns_name(plan.name): service}})


def kubernetes_manifest(plan: LaunchPlan) -> str:
    """A Deployment and a Service; `${env:NAME}` becomes a key of a Secret that is named after the deployment."""
    name = _dns_name(plan.name)
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": "kdeploy"}
    probe = {"httpGet": {"path": "/health", "port": plan.port}}
    container: dict[str, Any] = {
        "name": "vllm",
        "image": _image(plan),
        "args": _server_words(plan, host="0.0.0.0"),
        "env": [_kubernetes_env(key, value, name) for key, value in _container_env(plan, visible=False).items()],
        "ports": [{"containerPort": plan.port}],
        "startupProbe": {**probe, "periodSeconds": 10, "failureThreshold": max(1, int(plan.limits["limit_s"] / 10))},
        "readinessProbe": {**probe, "periodSeconds": 5, "failureThreshold": int(plan.health["failures"])},
        "livenessProbe": {**probe, "periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 6},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "32Gi"}}]
    if plan.gpus_wanted:
        container["resources"] = {"limits": {"nvidia.com/gpu": plan.gpus_wanted}}
    if plan.model.startswith("/"):
        container["volumeMounts"].append({"name": "model", "mountPath": plan.model, "readOnly": True})
        volumes.append({"name": "model", "hostPath": {"path": plan.model, "type": "Directory"}})
    grace = int(plan.limits["drain_s"] + plan.limits["term_s"])
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": 1,
            # two of it would need the GPUs twice
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"terminationGracePeriodSeconds": grace, "containers": [container], "volumes": volumes},
            },
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {"selector": labels, "ports": [{"port": plan.port, "targetPort": plan.port}]},
    }
    return _dump(deployment) + "---\n" + _dump(service)


def slurm_job(plan: LaunchPlan, script: str) -> str:
    """A batch job whose body is the shell script of the launch. Slurm chooses the GPUs."""
    lines = [
        "#!/bin/sh",
        f"#SBATCH --job-name={plan.name}",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks=1",
        "#SBATCH --exclusive",
        f"#SBATCH --output={plan.name}-%j.log",
        f"#SBATCH --signal=TERM@{int(plan.limits['term_s'])}",
    ]
    if plan.gpus_wanted:
        lines.append(f"#SBATCH --gres=gpu:{plan.gpus_wanted}")
    body = [line for line in script.splitlines() if not line.startswith("#!")]
    # the devices that Slurm gave, in place of those of this machine
    body = [
        '  CUDA_VISIBLE_DEVICES="$CUDA_VISIBLE_DEVICES" \\'
        if line.strip().startswith("CUDA_VISIBLE_DEVICES=")
        else line
        for line in body
    ]
    return "\n".join([*lines, "", *body])


def _image(plan: LaunchPlan) -> str:
    version = (plan.engine.get("version") or "").partition("+")[0]
    return f"{IMAGE}:v{version}" if version else f"{IMAGE}:latest"


def _server_words(plan: LaunchPlan, host: str | None = None) -> list[str]:
    """What follows `vllm serve`, which is the image's entry point; the server must listen beyond its own loopback."""
    words = list(plan.argv[plan.argv.index("serve") + 1 :])
    at = words.index("--host") + 1
    words[at] = host or "0.0.0.0"
    return words


def _published(plan: LaunchPlan) -> str:
    return "" if plan.host in ("", "0.0.0.0", "::") else f"{plan.host}:"


def _container_env(plan: LaunchPlan, *, visible: bool = True) -> dict[str, str]:
    """The environment without what is true of this machine's shell only. Inside a container the devices that it was
    given are numbered anew, so kdeploy's own choice is left out.

    Raises:
        KdeployError: (exit 2) the launch has patches; their folder lies on this machine, and nobody would see that they
            are missing.
    """
    if plan.patch_folder is not None:
        names = ", ".join(entry["name"] for entry in plan.patches if entry["loaded"])
        raise usage(
            f"patches: {names} cannot be handed to a container",
            fix=["render it for systemd or slurm, or leave them out: --set patches=[]"],
        )
    hidden = {*LOCAL_ONLY, "CUDA_VISIBLE_DEVICES"} | (set() if visible else {"CUDA_DEVICE_ORDER"})
    return {
        key: value
        for key, value in sorted(plan.env.items())
        if key not in hidden and not key.startswith(LOCAL_PREFIXES)
    }


def _no_interpolation(text: str) -> str:
    """`$` doubled, as compose wants it, and `${env:NAME}` as compose's own variable."""
    parts, at = [], 0
    for match in REFERENCE.finditer(text):
        if match[1] == "file":
            raise usage(
                f"{match[0]} cannot be written into a compose file", fix=["use ${env:NAME}, which compose reads itself"]
            )
        parts += [text[at : match.start()].replace("$", "$$"), f"${{{match[2]}:?is not set}}"]
        at = match.end()
    return "".join([*parts, text[at:].replace("$", "$$")])


def _kubernetes_env(key: str, value: str, name: str) -> dict[str, Any]:
    found = references(value)
    if not found:
        return {"name": key, "value": value.replace("$(", "$$(")}
    if len(found) > 1 or found[0][0] == "file" or REFERENCE.fullmatch(value) is None:
        raise usage(f"env.{key}: only a whole ${{env:NAME}} can become a key of a Secret")
    return {"name": key, "valueFrom": {"secretKeyRef": {"name": name, "key": found[0][1]}}}


def _dns_name(name: str) -> str:
    return "".join(char if char.isalnum() else "-" for char in name.lower()).strip("-")


class _Dumper(yaml.SafeDumper):
    """Multi-line texts stay readable, and nothing becomes an alias."""

    def ignore_aliases(self, data: Any) -> bool:
        """Two equal lists are two lists."""
        return True


def _dump(document: Any) -> str:
    # quoted by PyYAML wherever YAML 1.1 or 1.2 would read something else than text
    return yaml.dump(
        document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000, default_flow_style=False
    )
