"""The one schema of a profile: validation, JSON Schema and the reference of keys all come from here. Pure.

Leaves arrive as `Scalar`s, so that each key decides what its characters may be: `3.10` is a fine name, `017` a fine
port, and "8000" in quotes is text where a number belongs.
"""

import math
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema

from deploy.profile.yaml_reader import Mapping, Scalar, Sequence

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
RANKS_LIMIT = 1024  # more than any box; a slip of the keyboard must not become a list of a billion GPUs


def _show(node: Any) -> str:
    if isinstance(node, Scalar):
        if node.plain and node.value is None:
            return "no value"
        return repr(node.text) if not node.plain else f"`{node.text}`"
    return "a list" if isinstance(node, (Sequence, list)) else "a map"


def _text(node: Any) -> str:
    if not isinstance(node, Scalar):
        raise ValueError(f"{_show(node)} where text belongs")
    if node.plain and node.value is None:
        raise ValueError(f"{_show(node)} where text belongs")
    if node.plain and isinstance(node.value, bool):
        raise ValueError(f"`{node.text}` is a boolean where text belongs; quote it to mean the word")
    return node.text


def _whole(node: Any) -> int:
    value = node.value if isinstance(node, Scalar) else None
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{_show(node)} where a whole number belongs{_unquote(node)}")
    return value


def _number(node: Any) -> float:
    value = node.value if isinstance(node, Scalar) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{_show(node)} where a number belongs{_unquote(node)}")
    return float(value)


def _unquote(node: Any) -> str:
    quoted = isinstance(node, Scalar) and not node.plain
    return "; remove the quotes" if quoted and node.text.replace(".", "", 1).isdigit() else ""


def _flag(node: Any) -> bool:
    if not isinstance(node, Scalar) or not isinstance(node.value, bool):
        raise ValueError(f"{_show(node)} where true or false belongs")
    return node.value


def _or_null(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def reader(node: Any) -> Any:
        return None if isinstance(node, Scalar) and node.plain and node.value is None else read(node)

    return reader


def _name(node: Any) -> str:
    text = _text(node)
    if not NAME.fullmatch(text):
        raise ValueError(f"{_show(node)} cannot be a name: letters, digits, '.', '_' and '-', 63 at most")
    return text


def _version(node: Any) -> int:
    value = _whole(node)
    if value != 1:
        raise ValueError(f"version {value} of the format; this kdeploy knows 1")
    return value


def _names(node: Any) -> list[str]:
    items = node if isinstance(node, list) else [node]
    return [_text(item) for item in items]


ArgValue = bool | str | list[str] | dict[str, Any] | None


def _arg(node: Any) -> ArgValue:
    """One value under `args`: see contract; the characters of a scalar are kept exactly."""
    if isinstance(node, dict):
        return {name: _plain(value) for name, value in node.items()}
    if isinstance(node, list):
        if any(not isinstance(item, Scalar) for item in node):
            raise ValueError("a list here holds plain values only")
        return [item.text for item in node]
    if node.plain and isinstance(node.value, bool):
        return bool(node.value)
    if not node.plain and node.text in ("true", "false"):
        raise ValueError(f"{node.text!r} is text; write {node.text} without quotes for the switch")
    return None if node.plain and node.value is None else str(node.text)


def _plain(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _plain(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_plain(item) for item in node]
    value = node.value
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"`{node.text}` cannot be written in JSON")
    return value


def _flag_name(key: str) -> str:
    if key.startswith("-"):
        raise ValueError("flags are written without dashes here")
    if not key or any(char in key for char in "= \t\n"):
        raise ValueError(f"{key!r} cannot be a flag's name; its value goes behind the colon")
    return key


def _variable(key: str) -> str:
    if not key or "=" in key:
        raise ValueError(f"{key!r} cannot be a variable's name")
    return key


def _variable_value(node: Any) -> str | None:
    if not isinstance(node, Scalar):
        raise ValueError(f"{_show(node)} where one value belongs")
    return None if node.plain and node.value is None else node.text


Text = Annotated[str, BeforeValidator(_text)]
Whole = Annotated[int, BeforeValidator(_whole)]
Number = Annotated[float, BeforeValidator(_number)]
Flag = Annotated[bool, BeforeValidator(_flag)]
MaybeText = Annotated[str | None, BeforeValidator(_or_null(_text))]
MaybeWhole = Annotated[int | None, BeforeValidator(_or_null(_whole))]
MaybeNumber = Annotated[float | None, BeforeValidator(_or_null(_number))]
Ranks = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=RANKS_LIMIT)]
Args = dict[Annotated[str, AfterValidator(_flag_name)], Annotated[Any, PlainValidator(_arg)]]
Env = dict[Annotated[str, AfterValidator(_variable)], Annotated[str | None, PlainValidator(_variable_value)]]
Names = Annotated[list[str], PlainValidator(_names), WithJsonSchema({"type": "array", "items": {"type": "string"}})]
Seconds = Annotated[float, BeforeValidator(_number), Field(ge=0)]
Version1 = Annotated[int, BeforeValidator(_version), Field(ge=1, le=1)]
ARG_SCHEMA = {"type": "object", "additionalProperties": True}
ENV_SCHEMA = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}}


