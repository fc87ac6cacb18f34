"""Hands the folder of this module to vLLM as VLLM_TUNED_CONFIG_FOLDER, where that gives it what it lacks.

vLLM takes a file of that folder before its own of the same name. So the folder is handed over only while the engine has
none of its names. A folder that the user named stays.
"""

import importlib.util
import os
from pathlib import Path

HERE = Path(__file__).resolve().parent
VARIABLE = "VLLM_TUNED_CONFIG_FOLDER"


def theirs() -> "set[str]":
    """Names of the files that the engine brings."""
    spec = importlib.util.find_spec("vllm")
    roots = list(spec.submodule_search_locations or []) if spec is not None else []
    return {
        path.name for root in roots for path in Path(root, "model_executor/layers/fused_moe/configs").glob("*.json")
    }


def apply() -> "str | tuple[str, str]":
    ours = {path.name for path in HERE.glob("*.json")}
    if not ours:
        return "needless", "no file was made yet: scripts/tune-moe-configs makes them on a GPU"
    named = os.environ.get(VARIABLE)
    if named and Path(named).resolve() != HERE:
        return "needless", f"{VARIABLE} is {named} already"
    both = sorted(ours & theirs())
    if both:
        raise RuntimeError(f"vLLM brings {both[0]} itself now, and ours would come before it: remove ours")
    os.environ[VARIABLE] = str(HERE)
    return f"{len(ours)} configurations handed over"
