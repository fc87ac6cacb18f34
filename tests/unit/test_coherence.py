"""Which texts a sane model may write, and which none does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.supervise.coherence import Answer, garbage, hits, split_thinking

PROMPT = "What is the capital of France? Answer with one word."

SANE = [
    "4",
    " Paris.\n",
    "**Paris**",
    "2 + 2 = 4. Therefore, the number is 4.",
    "No, no, no, no.",
    "ha ha ha, that is 4, of course",
    "四",
    "法国的首都是巴黎（Paris），它位于塞纳河畔。",
    "Столица Франции — Париж (Paris).",
    "パリ(Paris)はフランスの首都です。",
    "With Δx and λ the sum is α + β.",
    "Vier 🙂",
    "The dog is lazy \ufffd",  # cut by the limit of tokens in the middle of a character
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10",
    "```python\nprint(17 + 25)\n```",
    "- Paris\n- Paris, again\n",
    "The user asks for the capital of France. That is Paris. I should answer with one word only.",
]

NEVER_SANE = [
    ("!!!!!!!!!!!!!!!!", "times over"),
    ("The !!!!!!!!!!!!!!!!", "times over"),
    ("foo bar foo bar foo bar foo bar foo bar foo bar foo bar foo bar ", "times over"),
    ("the answer is a matter of taste and " * 5, "over and over"),
    ("\n\n\n\n\n\n\n\n\n\nx", "times over"),
    ("a\ufffdb\ufffdc", "no text"),
    ("\x00\x01\x02\x03 hm", "no text"),
    ("the ответ 答案 שלום answer", "alphabets"),
    ("resпонсе anсwer пaris", "alphabets"),
]


@pytest.mark.parametrize("text", SANE)
@pytest.mark.parametrize("missed", [True, False])
def test_a_sane_text_passes_right_or_wrong(text: str, missed: bool) -> None:
    assert garbage(Answer(text), PROMPT, missed=missed) is None


@pytest.mark.parametrize(("text", "why"), NEVER_SANE)
def test_garbage_is_garbage_even_with_the_right_answer_in_it(text: str, why: str) -> None:
    assert why in (garbage(Answer(text), PROMPT, missed=False) or "")
    assert why in (garbage(Answer("Paris", reasoning=text), PROMPT, missed=False) or "")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("#$%&/()=?*+~';:_-.,<>|^[]{}\\#$&%(=/)?+*", "hardly a letter"),
        (
            "oak lamp quartz divisor helmet plow twelve ostrich binder gravel mohair stencil radar tulip anvil mill",
            "words without any sense",
        ),
    ],
)
def test_symbols_and_loose_words_are_garbage_only_in_an_answer_that_misses(text: str, why: str) -> None:
    answer = Answer(text, cut=True)
    assert why in (garbage(answer, PROMPT, missed=True) or "")
    assert garbage(answer, PROMPT, missed=False) is None


def test_a_base_model_may_repeat_itself_after_the_right_answer() -> None:
    text = " Paris\n\nQ: What is the capital of Italy?\nA: Rome" * 4
    assert garbage(Answer(text), PROMPT, missed=False, base=True) is None
    assert garbage(Answer("!" * 40), PROMPT, missed=True, base=True) is not None


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        (Answer("42"), True),
        (Answer("**42**."), True),
        (Answer("It is ４２"), True),
        (Answer("Forty-two"), True),
        (Answer("142"), False),
        (Answer("420"), False),
        (Answer("41"), False),
        (Answer(""), False),
        (Answer("Let me see", cut=True), None),
        (Answer("", "17 + 25 is 42, so", cut=True), True),
        (Answer("41", "42 is what I thought"), False),
    ],
)
def test_what_counts_as_the_right_answer(answer: Answer, right: bool | None) -> None:
    assert hits(answer, ("42", "forty-two")) is right


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("<think>so</think>\n4", ("so", "4")),
        ("so</think>4", ("so", "4")),
        ("<think>still at it", ("still at it", "")),
        ("4", ("", "4")),
    ],
)
def test_thinking_is_parted_where_the_server_does_not(content: str, parts: tuple[str, str]) -> None:
    assert split_thinking(content) == parts


@given(st.text(max_size=300), st.text(max_size=100), st.booleans(), st.booleans(), st.booleans())
def test_no_text_breaks_the_judge(content: str, reasoning: str, cut: bool, missed: bool, base: bool) -> None:
    answer = Answer(content, reasoning, cut)
    garbage(answer, PROMPT, missed=missed, base=base)
    hits(answer, ("42",))
    split_thinking(content)