class Section(BaseModel):
    """A map with fixed keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Model(Section):
    """Which model."""

    id: MaybeText = Field(None, description="Hub id, as in moonshotai/Kimi-K2.5.")
    path: MaybeText = Field(
        None,
        description="A local folder; wins over id. Relative: beside the profile, else in kdeploy's model folder.",
    )
    folders: Names = Field(
        [],
        description="Folders that hold checkpoints: where path is null or not here, id is loaded from the first "
        "one that has FOLDER/ORG/NAME or FOLDER/NAME. A matter of the host, so usually in host.yaml.",
    )
    revision: MaybeText = Field(
        None, description="Hub revision; compulsory where trust_remote_code is true and path is null."
    )
    served_name: Annotated[
        list[str] | None,
        BeforeValidator(_or_null(_names)),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
    ] = Field(None, description="Name (or names) under which clients ask for it.")
    trust_remote_code: Flag = Field(False, description="Let the checkpoint's own Python code run.")


class Engine(Section):
    """Which vLLM."""

    executable: Text = Field(
        "vllm", description="A program started as EXECUTABLE serve MODEL …, or the name of an installed engine."
    )
    version: MaybeText = Field(None, description="PEP 440 range checked against the engine that will really run.")


class Parallel(Section):
    """How the model is split. Expert parallel size is always tensor x data in vLLM, hence a switch."""

    tensor: Ranks = Field(1, description="Tensor parallel ranks.")
    pipeline: Ranks = Field(1, description="Pipeline stages.")
    data: Ranks = Field(1, description="Data parallel replicas.")
    expert: Flag = Field(False, description="Expert parallelism over all tensor x data ranks.")
    decode_context: Ranks = Field(1, description="Decode context parallel size; divides tensor.")


class Hardware(Section):
    """What it needs of the box."""

    gpus: Annotated[Annotated[int, Field(ge=0, le=RANKS_LIMIT)] | None, BeforeValidator(_or_null(_whole))] = Field(
        None, description="GPUs to lease; 0 for a CPU engine. Default: tensor x pipeline x data."
    )
    capability: Annotated[str | None, BeforeValidator(_or_null(_text))] = Field(
        None, description='CUDA capability that the profile was made for, such as "12.0"; others are refused.'
    )
    memory_gib: MaybeNumber = Field(None, description="Memory that each GPU must have, GiB; less is refused.")


class Serve(Section):
    """The server."""

    host: Text = Field("127.0.0.1", description="Address to bind.")
    port: Annotated[int, BeforeValidator(_whole), Field(ge=1, le=65535)] = Field(8000, description="Port to bind.")
    max_model_len: Annotated[Annotated[int, Field(ge=1)] | None, BeforeValidator(_or_null(_whole))] = Field(
        None, description="Longest context, tokens."
    )
    gpu_memory_utilization: Annotated[
        Annotated[float, Field(gt=0, le=1)] | None, BeforeValidator(_or_null(_number))
    ] = Field(None, description="Share of each GPU's memory that vLLM may use.")
    kv_cache_dtype: MaybeText = Field(None, description="Type of the KV cache, such as fp8.")
    reasoning_parser: MaybeText = Field(None, description="Splits reasoning from content.")
    tool_call_parser: MaybeText = Field(None, description="Reads tool calls; also enables automatic tool choice.")


class Load(Section):
    """The weight load."""

    prewarm: Annotated[Literal["auto", "on", "off"], BeforeValidator(_text)] = Field(
        "auto", description="Read weights into the page cache beside it."
    )
    strategy: Text = Field("auto", description="How vLLM reads: auto, lazy, prefetch, instanttensor, …")
    stall_s: Annotated[float, BeforeValidator(_number), Field(gt=0)] = Field(
        600, description="Seconds without any progress after which a load is stalled."
    )
    limit_s: Annotated[float, BeforeValidator(_number), Field(gt=0)] = Field(
        21600, description="Seconds after which a load is given up even if it moves."
    )


class Health(Section):
    """Watching it while it serves."""

    interval_s: Annotated[float, BeforeValidator(_number), Field(gt=0)] = Field(2, description="Between probes.")
    failures: Whole = Field(3, ge=1, description="Failed probes in a row that make it unhealthy.")
    stuck_s: Seconds = Field(
        300, description="Requests that run this long while no counter of the engine moves make it unhealthy; 0: never."
    )
    probe_s: Seconds = Field(
        600, description="After this long without a generated token one token is asked for; 0: never."
    )
    timeout_s: Annotated[float, BeforeValidator(_number), Field(gt=0)] = Field(5, description="Patience of one probe.")


class Canary(Section):
    """The last gate before ready: questions that must be answered, and with sense."""

    enabled: Flag = Field(True, description="Ask before the deployment counts as ready.")
    coherence: Flag = Field(True, description="Refuse answers without sense; false asks for any answer.")
    likelihood: Flag = Field(True, description="Compare the likelihood of a fixed text with the first pass.")
    expected_likelihood: Annotated[float | None, BeforeValidator(_or_null(_number)), Field(le=0)] = Field(
        None, description="Mean log-probability a token of that text; null: what the first pass gave."
    )
    timeout_s: Annotated[float, BeforeValidator(_number), Field(gt=0)] = Field(
        120, description="Patience for the first answer, and for all the others together."
    )


class Restart(Section):
    """What happens after a failure."""

    policy: Annotated[Literal["never", "on-failure", "always"], BeforeValidator(_text)] = Field(
        "never", description="When to start again by itself."
    )
    attempts: Whole = Field(3, ge=0, description="Starts after the first within window_s.")
    window_s: Seconds = Field(3600, description="Window of the attempts, seconds.")
    backoff_s: Seconds = Field(10, description="Pause before the first restart; doubles each time.")


class Stop(Section):
    """How it is stopped."""

    drain_s: Seconds = Field(30, description="Seconds that running requests get to finish.")
    term_s: Seconds = Field(60, description="Seconds from SIGTERM to SIGKILL.")
    kill_s: Seconds = Field(30, description="Seconds that the kernel gets to remove what was killed.")


class Target(Section):
    """What the owner wants of it."""

    metric: Annotated[Literal["raw", "visible"], BeforeValidator(_text)] = Field(
        "visible", description="Which tokens count."
    )
    tok_s: Annotated[Annotated[float, Field(gt=0)] | None, BeforeValidator(_or_null(_number))] = Field(
        None, description="Tokens a second, single stream."
    )


class Bench(Section):
    """Measuring."""

    target: Target = Field(default_factory=lambda: Target.model_validate({}), description="The wanted speed.")


def _default(section: type[Section]) -> Any:
    return Field(default_factory=lambda: section.model_validate({}), description=section.__doc__)


class Profile(Section):
    """A kdeploy profile: everything that decides one model's launch."""

    schema_: Version1 = Field(1, alias="schema", description="Version of this format.")
    name: Annotated[str | None, BeforeValidator(_or_null(_name))] = Field(
        None, description="The profile's name; default: the file's name."
    )
    summary: Annotated[str, BeforeValidator(_text)] = Field("", description="One line for `kdeploy profile list`.")
    extends: Names = Field(default_factory=list, description="Profiles merged below this one, left to right.")
    model: Model = _default(Model)
    engine: Engine = _default(Engine)
    parallel: Parallel = _default(Parallel)
    hardware: Hardware = _default(Hardware)
    serve: Serve = _default(Serve)
    args: Annotated[Args, WithJsonSchema(ARG_SCHEMA)] = Field(
        default_factory=dict, description="Any other vLLM flag, by its own name."
    )
    env: Annotated[Env, WithJsonSchema(ENV_SCHEMA)] = Field(
        default_factory=dict, description="Environment of the engine; null takes one out."
    )
    patches: Names = Field(default_factory=list, description="Names from `kdeploy patch list`.")
    load: Load = _default(Load)
    health: Health = _default(Health)
    canary: Canary = _default(Canary)
    restart: Restart = _default(Restart)
    stop: Stop = _default(Stop)
    bench: Bench = _default(Bench)

    @property
    def gpus(self) -> int:
        """GPUs to lease."""
        wanted = self.hardware.gpus
        return self.parallel.tensor * self.parallel.pipeline * self.parallel.data if wanted is None else wanted


def for_validation(node: Mapping) -> dict[str, Any]:
    """The tree as dicts and lists with `Scalar` leaves, as the models above take it. A section without a value
    (`args:` and nothing below) is a section not given."""
    return {
        key: _unwrapped(value)
        for key, value in node.entries.items()
        if not (isinstance(value, Scalar) and value.plain and value.value is None)
    }


def _unwrapped(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {key: _unwrapped(value) for key, value in node.entries.items()}
    if isinstance(node, Sequence):
        return [_unwrapped(item) for item in node.items]
    return node
