"""`kdeploy profile list|show|check|schema|new`: find profiles, print them resolved, validate, scaffold."""

import json
import os
from typing import Any

import click

from deploy import errors
from deploy.commands import options
from deploy.console import output
from deploy.console.words import size
from deploy.engine.flags import objections, shipped_flags
from deploy.errors import KdeployError, refused
from deploy.homes import config_dir, make_private
from deploy.plan.check import against_engine
from deploy.plan.fit_inputs import refuse_bad_shape
from deploy.plan.gather import Wish, plan_for_show
from deploy.profile.catalogue import Catalogue, Found, invalid, standard
from deploy.profile.reference import json_schema, scaffold
from deploy.profile.yaml_reader import Mapping, Node, Scalar, Sequence, Unreadable, leaves, read_value
from deploy.store.launches import check_name


@click.group()
def command() -> None:
    """Profiles: list, show, check."""


def _catalogue(ctx: click.Context, profiles: tuple[str, ...]) -> Catalogue:
    return standard([*ctx.obj["profiles"], *profiles])


@command.command("list")
@options.profiles
@options.as_json
@click.pass_context
def listing(ctx: click.Context, profiles: tuple[str, ...], as_json: bool) -> None:
    """Every profile, and where it lies."""
    catalogue = _catalogue(ctx, profiles)
    rows = [_entry(catalogue, found) for found in catalogue.all()]
    if as_json:
        output.document({"schema": 1, "profiles": rows})
        return
    output.table(
        [
            ("NAME", "GPUS", "SUMMARY", "FILE"),
            *(tuple(str(row[key]) for key in ("name", "gpus", "summary", "file")) for row in rows),
        ]
    )


def _entry(catalogue: Catalogue, found: Found) -> dict[str, object]:
    entry: dict[str, object] = {"name": found.name, "file": found.file, "valid": True}
    try:
        profile = catalogue.resolve(found.file).profile
    except KdeployError as error:
        return {**entry, "valid": False, "gpus": "?", "summary": f"not valid: kdeploy profile check {found.name}"} | {
            "error": error.what
        }
    base = not (profile.model.path or profile.model.id)
    return {**entry, "base": base, "gpus": "-" if base else profile.gpus, "summary": profile.summary}


@command.command("show")
@click.argument("profile")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override one key.")
@click.option("--origin", is_flag=True, help="Where each value was set.")
@options.profiles
@options.as_json
@click.pass_context
def show(
    ctx: click.Context, profile: str, sets: tuple[str, ...], origin: bool, profiles: tuple[str, ...], as_json: bool
) -> None:
    """A profile with all its layers laid over each other."""
    resolved = _catalogue(ctx, profiles).resolve(profile, sets)
    if as_json:
        document = {
            "schema": 1,
            "name": resolved.name,
            "file": resolved.file,
            "layers": resolved.layers,
            "profile": {**resolved.profile.model_dump(by_alias=True), "name": resolved.name},
        }
        if origin:
            document["origin"] = {".".join(path): str(node.at) for path, node in leaves(resolved.tree)}
        output.document(document)
        return
    if origin:
        rows = [(".".join(path), _shown(node), str(node.at)) for path, node in leaves(resolved.tree)]
        output.table([("KEY", "VALUE", "SET AT"), *rows])
        return
    output.data(_yaml(resolved.tree).rstrip("\n"))


def _plain_enough(text: str, where: str) -> bool:
    """Whether the characters, written without quotes, are read again as they are."""
    try:
        node = read_value(where.format(text), "")
    except Unreadable:
        return False
    if isinstance(node, Sequence) and len(node.items) == 1:
        node = node.items[0]
    return isinstance(node, Scalar) and node.plain and node.text == text


def _shown(node: Node) -> str:
    return _flow(node, "{}")


def _yaml(tree: Mapping) -> str:
    """The resolved tree as YAML, every scalar with the characters that it was written with."""
    return "".join(f"{line}\n" for line in _yaml_lines(tree, 0))


def _yaml_lines(node: Mapping, depth: int) -> list[str]:
    lines = []
    pad = "  " * depth
    for word, value in node.entries.items():
        key = (
            word if _plain_enough(word, "{}") and _plain_enough(word, "[{}]") else _flow(Scalar(word, False, value.at))
        )
        if isinstance(value, Mapping) and value.entries:
            lines += [f"{pad}{key}:", *_yaml_lines(value, depth + 1)]
        else:
            lines.append(f"{pad}{key}: {_flow(value, '{}')}")
    return lines


