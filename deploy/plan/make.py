"""From a resolved profile and the facts about engine, checkpoint, GPUs and shell to one LaunchPlan. Pure."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from deploy.checkpoint.weights import WeightFile
from deploy.engine.flags import Flags, canonical, managed_in, objections
from deploy.engine.installations import Engine
from deploy.errors import usage
from deploy.plan.command_line import serve_arguments
from deploy.plan.environment import SECRET, compose
from deploy.plan.launch_plan import Gpu, LaunchPlan, Shard
from deploy.plan.patches import NONE, Patching
from deploy.plan.references import malformed, references
from deploy.plan.strategy import Ground, decide, load_of
from deploy.profile.schema import Profile


class Facts(NamedTuple):
    """What was found out before planning. `model` is the folder or hub id that vLLM is given; `weights` are empty
    when the checkpoint is not on disk; `gpus` are the leased (or assumed) ones, None for a CPU engine; `patching` is
    what the profile's patches come to."""

    engine: Engine
    model: str
    weights: list[WeightFile]
    gpus: list[Gpu] | None
    environ: Mapping[str, str]
    flags: Flags
    patching: Patching = NONE
    ground: Ground | None = None  # what the load will find; None when the weights are not here
    caches: str | None = None  # the folder that engines keep what they compile in


def make_plan(
    profile: Profile,
    profile_name: str,
    profile_file: str,
    facts: Facts,
    *,
    name: str | None = None,
    extra: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> LaunchPlan:
    """The plan.

    Raises:
        KdeployError: (exit 2) the profile or the verbatim tail cannot be turned into a command.
    """
    refuse(profile, extra, facts.flags)
    total = sum(file.size for file in facts.weights)
    ranks = profile.parallel.tensor * profile.parallel.pipeline
    keys = {canonical(key.partition(".")[0]) for key in profile.args}
    choice = decide(
        profile.load.strategy,
        profile.load.prewarm,
        total=total,
        gpus=profile.gpus,
        version=facts.engine.version,
        draft="speculative-config" in keys,
        expert_filter="enable-ep-weight-filter" in keys,
        written=bool({"load-format", "safetensors-load-strategy"} & keys) and profile.load.strategy == "auto",
        ground=facts.ground,
    )
    load = load_of(choice, facts.ground, total=total, gpus=profile.gpus, ranks=ranks)
    if choice.strategy != profile.load.strategy:
        # by ourselves, so there is a way back
        plain = [*facts.engine.start, *serve_arguments(profile, facts.model, facts.flags, extra)]
        load["fallback_argv"] = plain
        chosen = profile.load.model_copy(update={"strategy": choice.strategy})
        profile = profile.model_copy(update={"load": chosen})
    arguments = serve_arguments(profile, facts.model, facts.flags, extra)
    environment = compose(
        facts.environ,
        profile=profile.env,
        engine=facts.engine.env,
        gpus=None if facts.gpus is None else [gpu.index for gpu in facts.gpus],
        limit_s=profile.load.limit_s,
        patches=facts.patching.env,
        patch_folder=facts.patching.folder,
        caches=_caches(facts),
    )
    named = facts.model if profile.model.path else profile.model.id or facts.model
    served = profile.model.served_name or [named]
    plan = LaunchPlan(
        name=name or profile_name,
        profile=profile_name,
        profile_file=profile_file,
        digest="",
        model=facts.model,
        served_names=list(served),
        argv=[*facts.engine.start, *arguments],
        env=environment.values,
        host=profile.serve.host,
        port=profile.serve.port,
        engine=facts.engine.to_json(),
        limits=_limits(profile),
        health=profile.health.model_dump(),
        canary={
            **profile.canary.model_dump(),
            "max_model_len": profile.serve.max_model_len,
            "patches": list(profile.patches),
            "checkpoint": _checkpoint(facts, profile.model.revision),
        },
        gpus=facts.gpus or [],
        gpus_wanted=profile.gpus,
        gpu_memory_utilization=profile.serve.gpu_memory_utilization,
        shards=[Shard(file.name, file.size) for file in facts.weights],
        passed_through=environment.passed,
        dropped=environment.dropped,
        notes=[*notes, *_notes(profile, arguments, facts.flags)],
        bench=profile.bench.model_dump(),
        patches=facts.patching.entries,
        patch_folder=facts.patching.folder,
        load=load,
    )
    return with_digest(plan)


def _checkpoint(facts: Facts, revision: str | None) -> str:
    """Which checkpoint it is: its place, revision, and the names and sizes of its weight files."""
    identity = [facts.model, revision, sorted((file.name, file.size) for file in facts.weights)]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]


