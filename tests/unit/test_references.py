"""Secrets as references."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.plan.references import Unresolved, malformed, references, resolve

VARIABLES = {"TOKEN": "s3cret", "EMPTY": "", "TRICKY": "${env:TOKEN}\n$HOME"}
FILES = {"/run/secret": "of the file\n", "/two": "a\n\n", "~/own": "mine"}


def resolved(text: str) -> str:
    """`text` with the secrets above."""
    return resolve(text, env=VARIABLES.get, file=FILES.get)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        ("${env:TOKEN}", "s3cret"),
        ("Bearer ${env:TOKEN}!", "Bearer s3cret!"),
        ("${env:TOKEN}${env:TOKEN}", "s3crets3cret"),
        ("${env:EMPTY}", ""),
        ("${env:TRICKY}", "${env:TOKEN}\n$HOME"),  # what comes out is not read again
        ("${file:/run/secret}", "of the file"),
        ("${file:/two}", "a\n"),
        ("${file:~/own}", "mine"),
        ("$HOME ${HOME} $${x} ${ENV:TOKEN}", "$HOME ${HOME} $${x} ${ENV:TOKEN}"),
    ],
)
def test_values(text: str, value: str) -> None:
    assert resolved(text) == value


@pytest.mark.parametrize(
    ("text", "word"), [("${env:NOPE}", "NOPE is not set"), ("${file:/nope}", "/nope cannot be read")]
)
def test_a_missing_one_is_named_and_no_other_is_shown(text: str, word: str) -> None:
    with pytest.raises(Unresolved, match=word) as caught:
        resolved(f"${{env:TOKEN}} {text}")
    assert "s3cret" not in str(caught.value)


def test_which_there_are() -> None:
    assert references("a ${env:X}${file:/p q/$y} ${env:Y_2}") == [("env", "X"), ("file", "/p q/$y"), ("env", "Y_2")]
    assert references("$X ${X} {env:X}") == []


@pytest.mark.parametrize(
    "text",
    [
        "${env:}",
        "${env:A B}",
        "${env:1A}",
        "${env:X:-$(id)}",
        "${file:}",
        "${file:relative}",
        "${file:~me/x}",
        "${env:X",
    ],
)
def test_what_was_meant_as_one_and_is_none(text: str) -> None:
    assert malformed(f"a {text}") == [text]
    assert references(text) == []


def test_the_well_formed_and_the_unrelated_are_left_alone() -> None:
    assert malformed("${env:X} ${file:/p} ${HOME} $env:X {file:x} ${Env:X}") == []


@given(st.text())
def test_a_text_without_references_is_itself(text: str) -> None:
    if not references(text):
        assert resolved(text) == text
