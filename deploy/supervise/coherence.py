"""Whether a text is something that a sane model may have written. Pure.

A model that is computed wrongly writes `!!!!`, one word for ever, several alphabets in one line, symbols, or words
without any grammar; all of that with a healthy server. A sane model writes in its own style and language, and may be
wrong. So what no sane model writes is garbage by itself, and what a strange one might write is garbage only in an
answer that misses a question which has a plain answer.
"""

import re
import unicodedata
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

LOOP = re.compile(r"(.{1,12}?)\1{7,}", re.DOTALL)
LONG_LOOP_TIMES = 4  # of a longer phrase, at the end of the text
LONG_LOOP_LETTERS = 400  # the longest phrase that is looked for
FEW_SCRIPTS = 4
SWITCHES = 3  # from one alphabet to another inside a word
ENOUGH_LETTERS = 24
ENOUGH_WORDS = 16
SYMBOL_SHARE = 0.3  # of letters and digits; below it a text is symbols only
SHOWN = 80

# The commonest words of six languages: twenty words of running text hold several of them.
GRAMMAR = frozenset(
    [
        "the",
        "a",
        "an",
        "of",
        "to",
        "in",
        "is",
        "are",
        "was",
        "and",
        "or",
        "that",
        "it",
        "this",
        "for",
        "on",
        "as",
        "with",
        "be",
        "by",
        "at",
        "from",
        "not",
        "you",
        "i",
        "we",
        "they",
        "he",
        "she",
        "so",
        "if",
        "but",
        "what",
        "how",
        "which",
        "has",
        "have",
        "had",
        "can",
        "will",
        "would",
        "let",
        "first",
        "der",
        "die",
        "das",
        "ein",
        "eine",
        "und",
        "ist",
        "im",
        "von",
        "zu",
        "den",
        "mit",
        "auf",
        "sich",
        "nicht",
        "es",
        "le",
        "la",
        "les",
        "un",
        "une",
        "et",
        "est",
        "dans",
        "des",
        "du",
        "pour",
        "que",
        "qui",
        "ne",
        "pas",
        "el",
        "los",
        "las",
        "una",
        "y",
        "en",
        "por",
        "con",
        "para",
        "no",
        "il",
        "lo",
        "gli",
        "e",
        "di",
        "che",
        "per",
        "non",
        "o",
        "os",
        "uma",
        "em",
        "do",
        "da",
        "se",
    ]
)
# Those of writing systems that a text in one language mixes anyway.
JOINED = {"CJK", "GREEK"}
GROUPS = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "HANGUL": "CJK", "BOPOMOFO": "CJK"}


class Answer(NamedTuple):
    """What came back for one question, taken apart. `cut`: it ended at the limit of tokens."""

    content: str
    reasoning: str = ""
    cut: bool = False

    @property
    def text(self) -> str:
        """All of it."""
        return f"{self.reasoning}{self.content}"


def hits(answer: Answer, accepted: Sequence[str]) -> bool | None:
    """Whether an answer holds what is right, in any of its spellings; None when it was cut before it came to that."""
    seen = _plain(answer.content)
    if any(_holds(seen, _plain(right)) for right in accepted):
        return True
    if answer.cut and any(_holds(_plain(answer.reasoning), _plain(right)) for right in accepted):
        return True
    return None if answer.cut else False


def garbage(answer: Answer, prompt: str, *, missed: bool, base: bool = False) -> str | None:
    """Why an answer is garbage, in words; None when it is not.

    Args:
        prompt: what was asked.
        missed: the right answer is not in it (also when it was cut before that).
        base: a plain continuation; a sane base model may repeat itself as soon as it has nothing more to say.
    """
    for text in (answer.reasoning, answer.content):
        found = _unreadable(text) or (None if base and not missed else _looping(text, base=base)) or _scripts(text)
        if found is None and missed:
            found = _symbols(text) or _salad(text, prompt, cut=answer.cut)
        if found is not None:
            return f"{found}: {shown(text)}"
    return None