def _flow(node: Node, where: str = "[{}]") -> str:
    import json

    if isinstance(node, Scalar):
        plain = node.plain and (not node.text or _plain_enough(node.text, where))
        return node.text if plain else json.dumps(node.text, ensure_ascii=False)
    if isinstance(node, Sequence):
        return "[" + ", ".join(_flow(item) for item in node.items) + "]"
    return "{" + ", ".join(f"{json.dumps(key)}: {_flow(value)}" for key, value in node.entries.items()) + "}"


@command.command("check")
@click.argument("names", nargs=-1, metavar="[PROFILE]...")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override one key.")
@options.profiles
@options.as_json
@click.pass_context
def check(
    ctx: click.Context, names: tuple[str, ...], sets: tuple[str, ...], profiles: tuple[str, ...], as_json: bool
) -> int:
    """Validate profiles (without a name: all). Exit 2 when one is not valid."""
    catalogue = _catalogue(ctx, profiles)
    arguments = list(names) or [found.file for found in catalogue.all()]
    codes = {errors.OK}
    results = []
    for argument in arguments:
        result, problem = _checked(catalogue, argument, sets)
        results.append(result)
        if problem:
            codes.add(problem.code)
            output.say(f"{result['name']}: " + ("not valid" if problem.code == errors.USAGE else "cannot run here"))
            output.error(problem)
        elif not as_json:
            output.data(f"{result['name']}: ok ({result['detail']})")
        for warning in result.get("warnings", ()):
            output.say(f"  warning: {warning}")
    if as_json:
        output.document({"schema": 1, "profiles": results})
    return errors.USAGE if errors.USAGE in codes else max(codes)


def _checked(catalogue: Catalogue, argument: str, sets: tuple[str, ...]) -> tuple[dict[str, Any], KdeployError | None]:
    """What is to be told of one profile, and the error if it has one."""
    result: dict[str, Any] = {"name": argument, "valid": True, "warnings": [], "errors": []}
    try:
        resolved = catalogue.resolve(argument, sets)
        result |= {"name": resolved.name, "file": resolved.file}
        profile = resolved.profile
        if not (profile.model.path or profile.model.id):
            return {**result, "detail": "a base, only there to be extended"}, None
        plan = plan_for_show(resolved, Wish(argument, sets=sets))
        # without an engine to ask, by the rules of the version that the shipped catalogue is of
        shapes = refuse_bad_shape(resolved, plan.engine["version"] or shipped_flags().version)
        held = against_engine(resolved, plan)
        if held.problems:
            raise invalid(held.problems)
    except KdeployError as error:
        return {**result, "valid": error.code != errors.USAGE, "errors": [error.what, *error.evidence]}, error
    detail = f"{profile.gpus or 'no'} GPU{'' if profile.gpus == 1 else 's'}"
    if plan.bytes_total:
        detail += f", {size(plan.bytes_total)} in {len(plan.shards)} files"
    if held.asked:
        detail += f", taken by the parser of vLLM {held.asked}"
    # the engine that was asked knows better than the shipped catalogue
    said = set(objections(plan.argv[len(plan.engine["start"]) :], shipped_flags())) if held.asked else set()
    notes = [note for note in (*plan.notes, *shapes, *held.notes) if note not in said]
    return {**result, "detail": detail, "asked": held.asked, "warnings": notes}, None


@command.command("schema")
def schema() -> None:
    """The JSON Schema of a profile, for editors: it completes keys and shows what they mean."""
    output.document(json_schema())


@command.command("new")
@click.argument("name")
@click.option("--model", metavar="PATH|ID", help="The model: a local folder, or a hub id.")
@click.option("--from", "base", metavar="PROFILE", help="Extend this profile.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@options.profiles
@click.pass_context
def new(
    ctx: click.Context, name: str, model: str | None, base: str | None, force: bool, profiles: tuple[str, ...]
) -> None:
    """Write a profile to start from into your own profile folder."""
    check_name(name)
    catalogue = _catalogue(ctx, profiles)
    if base is not None:
        catalogue.find(base)
    folder = os.path.join(config_dir(), "profiles")
    path = os.path.join(make_private(folder), f"{name}.yaml")
    if os.path.exists(path) and not force:
        raise refused(f"{path} exists already", fix=[f"kdeploy profile show {name}", "or replace it: --force"])
    schema_path = os.path.join(make_private(config_dir()), "profile.schema.json")
    with open(schema_path, "w") as file:
        json.dump(json_schema(), file, indent=1)
    with open(path, "w") as file:
        file.write(scaffold(name, schema_path, model=model, base=base))
    output.data(path)
    output.say(f"next: edit it, then kdeploy profile check {name}")
