"""The reference of profile keys, from the schema. Pure."""

from pydantic import BaseModel

from deploy.profile.schema import Profile


def key_table() -> str:
    """A Markdown table of every key with its default and meaning, as docs/profiles.md has it."""
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *_rows(Profile, "")])


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
