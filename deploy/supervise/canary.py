"""The last gate before ready: requests that must be answered, and not with rubbish. Pure.

vLLM can answer /health with 200 and die at the first request, or at the first longer one (both measured), so one short
and one longer prompt are asked. What counts as rubbish here is degenerate text only: one character or one short
phrase over and over, or bytes that are no text. Answers are not compared with the right ones.
"""

import json
import re
from typing import Any, NamedTuple

SHORT = "What is 2 + 2? Answer with one number."
SENTENCE = "The quick brown fox jumps over the lazy dog while the band plays on. "
LONG_CHARACTERS = 1500
ANSWER_TOKENS = 16

LOOP = re.compile(r"(.{1,12}?)\1{7,}", re.DOTALL)


class Ask(NamedTuple):
    """One request of the canary: path and JSON body."""

    path: str
    body: bytes


def prompts(max_model_len: int | None) -> list[str]:
    """The prompts to ask: a short one, and one that is long for the context but fits it even at a token a character."""
    room = (max_model_len or 1 << 20) // 2 - ANSWER_TOKENS
    long = (SENTENCE * (LONG_CHARACTERS // len(SENTENCE) + 1))[: max(0, min(LONG_CHARACTERS, room))]
    return [SHORT, long] if len(long) > 2 * len(SHORT) else [SHORT]


def chat(model: str, prompt: str) -> Ask:
    """The prompt as a chat request."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
    }
    return Ask("/v1/chat/completions", json.dumps(body).encode())


def completion(model: str, prompt: str) -> Ask:
    """The prompt as a plain completion, for models without a chat template."""
    body = {"model": model, "prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": 0}
    return Ask("/v1/completions", json.dumps(body).encode())


def has_no_chat(status: int, body: bytes) -> bool:
    """Whether the server says that it cannot chat at all, as opposed to failing."""
    return status == 404 or (status == 400 and b"chat template" in body.lower())


def text_of(body: bytes) -> str | None:
    """Everything that the model wrote, reasoning included; None when the answer has no form that we know."""
    try:
        choice = json.loads(body)["choices"][0]
        if "text" in choice:
            return str(choice["text"] or "")
        message: dict[str, Any] = choice["message"]
        parts = [message.get(key) for key in ("reasoning", "reasoning_content", "reasoning_text", "content")]
        return "".join(str(part) for part in parts if part)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None


def judge(status: int, body: bytes, *, coherence: bool) -> str | None:
    """What is wrong with an answer, in words; None when nothing is."""
    if status != 200:
        return f"HTTP {status}: {body[:300].decode(errors='replace').strip()}"
    text = text_of(body)
    if text is None:
        return f"not a completion: {body[:300].decode(errors='replace').strip()}"
    if not coherence:
        return None
    if not text.strip():
        return "an empty answer"
    if "\ufffd" in text.rstrip("\ufffd"):  # the last character may be cut by the limit of tokens
        return f"bytes that are no text: {text[:80]!r}"
    loop = LOOP.search(text)
    if loop and len(loop[0]) > len(text) / 2:
        return f"the same over and over: {text[:80]!r}"
    return None