def shown(text: str) -> str:
    """The beginning of a text, in one line."""
    return repr(text[:SHOWN]) + ("…" if len(text) > SHOWN else "")


def split_thinking(content: str) -> tuple[str, str]:
    """(reasoning, answer) of a text whose server does not part them. Templates may have written the opening tag."""
    head, close, rest = content.partition("</think>")
    if close:
        return head.replace("<think>", "").strip(), rest.strip()
    before, opened, after = content.partition("<think>")
    return (after, before) if opened else ("", content)


def _plain(text: str) -> str:
    """Lower case, digits as 0-9, without the thousands' marks and emphasis that models add."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    digits = "".join(str(unicodedata.digit(char)) if char.isdigit() else char for char in folded)
    return " ".join(digits.replace("*", "").split())


def _holds(text: str, right: str) -> bool:
    if not right[:1].isalnum() or not right.isascii():
        return right in text
    return re.search(rf"(?<![0-9a-z]){re.escape(right)}(?![0-9a-z])", text) is not None


def _unreadable(text: str) -> str | None:
    """Bytes that are no text. The last character may be cut by the limit of tokens."""
    body = text.rstrip("\ufffd")
    wrong = [c for c in body if unicodedata.category(c) in ("Cc", "Cs", "Co", "Cn") and c not in "\n\r\t"]
    # a half of a surrogate pair at the very end is a cut emoji; a single stray character happens to sane models too
    return "bytes that are no text" if "\ufffd" in body or len(wrong) > 2 else None


def _looping(text: str, *, base: bool) -> str | None:
    loop = LOOP.search(text)
    if loop and len(loop[0]) > len(text) / 2:
        if not base or loop.start() <= 8:
            return f"the same {len(loop[0]) // len(loop[1])} times over"
        return None
    if base:
        return None
    body = text.rstrip()
    for period in range(13, min(LONG_LOOP_LETTERS, len(body) // LONG_LOOP_TIMES) + 1):
        unit = body[-period:]
        if body.endswith(unit * LONG_LOOP_TIMES):
            return "one phrase over and over"
    words = text.split()
    if len(words) >= 2 * ENOUGH_WORDS and len(set(words)) * 8 < len(words):
        return "the same few words over and over"
    return None


def _script(char: str) -> str | None:
    if not char.isalpha():
        return None
    if char.isascii():
        return "LATIN"
    name = unicodedata.name(char, "MODIFIER").split(" ", 1)[0]
    return None if name == "MODIFIER" else GROUPS.get(name, name)


def _scripts(text: str) -> str | None:
    """Several alphabets at once. One language beside English terms and Greek letters of mathematics is no noise."""
    scripts = [_script(char) for char in unicodedata.normalize("NFKC", text)]
    present = {script for script in scripts if script}
    # Chinese has no spaces before a foreign word, and Δx is no noise
    switches = sum(1 for one, two in pairwise(scripts) if one and two and one != two and not {one, two} & JOINED)
    if len(present) >= FEW_SCRIPTS or (len(present) >= 2 and switches >= SWITCHES):
        return f"{len(present)} alphabets in one answer"
    return None


def _symbols(text: str) -> str | None:
    dense = "".join(text.split())
    if len(dense) < ENOUGH_LETTERS or sum(char.isalnum() for char in dense) >= SYMBOL_SHARE * len(dense):
        return None
    return "hardly a letter or digit"


def _salad(text: str, prompt: str, *, cut: bool) -> str | None:
    """Words that make no sentence: cut at the limit, no word of grammar among many, and none of the question's."""
    words = re.findall(r"[^\W_]+", text.casefold())
    if not cut or len(words) < ENOUGH_WORDS or sum(word.isascii() for word in words) < 0.8 * len(words):
        return None
    asked = set(re.findall(r"[^\W_]+", prompt.casefold()))
    known = sum(word in GRAMMAR or word in asked for word in words)
    return "words without any sense" if known * ENOUGH_WORDS < len(words) else None
