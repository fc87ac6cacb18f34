"""Where kdeploy keeps things. Environment in, paths out."""

import os

from deploy.errors import environment


def _xdg(variable: str, default: str) -> str:
    value = os.environ.get(variable, "")
    # the XDG specification: a relative path is to be ignored
    return value if os.path.isabs(value) else os.path.join(os.path.expanduser("~"), default)


def state_dir() -> str:
    """`$KDEPLOY_STATE_DIR`, else `$XDG_STATE_HOME/kdeploy`, else `~/.local/state/kdeploy`."""
    own = os.environ.get("KDEPLOY_STATE_DIR")
    return os.path.abspath(own) if own else os.path.join(_xdg("XDG_STATE_HOME", ".local/state"), "kdeploy")


def data_dir() -> str:
    """Installed engines and demo models: `$KDEPLOY_DATA_DIR`, else `$XDG_DATA_HOME/kdeploy`."""
    own = os.environ.get("KDEPLOY_DATA_DIR")
    return os.path.abspath(own) if own else os.path.join(_xdg("XDG_DATA_HOME", ".local/share"), "kdeploy")


def config_dir() -> str:
    """The user's own profiles and host overlay: `$XDG_CONFIG_HOME/kdeploy`."""
    return os.path.join(_xdg("XDG_CONFIG_HOME", ".config"), "kdeploy")


def cache_dir() -> str:
    """What can be made again: `$XDG_CACHE_HOME/kdeploy`."""
    return os.path.join(_xdg("XDG_CACHE_HOME", ".cache"), "kdeploy")


def vllm_sources_dir() -> str:
    """Sources of vLLM's wheels, for our tests: `$KDEPLOY_VLLM_SOURCES`, else in the cache."""
    own = os.environ.get("KDEPLOY_VLLM_SOURCES")
    return os.path.abspath(own) if own else os.path.join(cache_dir(), "vllm-sources")


SHARED_LEASES = "/run/lock/kdeploy"


def lease_dir() -> str:
    """GPU leases: `$KDEPLOY_LEASE_DIR`, else /run/lock/kdeploy where writable (shared by all users), else STATE.

    Makes nothing; whoever takes a lease calls `make_lease_dir`.
    """
    own = os.environ.get("KDEPLOY_LEASE_DIR")
    if own:
        return os.path.abspath(own)
    there = SHARED_LEASES if os.path.isdir(SHARED_LEASES) else os.path.dirname(SHARED_LEASES)
    return SHARED_LEASES if os.access(there, os.W_OK) else os.path.join(state_dir(), "leases")


def make_lease_dir(folder: str) -> None:
    """Make the folder of the leases; the shared one for every user. Raises OSError."""
    os.makedirs(folder, exist_ok=True)
    if folder == SHARED_LEASES and os.stat(folder).st_uid == os.getuid():
        os.chmod(folder, 0o1777)  # makedirs applies the umask


def make_private(path: str) -> str:
    """Make the folder `path` (0700) and return it; a folder that cannot be made or written is an error (exit 6)."""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError as error:
        raise environment(
            f"cannot make the folder {path}",
            evidence=[f"{error.filename or path}: {error.strerror}"],
            fix=["name a folder that you can write: export KDEPLOY_STATE_DIR=/path"],
        ) from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise environment(
            f"cannot write in {path}",
            evidence=[f"{path}: mode {os.stat(path).st_mode & 0o7777:04o}, uid {os.stat(path).st_uid}"],
            fix=["name a folder that you can write: export KDEPLOY_STATE_DIR=/path"],
        )
    return path