def _caches(facts: Facts) -> str | None:
    """The engine's own cache folder: by version, so that an upgrade cannot be served what an older one compiled."""
    if facts.caches is None or facts.engine.version is None:
        return None
    return f"{facts.caches}/{facts.engine.name}-{facts.engine.version}".replace(" ", "_")


def _limits(profile: Profile) -> dict[str, Any]:
    return {
        "stall_s": profile.load.stall_s,
        "limit_s": profile.load.limit_s,
        **profile.stop.model_dump(),
        "restart": profile.restart.model_dump(),
    }


def with_digest(plan: LaunchPlan) -> LaunchPlan:
    """The plan with a digest of what decides the launch: what two plans must share to be the same launch."""
    from dataclasses import replace

    decides = [plan.argv, plan.env, plan.engine, plan.limits, plan.health, plan.canary]
    text = json.dumps(decides, sort_keys=True)
    return replace(plan, digest=hashlib.sha256(text.encode()).hexdigest()[:16])


def refuse(profile: Profile, extra: Sequence[str], flags: Flags) -> None:
    """Raise (exit 2) when the profile and the verbatim tail cannot become a command on any machine."""
    if not (profile.model.path or profile.model.id):
        raise usage(
            "the profile names no model", fix=["set model.path or model.id; a base is only there to be extended"]
        )
    if profile.model.trust_remote_code and not profile.model.path and not profile.model.revision:
        raise usage(
            "model.trust_remote_code runs code from the hub, and no revision is pinned",
            fix=["set model.revision to a commit, or model.path to a local folder"],
        )
    if profile.parallel.tensor % profile.parallel.decode_context:
        raise usage(
            f"parallel.decode_context {profile.parallel.decode_context} does not divide "
            f"parallel.tensor {profile.parallel.tensor}",
            fix=["set parallel.decode_context to a divisor of parallel.tensor"],
        )
    ranks = profile.parallel.tensor * profile.parallel.pipeline * profile.parallel.data
    if profile.gpus and profile.gpus != ranks:
        raise usage(
            f"hardware.gpus is {profile.gpus}, but tensor x pipeline x data is {ranks}",
            fix=[f"set hardware.gpus to {ranks}, or leave it out"],
        )
    typed = [word.partition("=")[0] for word in extra if word.startswith("--")]
    for word in [*(f"args.{key}" for key in profile.args), *typed]:
        if canonical(word.removeprefix("args.").removeprefix("--")) in ("ssl-keyfile", "ssl-certfile"):
            way_out = "put a proxy in front of it that speaks TLS"
            raise usage(f"{word}: kdeploy cannot watch a server behind TLS", fix=[way_out])
    for word, key in managed_in(extra, flags)[:1]:
        fix = [f"--set {key.split(' ')[0]}=VALUE"] if "." in key.split(" ")[0] else []
        raise usage(f"{word} after -- is decided by the profile's {key}", fix=fix)
    for word in extra:
        if any("\ud800" <= char <= "\udfff" for char in word):
            raise usage("a word after -- is not UTF-8 text", evidence=[ascii(word)], fix=["write it as UTF-8"])
    _refuse_bad_references(profile, extra)
    serve_arguments(profile, "", flags, extra)


def _refuse_bad_references(profile: Profile, extra: Sequence[str]) -> None:
    args = [(f"args.{key}", str(value)) for key, value in profile.args.items()]
    env = [(f"env.{key}", value) for key, value in profile.env.items() if value is not None]
    wrong = [
        f"{where}: {bad}" for where, text in [*args, *env, *(("--", word) for word in extra)] for bad in malformed(text)
    ]
    if wrong:
        raise usage(
            "a reference to a secret that cannot be one",
            evidence=wrong,
            fix=["${env:NAME} names a variable, ${file:/path} a file by its absolute path"],
        )


def _notes(profile: Profile, arguments: Sequence[str], flags: Flags) -> list[str]:
    notes = []
    notes += objections(arguments, flags)
    for variable, value in sorted(profile.env.items()):
        if value is not None and flags.unknown_variables([variable]):
            close = flags.nearest_variable(variable)
            hint = f"; did you mean {close}?" if close else ""
            notes.append(f"env.{variable}: vLLM {flags.version} reads no variable of this name{hint}")
        if value and len(value) >= 8 and SECRET.search(variable) and not references(value) and not value.isdigit():
            notes.append(f"env.{variable} holds a secret in clear text; write ${{env:NAME}} or ${{file:/path}}")
    if profile.gpus and profile.env.get("CUDA_VISIBLE_DEVICES") is not None:
        notes.append("env.CUDA_VISIBLE_DEVICES wins over the GPUs that are leased for this launch")
    if any(references(word) for word in arguments):
        notes.append("a secret among the arguments can be seen in the process list; VLLM_API_KEY under env: cannot")
    return notes
