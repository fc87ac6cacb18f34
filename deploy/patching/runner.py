"""What vLLM calls, as its plugin `kdeploy_patches`, in each of its processes. Copied into a launch's patch folder.

Runs in the engine's interpreter, without kdeploy. Runs each patch once in a process and says what came of it in one
line on standard error:

    [kdeploy-patch] NAME applied|needless|refused (pid N, PROCESS): why

A patch's function takes nothing. What it returns is why: text (or nothing) for applied, the pair ("needless", text)
where this process has nothing to patch. Any exception refuses. vLLM itself would only log one and go on.
"""

import importlib
import json
import multiprocessing
import os
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
MANIFEST = os.path.join(HERE, "kdeploy_patches.json")
WHY_LIMIT = 500

_said: "dict[str, tuple[str, str]]" = {}
_started = False


def run() -> None:
    """Run every patch of the folder, once; what was already done is not done again."""
    global _started
    if _started:
        return
    _started = True
    # a forked process has the patches of the one that it was forked from, and vLLM calls no plugin there again
    os.register_at_fork(after_in_child=_say_again)
    with open(MANIFEST, encoding="utf-8") as file:
        manifest = json.load(file)
    for patch in manifest["patches"]:
        _said[patch["name"]] = _outcome(patch)
        mark(patch["name"], *_said[patch["name"]])


def mark(name: str, outcome: str, why: str) -> None:
    """The marker line, written at once and whole."""
    text = " ".join("".join(char if char.isprintable() else " " for char in why).split())[:WHY_LIMIT]
    process = multiprocessing.current_process().name.replace(")", " ")
    line = f"[kdeploy-patch] {name} {outcome} (pid {os.getpid()}, {process}): {text}\n"
    os.write(2, line.encode("utf-8", "replace"))


def _outcome(patch: "dict[str, object]") -> "tuple[str, str]":
    try:
        why = []
        if patch.get("modules"):
            import kdeploy_patch_hook  # type: ignore[import-not-found, unused-ignore]

            why.append(kdeploy_patch_hook.check(patch["modules"]))
        if patch.get("function"):
            function = getattr(importlib.import_module(str(patch["module"])), str(patch["function"]))
            answer = function()
            if isinstance(answer, tuple):
                outcome, text = answer
                if outcome != "needless":
                    raise ValueError(f"it returned {answer!r}; text, or the pair ('needless', text)")
                return "needless", str(text)
            why.append(str(answer or patch["summary"]))
        return "applied", "; ".join(why)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        traceback.print_exc()
        return "refused", f"{type(error).__name__}: {error}"


def _say_again() -> None:
    for name, (outcome, why) in _said.items():
        mark(name, outcome, why)
