"""Finding out what a plan needs, and refusing all that can be refused, before the first side effect."""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from deploy.checkpoint.weights import WeightFile, read_weights
from deploy.engine.flags import shipped_flags
from deploy.engine.installations import Engine, check_version, find
from deploy.errors import KdeployError, environment, refused, usage
from deploy.homes import cache_dir, data_dir
from deploy.host.listeners import holder, port_problem
from deploy.host.processes import title
from deploy.patching.catalogue import refuse_unknown
from deploy.plan.launch_plan import Gpu, LaunchPlan
from deploy.plan.load_ground import ground_of
from deploy.plan.make import Facts, make_plan, refuse
from deploy.plan.patches import patching_of
from deploy.profile.catalogue import Catalogue, Resolved
from deploy.profile.yaml_reader import leaves
from deploy.store.launches import check_name

NO_ENGINE = Engine("", [], {}, None, None, False)


class Wish(NamedTuple):
    """What was asked on the command line."""

    profile: str
    name: str | None = None
    sets: Sequence[str] = ()
    extra: Sequence[str] = ()
    port: int | None = None


def resolve(catalogue: Catalogue, wish: Wish) -> Resolved:
    """The wished profile with all its layers, refused (exit 2) for whatever is wrong with it on any machine."""
    if wish.name is not None:
        check_name(wish.name)
    port = [f"serve.port={wish.port}"] if wish.port is not None else []
    resolved = catalogue.resolve(wish.profile, [*wish.sets, *port])
    check_version(NO_ENGINE, resolved.profile.engine.version)
    try:
        refuse(resolved.profile, wish.extra, shipped_flags())
        refuse_unknown(resolved.profile.patches)
    except KdeployError as error:
        raise _placed(error, resolved) from None
    return resolved


def plan_for_launch(resolved: Resolved, wish: Wish, gpus: list[Gpu] | None) -> LaunchPlan:
    """The plan of a launch here and now: engine, checkpoint and version must be usable.

    Raises:
        KdeployError: with the exit code of the first kind of obstacle; obstacles of one kind are told together.
    """
    return _plan(resolved, wish, gpus, strict=True)


def plan_for_show(resolved: Resolved, wish: Wish, gpus: list[Gpu] | None = None) -> LaunchPlan:
    """The plan as it would be, for `render`: an engine or checkpoint that is not here becomes a note. Without `gpus`
    the first ones of the machine stand for those that a launch would lease."""
    count = resolved.profile.gpus
    assumed = [Gpu(index, "") for index in range(count)] if count else None
    return _plan(resolved, wish, gpus or assumed, strict=False)


def _plan(resolved: Resolved, wish: Wish, gpus: list[Gpu] | None, *, strict: bool) -> LaunchPlan:
    profile = resolved.profile
    name = check_name(wish.name or resolved.name)
    notes: list[str] = []
    engine = _engine(profile.engine.executable, notes, strict=strict)
    note = check_version(engine, profile.engine.version)
    if note and (strict or engine.interpreter):
        notes.append(note)
    model, weights, folder = _model(resolved, notes, strict=strict)
    ground = ground_of(folder, weights, probe=strict) if folder else None
    caches = os.path.join(cache_dir(), "engines")
    try:
        patching = patching_of(profile, engine, model, notes)
        facts = Facts(engine, model, weights, gpus, os.environ, shipped_flags(), patching, ground, caches)
        return make_plan(profile, resolved.name, resolved.file, facts, name=name, extra=wish.extra, notes=notes)
    except KdeployError as error:
        raise _placed(error, resolved) from None


def _placed(error: KdeployError, resolved: Resolved) -> KdeployError:
    """The error with the place that set the key which it begins with."""
    key = error.what.split()[0].rstrip(":")
    places = {".".join(path): node.at for path, node in leaves(resolved.tree)}
    if key not in places:
        return error
    return KdeployError(error.what, evidence=[f"{places[key]}: {key}", *error.evidence], fix=error.fix, code=error.code)


def _engine(executable: str, notes: list[str], *, strict: bool) -> Engine:
    try:
        return find(executable)
    except KdeployError as error:
        if strict:
            raise
        notes.append(f"{error.what}; shown as it would be called")
        return Engine(executable, [executable], {}, None, None, False, error.what)


def _model(resolved: Resolved, notes: list[str], *, strict: bool) -> tuple[str, list[WeightFile], str | None]:
    """What vLLM is given as its model, its weight files where they are on disk, and the folder that they are in."""
    model = resolved.profile.model
    folder = local_model(resolved)
    if folder is None:
        cached = hub_snapshot(model.id or "", model.revision, resolved.profile.env)
        return model.id or "", _quietly(cached) if cached else [], cached
    if model.path is None or folder != model_folder(model.path, os.path.dirname(resolved.file)):
        absent = "" if model.path is None else f"; model.path {model.path} is not here"
        notes.append(f"{model.id} is loaded from {folder} (model.folders){absent}")
    try:
        return folder, read_weights(folder), folder
    except KdeployError as error:
        if strict:
            raise environment(error.what, evidence=error.evidence, fix=[*error.fix, *_hint(resolved)]) from None
        notes.append(error.what)
        return folder, [], None


