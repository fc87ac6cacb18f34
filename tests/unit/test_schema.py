"""What a profile may say, and how it is told what it may not."""

from typing import Any

import pytest

from deploy.profile.schema import Profile
from deploy.profile.validate import validate
from deploy.profile.yaml_reader import Problem, read_document

FILE = "x.yaml"


def profile(text: str) -> Profile:
    """The valid profile that the text is."""
    found, problems = validate(read_document(text.encode(), FILE))
    assert found is not None, problems
    return found


def problems(text: str) -> list[Problem]:
    """Everything that is said against the text."""
    found, told = validate(read_document(text.encode(), FILE))
    assert found is None
    return told


def only(text: str) -> tuple[str, str, str]:
    """Place, words and hint of the one problem."""
    (problem,) = problems(text)
    return str(problem.at), problem.text, problem.hint or ""


def test_an_empty_section_is_its_defaults() -> None:
    assert profile("serve:\nargs:\nmodel: {}\n") == profile("schema: 1\n")


def test_defaults_of_the_contract() -> None:
    found = profile("{}")
    assert (found.serve.host, found.serve.port) == ("127.0.0.1", 8000)
    assert (found.restart.policy, found.load.prewarm, found.load.strategy) == ("never", "auto", "auto")
    assert (found.canary.enabled, found.canary.coherence, found.bench.target.metric) == (True, True, "visible")
    assert found.gpus == 1


@pytest.mark.parametrize("word", ["no", "on", "3.10", "1e5", "22:22", "8_000", "017", "0x1F"])
def test_a_name_keeps_its_characters(word: str) -> None:
    found = profile(f"model: {{served_name: {word}, id: {word}}}\nengine: {{executable: {word}}}\n")
    assert found.model.served_name == [word]
    assert (found.model.id, found.engine.executable) == (word, word)


@pytest.mark.parametrize(
    ("word", "value"),
    [("1e5", 100_000), ("017", 17), ("0o17", 15), ("0x1F", 31), ("131072.0", 131_072), ("+8", 8)],
)
def test_a_whole_number_in_its_forms(word: str, value: int) -> None:
    assert profile(f"serve: {{max_model_len: {word}}}").serve.max_model_len == value


@pytest.mark.parametrize(
    "word", ["8_000", "32k", "22:22", "no", "true", "1.5", ".inf", ".nan", "[1]", "{a: 1}", "'8000'"]
)
def test_what_is_no_whole_number(word: str) -> None:
    at, words, _ = only(f"serve:\n  max_model_len: {word}\n")
    assert at == "x.yaml:2:18"
    assert "`serve.max_model_len`" in words
    assert "whole number" in words


def test_a_quoted_number_says_to_remove_the_quotes() -> None:
    assert "remove the quotes" in only('serve: {port: "8000"}')[1]
    assert "remove the quotes" in only('serve: {gpu_memory_utilization: "0.9"}')[1]


@pytest.mark.parametrize("word", ["true", "False", "TRUE"])
def test_a_boolean_where_text_belongs(word: str) -> None:
    assert "quote it" in only(f"model: {{served_name: {word}}}")[1]
    assert profile(f"model: {{served_name: '{word}'}}").model.served_name == [word]


@pytest.mark.parametrize("word", ["yes", "on", "1", "'true'", "~", "[true]"])
def test_only_true_and_false_are_switches(word: str) -> None:
    assert "true or false" in only(f"parallel: {{expert: {word}}}")[1]


@pytest.mark.parametrize("word", ["", "null", "~"])
def test_null_is_no_value_or_an_error(word: str) -> None:
    found = profile(f"model:\n  path: {word}\n  served_name: {word}\nserve:\n  max_model_len: {word}\n")
    assert (found.model.path, found.model.served_name, found.serve.max_model_len) == (None, None, None)
    assert "no value" in only(f"serve:\n  port: {word}\n")[1]
    assert "no value" in only(f"engine:\n  executable: {word}\n")[1]


@pytest.mark.parametrize(
    ("text", "value"),
    [("served_name: a", ["a"]), ("served_name: [a, 3.10]", ["a", "3.10"]), ("served_name: []", [])],
)
def test_one_name_or_a_list_of_names(text: str, value: list[str]) -> None:
    assert profile(f"model: {{{text}}}").model.served_name == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("serve: {port: 0}", "greater than or equal to 1"),
        ("serve: {port: 70000}", "less than or equal to 65535"),
        ("serve: {port: -1}", "greater"),
        ("serve: {max_model_len: 0}", "greater"),
        ("serve: {gpu_memory_utilization: 1.5}", "less than or equal to 1"),
        ("serve: {gpu_memory_utilization: 93}", "less than or equal to 1"),
        ("serve: {gpu_memory_utilization: 0}", "greater than 0"),
        ("parallel: {tensor: 0}", "greater"),
        ("parallel: {data: 1e300}", "less"),
        ("hardware: {gpus: -1}", "greater"),
        ("hardware: {gpus: 1000000000}", "less"),
        ("load: {stall_s: 0}", "greater than 0"),
        ("stop: {term_s: -1}", "greater"),
        ("health: {failures: 0}", "greater"),
        ("schema: 2", "this kdeploy knows 1"),
        ("schema: 1.5", "whole number"),
        ("serve: 8000", "map of keys"),
        ("serve: [port]", "map of keys"),
        ("args: --foo", "map of keys"),
        ("env: [A=1]", "map of keys"),
        ("load: {prewarm: true}", "boolean"),
        ("name: a/b", "cannot be a name"),
        ("name: -x", "cannot be a name"),
        ("name: a b", "cannot be a name"),
        (f"name: {'x' * 64}", "cannot be a name"),
        ("extends: {a: b}", "where text belongs"),
    ],
)
def test_values_out_of_bounds(text: str, words: str) -> None:
    assert words in only(text)[1]


