"""What the characters of a profile mean, and what is no profile at all."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.profile.yaml_reader import (
    BYTES_LIMIT,
    Mapping,
    Problem,
    Scalar,
    Sequence,
    Unreadable,
    core_value,
    plain_data,
    read_document,
)

FILE = "/etc/kdeploy/x.yaml"


def read(text: str) -> Any:
    """The document as plain values."""
    return plain_data(read_document(text.encode(), FILE))


def problems(data: str | bytes) -> list[Problem]:
    """What is said against a document."""
    with pytest.raises(Unreadable) as refusal:
        read_document(data.encode() if isinstance(data, str) else data, FILE)
    return refusal.value.problems


def only(data: str | bytes) -> tuple[str, str, str]:
    """Place, text and hint of the one problem of a document."""
    (problem,) = problems(data)
    return str(problem.at), problem.text, problem.hint or ""


# YAML 1.2.2, 10.3.2, and what YAML 1.1 would have made of it (field reports F10 and P62)
@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((word, word) for word in ("no", "No", "NO", "yes", "on", "ON", "off", "y", "n")),
        *((word, True) for word in ("true", "True", "TRUE")),
        *((word, False) for word in ("false", "False", "FALSE")),
        *((word, None) for word in ("", "~", "null", "Null", "NULL")),
        ("tRUE", "tRUE"),
        ("nULL", "nULL"),
        ("22:22", "22:22"),
        ("190:20:30", "190:20:30"),
        ("8_000", "8_000"),
        ("1,000", "1,000"),
        ("32k", "32k"),
        ("017", 17),
        ("0o17", 15),
        ("0O17", "0O17"),
        ("-0o17", "-0o17"),
        ("0x1F", 31),
        ("0b11", "0b11"),
        ("+12", 12),
        ("-19", -19),
        ("1e5", 100000.0),
        ("2e-5", 2e-5),
        ("9e-1", 0.9),
        (".5", 0.5),
        ("1.", 1.0),
        ("1.e2", 100.0),
        ("3.10", 3.1),
        ("1.2.3", "1.2.3"),
        ("1_0.5", "1_0.5"),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("+.inf", math.inf),
        ("inf", "inf"),
        ("nan", "nan"),
        ("2026-12-01", "2026-12-01"),
        ("=", "="),
        (".", "."),
        ("-", "-"),
        ("1e", "1e"),
        ("٣", "٣"),  # a digit elsewhere, not in YAML
    ],
)
def test_plain_scalars_follow_the_core_rules(text: str, value: Any) -> None:
    assert core_value(text) == value
    assert type(core_value(text)) is type(value)


def test_not_a_number() -> None:
    assert math.isnan(core_value(".NaN"))


def test_a_number_of_absurd_length_is_no_crash() -> None:
    assert core_value("9" * 10_000) == math.inf


@pytest.mark.parametrize(
    "quoted", ['"8000"', "'8000'", "|-\n  8000", ">-\n  8000", "!!str 8000", "&a !!str 8000", "! 8000"]
)
def test_what_is_not_plain_is_text(quoted: str) -> None:
    assert read(f"a: {quoted}\n") == {"a": "8000"}


@pytest.mark.parametrize("word", ["3.10", "017", "no", "1e5", "8_000", "0x1F", "22:22", "~", "TRUE", "-0.0"])
def test_the_characters_are_kept_whatever_they_mean(word: str) -> None:
    tree = read_document(f"a: {word}\n".encode(), FILE)
    scalar = tree.entries["a"]
    assert isinstance(scalar, Scalar)
    assert (scalar.text, scalar.plain) == (word, True)


@given(
    st.text(
        st.characters(
            codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"], exclude_characters="\ufeff\ufffe\uffff"
        )
    )
)
def test_any_quoted_text_comes_back(text: str) -> None:
    single = text.replace("'", "''")
    assert read(f"a: '{single}'\n") == {"a": text}


@given(st.integers(), st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_mean_themselves(whole: int, number: float) -> None:
    assert core_value(str(whole)) == whole
    assert core_value(repr(number)) == number


def test_places_are_lines_and_columns_from_one() -> None:
    tree = read_document(b"# comment\nserve:\n  port: 8000\n  names: [a,\n    b]\n", FILE)
    serve = tree.entries["serve"]
    assert isinstance(serve, Mapping)
    assert str(tree.keys["serve"]) == f"{FILE}:2:1"
    assert str(serve.keys["port"]) == f"{FILE}:3:3"
    assert str(serve.entries["port"].at) == f"{FILE}:3:9"
    names = serve.entries["names"]
    assert isinstance(names, Sequence)
    assert [str(item.at) for item in names.items] == [f"{FILE}:4:11", f"{FILE}:5:5"]


def test_a_byte_order_mark_and_windows_line_ends_are_nothing() -> None:
    assert read_document(b"\xef\xbb\xbfa: 1\r\nb: x\r\n", FILE).entries.keys() == {"a", "b"}
    assert read("\ufeffa: 1\r\nb: x\r\n") == {"a": 1, "b": "x"}


def test_anchors_and_aliases_work() -> None:
    assert read("a: &x {k: 1}\nb: *x\n") == {"a": {"k": 1}, "b": {"k": 1}}


def test_a_duplicate_key_names_both_lines() -> None:
    at, text, _ = only("env:\n  A: 1\nargs: {}\nenv:\n  B: 2\n")
    assert at == f"{FILE}:4:1"
    assert "duplicate key `env`" in text
    assert "line 1" in text


def test_a_duplicate_in_a_deeper_map_and_under_quotes() -> None:
    at, text, _ = only("env:\n  A: 1\n  'A': 2\n")
    assert (at, "`A`" in text) == (f"{FILE}:3:3", True)


def test_every_problem_of_a_file_is_told_at_once() -> None:
    found = problems("a: 1\na: 2\nb: !!int '3'\nc: {x: 1, x: 2}\n? [k]\n: v\n")
    assert [problem.at.line for problem in found] == [2, 3, 4, 5]


def test_what_can_be_read_all_the_same_comes_with_the_problems() -> None:
    with pytest.raises(Unreadable) as refusal:
        read_document(b"a: 1\na: 2\nb: 3\n", FILE)
    assert isinstance(refusal.value.rest, Mapping)
    assert plain_data(refusal.value.rest) == {"a": 1, "b": 3}


def test_merge_keys_are_yaml_1_1() -> None:
    found = problems("serve:\n  <<: {port: 1}\n  <<: {host: a}\n")
    assert [str(problem.at) for problem in found] == [f"{FILE}:2:3", f"{FILE}:3:3"]
    assert "merge" in found[0].text
    assert "extends" in (found[0].hint or "")


@pytest.mark.parametrize(
    ("text", "at", "tag"),
    [("a: !!int '5'\n", "1:4", "!!int"), ("a: !mine x\n", "1:4", "!mine"), ("a:\n  !!omap []\n", "2:3", "!!omap")],
)
def test_tags_are_refused(text: str, at: str, tag: str) -> None:
    place, words, hint = only(text)
    assert place == f"{FILE}:{at}"
    assert tag in words
    assert "remove" in hint


def test_a_python_tag_makes_nothing_happen() -> None:
    assert "tag" in only("a: !!python/object/apply:os.system ['true']\n")[1]


def test_an_alias_bomb_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert "20000 values" in only("\n".join(lines))[1]


def test_an_alias_inside_itself_is_refused() -> None:
    assert only("a: &a [*a]\n")[:2] == (f"{FILE}:1:4", "an alias that contains itself")
    assert only("a: &a {b: *a}\n")[1] == "an alias that contains itself"


@pytest.mark.parametrize("depth", [60, 400, 5000, 100_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    assert "deeply" in only("a: " + "[" * depth + "]" * depth)[1]
    assert only("a: " + "{b: " * depth + "}" * depth)[0].startswith(f"{FILE}:1:")


def test_ten_megabytes_are_refused_unread() -> None:
    at, text, _ = only(b"a: 1\n" * 2_000_000)
    assert at == f"{FILE}:1:1"
    assert f"{BYTES_LIMIT >> 10} KiB" in text


def test_too_many_values_are_refused() -> None:
    assert "values" in only("a: [" + "1," * 30_000 + "1]")[1]


@pytest.mark.parametrize(
    ("data", "line", "word"),
    [
        (b"a: 1\nb: \xff\xfe\n", 2, "UTF-8"),
        ("a: 1\n".encode("utf-16"), 1, "UTF-8"),
        (b"a: 1\nb: \x00\n", 2, "not YAML"),
        (b"\x7fELF\x02\x01\x01\x00", 1, "not YAML"),
        (bytes(range(256)), 1, "UTF-8"),
    ],
)
def test_binary_is_refused_with_its_line(data: bytes, line: int, word: str) -> None:
    at, text, _ = only(data)
    assert at.startswith(f"{FILE}:{line if word != 'UTF-8' or line > 1 else at.split(':')[1]}:")
    assert word in text


@pytest.mark.parametrize("escape", [r'"a\0b"', r'"\ud800"', r'"\uDFFF"'])
def test_characters_that_no_argument_can_hold_are_refused(escape: str) -> None:
    at, text, _ = only(f"args:\n  x: {escape}\n")
    assert at == f"{FILE}:2:6"
    assert "character" in text


def test_json_is_yaml_with_its_escapes_too() -> None:
    assert read(r'{"\ud83e\udd99": "\ud83e\udd99 \u6a21 \/ \t"}') == {"🦙": "🦙 模 / \t"}


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n", "\ufeff"])
def test_an_empty_file_is_told_as_such(text: str) -> None:
    at, words, hint = only(text)
    assert (at, words) == (f"{FILE}:1:1", "the file is empty")
    assert "kdeploy profile show" in hint


@pytest.mark.parametrize(
    ("text", "kind"), [("- a\n- b\n", "a list"), ("just words\n", "a single value"), ("[1]", "a list")]
)
def test_something_else_at_the_top(text: str, kind: str) -> None:
    assert only(text)[1].startswith(kind)


def test_a_second_document_is_refused_where_it_begins() -> None:
    at, text, _ = only("a: 1\n---\nb: 2\n")
    assert at == f"{FILE}:2:1"
    assert "second document" in text


def test_one_document_with_its_marks_is_fine() -> None:
    assert read("%YAML 1.2\n---\na: no\n...\n") == {"a": "no"}


def test_a_tab_as_indent() -> None:
    at, _, hint = only("serve:\n\tport: 1\n")
    assert at == f"{FILE}:2:1"
    assert "spaces here, not tabs" in hint


def test_tabs_in_texts_and_comments_are_fine() -> None:
    assert read("a: 'x\ty'  #\tz\n") == {"a": "x\ty"}


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("a: [1, 2\nb: 3\n", "2:2"),
        ("a: b: c\n", "1:5"),
        ("a: *nowhere\n", "1:4"),
        ("a: @x\n", "1:4"),
        ("a: %x\n", "1:4"),
        ("a: {% if x %}\n", "1:5"),
        ("  a: 1\n b: 2\n", "2:2"),
    ],
)
def test_broken_yaml_is_told_with_its_place(text: str, at: str) -> None:
    place, words, _ = only(text)
    assert place == f"{FILE}:{at}"
    assert words.startswith("not YAML: ")


def test_an_open_quote_names_the_line_where_it_began() -> None:
    assert "line 2" in only('a: 1\nb: "x\nc: d\n')[1]


@given(st.binary(max_size=300))
def test_no_bytes_make_it_crash(data: bytes) -> None:
    found: list[Problem] = []
    try:
        plain_data(read_document(data, FILE))
    except Unreadable as refusal:
        found = refusal.problems
    assert all(problem.at.line >= 1 and problem.at.column >= 1 and problem.text for problem in found)


@given(st.text(st.sampled_from("ab:-[]{},#&*!|>'\"%@`\\?~ \n\t01.e_<"), max_size=60))
def test_no_text_makes_it_crash(text: str) -> None:
    test_no_bytes_make_it_crash.hypothesis.inner_test(text.encode())  # type: ignore[attr-defined]
