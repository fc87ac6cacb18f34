"""Where the profiles and patches that ship with kdeploy lie: inside the package in a wheel, beside it in a checkout."""

from pathlib import Path


def shipped(kind: str) -> Path:
    """The shipped folder `kind` ("profiles" or "patches")."""
    package = Path(__file__).resolve().parent
    inside = package / kind
    return inside if inside.is_dir() else package.parent / kind
