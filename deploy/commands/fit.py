"""`kdeploy fit PROFILE`: memory per GPU, KV tokens, longest context, before anything is loaded."""

import click

from deploy import errors
from deploy.commands import options
from deploy.console import output
from deploy.engine.flags import shipped_flags
from deploy.engine.installations import find
from deploy.errors import KdeployError, usage
from deploy.host.gpus import GpuState, NoGpus, inventory
from deploy.plan.fit import Fit
from deploy.plan.fit_inputs import check_shapes, fit_of, known_model
from deploy.plan.gather import Wish, resolve
from deploy.plan.placement import Needs, choose
from deploy.profile.catalogue import Resolved, standard


@click.command()
@click.argument("profile")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override one key: --set parallel.tensor=4.")
@click.option("--gpus", metavar="LIST", help="Take the memory of these GPUs, by index or UUID, comma separated.")
@options.profiles
@options.as_json
@click.pass_context
def command(
    ctx: click.Context,
    profile: str,
    sets: tuple[str, ...],
    gpus: str | None,
    profiles: tuple[str, ...],
    as_json: bool,
) -> int:
    """Memory per GPU, KV tokens and longest context, before anything is loaded. Exit 5 when it cannot fit."""
    resolved = resolve(standard([*ctx.obj["profiles"], *profiles]), Wish(profile, sets=sets))
    if not (resolved.profile.model.path or resolved.profile.model.id):
        raise usage(
            "the profile names no model", fix=["set model.path or model.id; a base is only there to be extended"]
        )
    notes: list[str] = []
    version = _version(resolved.profile.engine.executable, notes)
    model = known_model(resolved)
    fit = fit_of(resolved, version, _memory_gib(resolved, gpus, notes), model)
    fit.notes[:0] = notes
    findings = check_shapes(resolved, version, model)
    if as_json:
        output.document({**fit.to_json(), "findings": [item._asdict() for item in findings]})
    else:
        _print(resolved, fit)
        for item in findings:
            output.say(f"{item.severity}: {item.text}" + (f"\n  -> {item.fix}" if item.fix else ""))
    return errors.WILL_NOT_FIT if fit.fits is False else errors.OK


def _version(executable: str, notes: list[str]) -> str | None:
    """The version of the vLLM that would run it, else that of the shipped rules."""
    try:
        engine = find(executable)
    except KdeployError:
        version = shipped_flags().version
        notes.append(f"no engine {executable} here: by the rules of vLLM {version}")
        return version
    return engine.version


def _memory_gib(resolved: Resolved, named: str | None, notes: list[str]) -> float | None:
    """Memory of the smallest GPU that was named; without names the profile's figure, else this machine's GPUs."""
    profile = resolved.profile
    if profile.gpus == 0:
        if named is not None:
            raise usage("--gpus, and the profile is for a CPU engine (hardware.gpus 0)")
        return None
    if named is None and profile.hardware.memory_gib is not None:
        return None
    try:
        present = inventory()
    except NoGpus as error:
        if named is not None:
            raise error.as_error() from None
        return None
    if named is not None:
        indices = {gpu.index for gpu in choose(present, profile.gpus, named, {}, Needs(), must_be_free=False)}
        present = [gpu for gpu in present if gpu.number in indices]
    return _smallest(present, notes)


def _smallest(gpus: list[GpuState], notes: list[str]) -> float | None:
    sizes = [gpu.total_mib for gpu in gpus if gpu.total_mib is not None]
    if not sizes:
        return None
    notes.append("GPU memory as NVML gives it; CUDA sees about half a GiB less")
    return min(sizes) / 1024


def _print(resolved: Resolved, fit: Fit) -> None:
    ranks = "rank" if resolved.profile.gpus == 0 else "GPU"
    verdict = {True: "fits", False: "does not fit", None: "cannot be told"}[fit.fits]
    output.data(f"{fit.profile}: {verdict}")
    weights = "" if fit.weights_gib is None else "" if fit.exact else "  (not read from headers)"
    rows = [
        (f"memory of a {ranks}", _gib(fit.memory_gib), ""),
        ("  of which vLLM may use", _gib(fit.budget_gib), ""),
        (f"weights of a {ranks}", _gib(fit.weights_gib), weights),
        *((name, _gib(size), "  (estimate)") for name, size in fit.reserve.items()),
        ("KV cache", _gib(fit.kv_gib), ""),
        ("  for one token", "?" if fit.kv_bytes_per_token is None else f"{fit.kv_bytes_per_token:,} B", ""),
        ("KV tokens", _count(fit.kv_tokens), ""),
        ("longest context", _count(fit.longest_context), ""),
        ("max_model_len", _count(fit.max_model_len), ""),
        ("requests of that length", "?" if fit.concurrency is None else f"{fit.concurrency:.2f}", ""),
    ]
    for label, value, remark in rows:
        output.data(f"  {label:26}{value:>14}{remark}")
    for note in fit.notes:
        output.say(f"note: {note}")
    for fix in fit.fix:
        output.say(f"  -> {fix}")


def _gib(size: float | None) -> str:
    return "?" if size is None else f"{size:.2f} GiB"


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"