def test_every_seconds_key_takes_fractions() -> None:
    found = profile("stop: {drain_s: 0.25, term_s: 0}\nhealth: {interval_s: .5}\nload: {stall_s: 1e-1}\n")
    assert (found.stop.drain_s, found.stop.term_s, found.health.interval_s, found.load.stall_s) == (0.25, 0, 0.5, 0.1)


@pytest.mark.parametrize(
    ("text", "at", "key", "hint"),
    [
        ("sumary: x", "1:1", "`sumary`", "`summary`"),
        ("serve:\n  prot: 1", "2:3", "`serve.prot`", "`port`"),
        ("serve:\n  max-model-len: 1", "2:3", "`serve.max-model-len`", "`max_model_len`"),
        ("port: 8000", "1:1", "`port`", "under `serve:`"),
        ("tensor: 8", "1:1", "`tensor`", "under `parallel:`"),
        ("model: {version: 3}", "1:9", "`model.version`", "under `engine:`"),
        ("stop: {timeout_s: 3}", "1:8", "`stop.timeout_s`", "`health:` or `canary:`"),
        ("max-num-seqs: 64", "1:1", "`max-num-seqs`", "`args:`"),
        ("NCCL_P2P_LEVEL: SYS", "1:1", "`NCCL_P2P_LEVEL`", "`env:`"),
        ("bench: {target: {tok: 1}}", "1:18", "`bench.target.tok`", "`tok_s`"),
    ],
)
def test_unknown_keys_name_the_nearest_spelling(text: str, at: str, key: str, hint: str) -> None:
    place, words, told = only(text)
    assert place == f"x.yaml:{at}"
    assert "unknown key" in words
    assert key in words
    assert hint in told


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("load: {prewarm: onn}", "`on`"),
        ("restart: {policy: onfailure}", "`on-failure`"),
        ("restart: {policy: alway}", "`always`"),
    ],
)
def test_one_of_few_words_names_the_nearest(text: str, hint: str) -> None:
    _, words, told = only(text)
    assert "'" in words
    assert hint in told


def test_all_problems_come_at_once_and_each_has_its_place() -> None:
    text = """\
serve: {port: "1", hots: x}
args:
  enforce-eager: "true"
  x: [[1]]
  --y: 1
env:
  A=B: c
  L: [1]
restart: {policy: sometimes}
"""
    lines = [(problem.at.line, problem.at.column) for problem in problems(text)]
    assert sorted(lines) == [(1, 15), (1, 20), (3, 18), (4, 6), (5, 3), (7, 3), (8, 6), (9, 19)]


@pytest.mark.parametrize("word", ["true", "false"])
def test_quoted_switches_are_refused_with_a_hint(word: str) -> None:
    assert "without quotes" in only(f"args: {{enforce-eager: '{word}'}}")[1]


def test_args_keep_their_characters() -> None:
    text = (
        "args: {a: 017, b: 1e5, c: '8000', d: true, e: False, f: [3.10, no], g: {k: 1e5, l: [no, 017]}, h: ~, i: 8_000}"
    )
    expected: dict[str, Any] = {
        "a": "017",
        "b": "1e5",
        "c": "8000",
        "d": True,
        "e": False,
        "f": ["3.10", "no"],
        "g": {"k": 100_000.0, "l": ["no", 17]},
        "h": None,
        "i": "8_000",
    }
    assert profile(text).args == expected


@pytest.mark.parametrize("value", [".inf", ".nan", "{b: .nan}", "[{b: 1}]", "1e999"])
def test_args_that_cannot_be_written(value: str) -> None:
    text = f"args: {{a: {value}}}"
    if value in (".inf", ".nan", "1e999"):  # the characters themselves are fine outside of JSON
        assert profile(text).args == {"a": value}
    else:
        assert "`args.a`" in only(text)[1]


def test_env_keeps_its_characters_and_null_takes_out() -> None:
    found = profile("env: {A: 8, B: 017, C: true, D: no, E: '', F: , G: null, h.i-j: x}")
    expected = {"A": "8", "B": "017", "C": "true", "D": "no", "E": "", "F": None, "G": None, "h.i-j": "x"}
    assert found.env == expected


def test_the_gpus_are_tensor_times_pipeline_times_data_unless_said() -> None:
    assert profile("parallel: {tensor: 4, pipeline: 2, data: 3}").gpus == 24
    assert profile("parallel: {tensor: 4}\nhardware: {gpus: 0}").gpus == 0


def test_the_json_schema_knows_every_section() -> None:
    schema = Profile.model_json_schema(by_alias=True)
    assert {"schema", "model", "args", "env", "stop"} <= set(schema["properties"])
    assert schema["additionalProperties"] is False
