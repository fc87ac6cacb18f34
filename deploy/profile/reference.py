"""What is made from the schema: the reference of keys, the JSON Schema, a profile to start from. Pure."""

from typing import Any

from pydantic import BaseModel

from deploy.profile.schema import Profile


def key_table() -> str:
    """A Markdown table of every key with its default and meaning, as docs/profiles.md has it."""
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *_rows(Profile, "")])


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a profile file."""
    schema = Profile.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "kdeploy profile"}


def scaffold(name: str, schema_path: str, *, model: str | None, base: str | None) -> str:
    """A profile to start from. The first line is the modeline by which editors find the schema."""
    key, value = ("path", model) if model is None or model.startswith((".", "/", "~")) else ("id", model)
    lines = [
        f"# yaml-language-server: $schema={schema_path}",
        "schema: 1",
        f"name: {name}",
        "summary: what it is, on what",
        *([f"extends: [{base}]"] if base else []),
        "",
        "model:",
        f"  {key}: {value or '/path/to/model'}",
        f"  served_name: {name}",
        "",
        "parallel: {tensor: 1}",
        "",
        "serve:",
        "  port: 8000",
        "  # max_model_len: 131072",
        "  # gpu_memory_utilization: 0.92",
        "",
        "args: {}   # any other vLLM flag by its own name",
        "env: {}    # variables of the engine; a secret as ${env:NAME}",
    ]
    return "\n".join(lines) + "\n"


def _rows(model: type[BaseModel], prefix: str) -> list[str]:
    rows = []
    for name, field in model.model_fields.items():
        key = prefix + (field.alias or name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            rows += _rows(field.annotation, f"{key}.")
            continue
        default = field.get_default(call_default_factory=True)
        shown = "" if default in (None, "") else f"`{str(default).lower() if isinstance(default, bool) else default}`"
        rows.append(f"| `{key}` | {shown} | {field.description} |")
    return rows
