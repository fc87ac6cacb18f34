"""Proves in each process that the metadata which came with this patch is what vLLM finds."""

from importlib.metadata import version


def apply() -> str:
    found = version("vllm")
    if "cpu" not in found:
        raise RuntimeError(f"vllm says that it is {found}, which does not name the CPU")
    return f"vllm {found}"
