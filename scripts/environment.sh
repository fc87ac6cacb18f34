# Sourced by the scripts beside it: makes kdeploy's own environment in .venv, and keeps it up to date.
# shellcheck shell=bash

say() { printf '%s\n' "$*" >&2; }

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3.14 python3; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    say "error: no Python 3.11 or newer was found"
    say "  -> apt-get install python3 python3-venv   (or name one: PYTHON=/path/to/python3.12 $0)"
    exit 6
}

make_venv() {
    # Debian's python3 comes without ensurepip; uv or virtualenv will do as well
    local python=$1 folder=$2
    "$python" -m venv "$folder" 2>/dev/null && return
    rm -rf "$folder"
    if command -v uv >/dev/null; then uv venv --seed --python "$python" "$folder" >&2 && return; fi
    "$python" -m virtualenv "$folder" >/dev/null 2>&1 && return
    say "error: $python cannot make virtual environments"
    say "  -> apt-get install python3-venv"
    exit 6
}

# make_environment [EXTRA]: .venv with kdeploy, editable, and the extra's packages. Does nothing when up to date.
make_environment() {
    local extra=${1:-} stamp want
    want="$(cksum <pyproject.toml) $extra"
    stamp=.venv/kdeploy-stamp
    if [ -x .venv/bin/kdeploy ] && [ "$(cat "$stamp" 2>/dev/null)" = "$want" ]; then
        say "environment: .venv is up to date"
        return
    fi
    say "environment: making .venv with kdeploy in it (about half a minute)"
    [ -x .venv/bin/python ] || make_venv "$(find_python)" .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".${extra:+[$extra]}" >&2
    printf '%s' "$want" >"$stamp"
}
