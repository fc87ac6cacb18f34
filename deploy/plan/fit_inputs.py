"""Finding out what `fit` and the shape rules need: the checkpoint on disk, shipped facts, the profile's flags."""

import json
import os
from typing import Any, NamedTuple

from deploy.checkpoint.config import ModelFacts, Tensor, read_config, read_tensors, shipped_facts
from deploy.engine import shapes
from deploy.engine.flags import canonical
from deploy.errors import WILL_NOT_FIT, KdeployError, usage
from deploy.plan.fit import Case, Fit, estimate
from deploy.plan.gather import model_on_disk
from deploy.profile.catalogue import Resolved

# The human-readable numbers of vLLM's parser: 32k is 32000, 32K is 32768.
SUFFIXES = {key: 1000**power for power, key in enumerate("kmgt", 1)} | {
    key: 1024**power for power, key in enumerate("KMGT", 1)
}


class Model(NamedTuple):
    """What is known of a profile's model; `notes` say why something is not."""

    facts: ModelFacts | None
    tensors: list[Tensor]
    notes: list[str]


def known_model(resolved: Resolved, *, tensors: bool = True) -> Model:
    """The model of a profile: the checkpoint on disk, else what kdeploy ships about its hub id. Never raises.

    Args:
        resolved: the profile.
        tensors: also read the headers of the weight files.
    """
    model = resolved.profile.model
    folder = model_on_disk(resolved)
    notes: list[str] = []
    facts = None
    found: list[Tensor] = []
    if folder is not None and os.path.isfile(os.path.join(folder, "config.json")):
        try:
            facts = read_config(folder)
            found = read_tensors(folder) if tensors else []
        except KdeployError as error:
            notes.append(error.what)
    if facts is None:
        facts = shipped_facts(model.id)
    return Model(facts, found, notes)


def check_shapes(resolved: Resolved, version: str | None, model: Model | None = None) -> list[shapes.Finding]:
    """The shape rules on a profile.

    Args:
        resolved: the profile.
        version: of the vLLM that will run it; None when it cannot be told.
        model: as `known_model` gave it, to read nothing twice.
    """
    profile = resolved.profile
    facts = (model or known_model(resolved, tensors=False)).facts
    args = {canonical(key): value for key, value in profile.args.items()}
    return shapes.check(
        facts or ModelFacts(),
        shapes.split_of(profile.parallel),
        version,
        gpus=profile.hardware.gpus,
        moe_backend=str(args.get("moe-backend") or "auto"),
        attention_backend=_named_backend(args),
        capability=profile.hardware.capability,
    )


def _named_backend(args: dict[str, Any]) -> str | None:
    config = args.get("attention-config")
    named = args.get("attention-backend") or (config.get("backend") if isinstance(config, dict) else None)
    return str(named) if named else None


def refuse_bad_shape(resolved: Resolved, version: str | None, model: Model | None = None) -> list[str]:
    """Exit 2 when vLLM would refuse the split, all rules together; else the notes.

    Raises:
        KdeployError: (exit 2) at least one rule is broken.
    """
    found = check_shapes(resolved, version, model)
    wrong = [item for item in found if item.severity == shapes.ERROR]
    if wrong:
        raise usage(
            f"{resolved.name} cannot be split that way",
            evidence=[item.text for item in wrong],
            fix=[item.fix for item in wrong if item.fix],
        )
    return [item.text for item in found]


def case_of(resolved: Resolved, model: Model, version: str | None, memory_gib: float | None) -> Case:
    """A profile as `estimate` takes it. `memory_gib` is that of the smallest of its GPUs."""
    profile = resolved.profile
    args = {canonical(key): value for key, value in profile.args.items()}
    draft = _json(args.get("speculative-config"))
    method = str((draft or {}).get("method") or "")
    vision = {"data": "copied"}.get(str(args.get("mm-encoder-tp-mode")), "split")
    compilation = _json(args.get("compilation-config")) or {}
    no_graphs = str(compilation.get("cudagraph_mode", "")).upper() == "NONE"
    return Case(
        profile=resolved.name,
        facts=model.facts,
        tensors=model.tensors,
        split=shapes.split_of(profile.parallel),
        max_model_len=profile.serve.max_model_len,
        kv_cache_dtype=profile.serve.kv_cache_dtype or "auto",
        block_size=_number(args.get("block-size")),
        memory_gib=memory_gib,
        utilization=profile.serve.gpu_memory_utilization,
        kv_cache_memory_bytes=_number(args.get("kv-cache-memory-bytes")),
        batched_tokens=_number(args.get("max-num-batched-tokens")),
        sequences=_number(args.get("max-num-seqs")),
        cpu=profile.gpus == 0,
        cpu_kv_gib=_number(profile.env.get("VLLM_CPU_KVCACHE_SPACE")),
        capability=profile.hardware.capability,
        vision="dropped" if args.get("language-model-only") is True else vision,
        eager=args.get("enforce-eager") is True or no_graphs,
        graphs_counted=profile.env.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS") != "0",
        draft="mtp" if "mtp" in method else method or ("draft" if draft else None),
        version=version,
        attention_backend=_named_backend(args),
    )


def _json(value: Any) -> dict[str, Any] | None:
    """A map of the profile, or the JSON text of one."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, dict) else None


def _number(value: Any) -> int | None:
    """A whole number as vLLM reads it; None for none, or one that it would not take either."""
    text = str(value).strip() if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
    factor = SUFFIXES.get(text[-1:], 1)
    try:
        number = float(text[:-1]) * factor if factor > 1 else int(text)
    except ValueError:
        return None
    return int(number) if number >= 0 else None


def fit_of(resolved: Resolved, version: str | None, memory_gib: float | None, model: Model | None = None) -> Fit:
    """The whole answer for a profile.

    Args:
        resolved: the profile.
        version: of the vLLM that will run it.
        memory_gib: of the smallest GPU that it would get; None takes the profile's `hardware.memory_gib`.
        model: as `known_model` gave it.
    """
    profile = resolved.profile
    model = model or known_model(resolved)
    memory = memory_gib if memory_gib is not None else profile.hardware.memory_gib
    case = case_of(resolved, model, version, memory)
    fit = estimate(case)
    fit.notes[:0] = model.notes
    if case.draft and case.draft != "mtp":
        fit.notes.append("the draft model of speculative-config is not counted")
    if any(canonical(key) == "hf-overrides" for key in profile.args):
        fit.notes.append("hf-overrides are not looked into")
    return fit


def refuse_unfit(
    resolved: Resolved, version: str | None, memory_gib: float | None, model: Model | None = None
) -> list[str]:
    """Exit 5 when the model cannot fit; else what is worth telling (what is missing, that it is tight).

    Raises:
        KdeployError: (exit 5) it cannot fit, whatever the estimated reserve really is.
    """
    fit = fit_of(resolved, version, memory_gib, model)
    if fit.fits is False:
        raise KdeployError(
            f"{resolved.name} does not fit" + ("" if fit.memory_gib is None else f" GPUs of {fit.memory_gib:g} GiB"),
            evidence=fit.notes,
            fix=[*fit.fix, f"kdeploy fit {resolved.name} shows the sum"],
            code=WILL_NOT_FIT,
        )
    return [note for note in fit.notes if note.startswith(("tight", "too close"))]