def local_weights(resolved: Resolved) -> tuple[str, list[WeightFile]]:
    """The folder and weight files of a profile's model on this machine.

    Raises:
        KdeployError: (exit 6) they are not here, or not whole; (exit 2) the profile names no model.
    """
    model = resolved.profile.model
    folder = local_model(resolved)
    if folder is None:
        folder = hub_snapshot(model.id or "", model.revision, resolved.profile.env)
        if folder is None:
            raise environment(
                f"{model.id} is not on this machine",
                fix=[f"fetch it first: hf download {model.id}", "or set model.path to its folder"],
            )
    weights = read_weights(folder)
    if not weights:
        raise environment(f"{folder} holds no safetensors files", fix=["only these can be read ahead"])
    return folder, weights


def _hint(resolved: Resolved) -> list[str]:
    return ["./scripts/quickstart makes the demo model"] if resolved.name == "tiny-moe" else []


def _quietly(folder: str) -> list[WeightFile]:
    """Weight files of a hub snapshot, for progress only: vLLM itself fetches what is missing there."""
    try:
        return read_weights(folder)
    except KdeployError:
        return []


def model_on_disk(resolved: Resolved) -> str | None:
    """The folder of a profile's model on this machine, the hub's cache included; None when it has to be fetched."""
    model = resolved.profile.model
    folder = local_model(resolved)
    return folder or (hub_snapshot(model.id, model.revision, resolved.profile.env) if model.id else None)


def local_model(resolved: Resolved) -> str | None:
    """The folder that a profile's model is loaded from: `model.path` where there is one, else the id's in one of
    `model.folders`; None when it comes from the hub or its cache."""
    model = resolved.profile.model
    beside = os.path.dirname(resolved.file)
    named = None if model.path is None else model_folder(model.path, beside)
    if named is not None and os.path.isdir(named):
        return named
    for folder in model.folders if model.id else []:
        root = os.path.join(beside, os.path.expanduser(folder))
        for name in (model.id or "", (model.id or "").rpartition("/")[2]):
            if os.path.isfile(os.path.join(root, name, "config.json")):
                return os.path.normpath(os.path.join(root, name))
    return named


def model_folder(path: str, beside: str) -> str:
    """`model.path` as an absolute folder: relative ones lie beside the profile, else in kdeploy's model folder."""
    expanded = os.path.expanduser(path)
    if os.path.isabs(expanded):
        return os.path.normpath(expanded)
    near = os.path.normpath(os.path.join(beside, expanded))
    if os.path.isdir(near) or path.startswith(("./", "../")):
        return near
    return os.path.join(data_dir(), "models", os.path.normpath(expanded))


def hub_snapshot(model_id: str, revision: str | None, env: Mapping[str, str | None]) -> str | None:
    """The folder of a hub model in the local hub cache, None when it is not there.

    Args:
        model_id: as ORG/NAME.
        revision: a commit, branch or tag; None is main.
        env: the profile's own variables, which the engine sees before those of this process.
    """
    root = os.path.join(hub_cache(env), "models--" + model_id.replace("/", "--"))
    commit = revision or "main"
    try:
        with open(os.path.join(root, "refs", commit)) as file:
            commit = file.read().strip()
    except OSError:
        pass
    folder = os.path.join(root, "snapshots", commit)
    return folder if os.path.isdir(folder) else None


def hub_cache(env: Mapping[str, str | None]) -> str:
    """The folder of the local hub cache, with the profile's own variables before those of this process."""
    seen = {**os.environ, **env}
    home = seen.get("HF_HOME") or os.path.join(os.path.expanduser("~"), ".cache", "huggingface")
    return os.path.expanduser(seen.get("HF_HUB_CACHE") or os.path.join(home, "hub"))


def refuse_taken_port(plan: LaunchPlan, others: Sequence[tuple[str, int]]) -> None:
    """Exit 4 when the plan's port cannot be used, naming who has it.

    Args:
        others: (name, port) of the other deployments that are active: a loading one does not listen yet.
    """
    fix = ["choose another: --port PORT", "or stop what has it"]
    for name, port in others:
        if port == plan.port:
            raise refused(
                f"port {plan.port} belongs to the deployment {name}",
                evidence=[f"kdeploy status {name} shows it"],
                fix=[f"kdeploy down {name}", *fix[:1]],
            )
    problem = port_problem(plan.host, plan.port)
    if problem is None:
        return
    if problem.startswith("cannot bind"):
        raise usage(problem, fix=["--set serve.host=ADDRESS, one that this machine has"])
    found = holder(plan.port, plan.host)
    who = f"pid {found.pid}: {title(found.pid)[:100]}" if found and found.pid else "its process is not visible here"
    raise refused(problem, evidence=[who], fix=fix)
