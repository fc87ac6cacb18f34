"""What the canary asked and heard, as lines. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

SHOWN = 60


def lines(document: Mapping[str, Any]) -> Iterator[str]:
    """The whole account, a line each question; texts are shortened (--json has them longer)."""
    for one in document["asked"]:
        thinking = {True: "thinking on", False: "thinking off", None: "-"}[one["thinking"]]
        mark = "GARBAGE" if one["problem"] else {True: "right", False: "wrong", None: "answers"}[one["right"]]
        text = one["content"] or one["reasoning"]
        shown = repr(text[:SHOWN]) + ("…" if len(text) > SHOWN else "")
        yield f"{one['question']:<8} {thinking:<12} {mark:<8} {one['seconds']:6.2f} s  {shown}"
    found = document["likelihood"]
    if found is not None:
        expected = "nothing to compare with yet" if found["expected"] is None else f"expected {found['expected']:.2f}"
        yield f"likelihood {found['mean']:.2f} a token over {found['tokens']} tokens, {expected}"
    for note in document["notes"]:
        yield f"note: {note}"
    if document["problem"] is None:
        yield f"{document['name']}: {'answers with sense' if document['coherence'] else 'answers'}"
        return
    yield f"{document['name']}: {document['problem']}"
    for fix in document["diagnosis"]["fix"]:
        yield f"  -> {fix}"
