"""What is asked. Pure: the same seed asks the same.

Each prompt begins with a text of its own, so that no prefix cache can help; it is filled with plain words to the wanted
length, and ends in a task that a model answers at length.
"""

import json
import random
from typing import Any, NamedTuple

TASKS = (
    "Think carefully, then explain step by step why the sky is blue, in as much detail as you can.",
    "Write a long story about a lighthouse keeper who finds a map. Do not stop early.",
    "Write a Python program that simulates a bank with several queues, and explain every part of it at length.",
)
FILLING = (
    "time year people way day man thing woman life child world school state family student group country "
    "problem hand part place case week company system program question work night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service "
    "friend father power hour game line end member law car city name team minute idea body back parent face "
    "level office door health "
)
WORDS = FILLING.split()


class Length(NamedTuple):
    """How words become tokens on this server: tokens = fixed + each * words."""

    fixed: float = 30.0
    each: float = 1.1

    def words(self, tokens: int) -> int:
        """How many words of filling make a prompt of about `tokens`."""
        return max(0, round((tokens - self.fixed) / self.each))


def fit(few: tuple[int, int], many: tuple[int, int]) -> Length:
    """Length from two measured prompts, each (words, prompt tokens)."""
    if many[0] <= few[0] or many[1] <= few[1]:
        return Length()
    each = (many[1] - few[1]) / (many[0] - few[0])
    return Length(few[1] - each * few[0], each)


def prompt(task: int, seed: str, words: int) -> str:
    """A prompt of about `words` words of filling around task number `task`. `seed` makes it like no other."""
    generator = random.Random(seed)
    mark = " ".join(generator.choices(WORDS, k=6))
    filling = " ".join(generator.choices(WORDS, k=words))
    return f"{mark}.\n\n{filling}\n\n{TASKS[task % len(TASKS)]}"


def chat(model: str, text: str, *, output_tokens: int, stream: bool, extras: dict[str, Any]) -> bytes:
    """The body of one chat completion request."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": output_tokens,
        "temperature": 0,
        **({"stream": True} if stream else {}),
        **{key: value for key, value in extras.items() if stream or key != "stream_options"},
    }
    return json.dumps(body).encode()
