"""`kdeploy render PROFILE --format shell | sh` starts exactly what the plan says."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deploy.console.shell_script import shell_script
from deploy.plan.gather import Wish, plan_for_show
from deploy.plan.launch_plan import LaunchPlan
from deploy.profile.catalogue import Catalogue
from tests.box import KDEPLOY, Box

SHELLS = [path for path in ("/bin/sh", "/bin/bash", "/bin/busybox") if os.path.exists(path)]

# Tells what it was started with, from the kernel's own record: Python would add LC_CTYPE to its environment.
PROGRAM = """\
#!{python} -I
import json, os, sys
def read(name):
    with open(f"/proc/self/{{name}}", "rb") as file:
        return [word.decode() for word in file.read().split(b"\\0")[:-1]]
fds = sorted(int(fd) for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and os.path.exists(f"/proc/self/fd/{{fd}}"))
json.dump({{"argv": read("cmdline")[3:], "env": read("environ"), "fds": fds}}, sys.stdout)
"""


class Started(NamedTuple):
    """What a program was started with."""

    argv: list[str]
    env: dict[str, str]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The executable, at a path that needs quoting."""
    path = tmp_path / "my engine's $(dir)" / "vllm"
    path.parent.mkdir()
    path.write_text(PROGRAM.format(python=sys.executable))
    path.chmod(0o755)
    return path


def run_in(shell: str, script: str, env: dict[str, str]) -> Started:
    """Pipe the script to a shell."""
    command = [shell, "sh"] if shell.endswith("busybox") else [shell]
    done = subprocess.run(command, input=script.encode(), env=env, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return read(done.stdout)


def read(stdout: bytes) -> Started:
    """What the program told."""
    told = json.loads(stdout)
    assert told["fds"] == [], "a descriptor with secrets is left open"
    env = dict(entry.split("=", 1) for entry in told["env"])
    assert len(env) == len(told["env"])
    return Started(told["argv"], env)


def profile_text(program: Path, **sections: Any) -> str:
    """A CPU profile for the program, as JSON."""
    document = {"engine": {"executable": str(program)}, "hardware": {"gpus": 0}, "model": {"id": "org/m"}, **sections}
    return json.dumps(document).replace("\x7f", "\\u007f")  # YAML takes no raw control characters


NASTY = {
    "quotes": 'it\'s "quoted" \\ \\\\n',
    "newlines": "one\ntwo\n\nthree\n",
    "dollar": "$HOME ${HOME} $(id) $$ `id` !x",
    "blanks": "  two  spaces\tand a tab ",
    "globs": "* ? [a-z] {a,b} ~ # ; & | < > ( )",
    "unicode": "naïve 模型 🦙 \u2028",
    "empty": "",
    "dash": "-n",
    "equals": "a=b=c",
    "percent": "%s %% %1",
    "end": "KDEPLOY_\nKDEPLOY_SECRETS\nEOF",
    "control": "bell\x07 escape\x1b[31m delete\x7f return\r",
}
SECRETS = {**NASTY, "trailing newlines": "a\n\n", "only a newline": "\n", "long": "x" * 20_000}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("kind", ["plain", "secret"])
def test_the_same_words_and_the_same_environment(box: Box, program: Path, shell: str, kind: str) -> None:
    args: dict[str, Any] = {f"x-{name}": value for name, value in NASTY.items()}
    args |= {"speculative-config": NASTY, "logits-processors": [v for v in NASTY.values() if v[:1] != "-"]}
    env: dict[str, str] = {f"V_{name}": value for name, value in NASTY.items()} | {"with.dot-and-dash": "x y"}
    if kind == "secret":
        env |= {"S": "${env:SECRET}", "BEARER": "a '${env:SECRET}' b"}
        args["api-key"] = "${env:SECRET}"
    (box.profiles / "p.yaml").write_text(profile_text(program, args=args, env=env))
    plan = box.ok("render", "p", "--format", "json", env={"SECRET": "s3cret"}).json
    script = box.ok("render", "p", "--format", "shell", env={"SECRET": "s3cret"}).stdout
    assert "s3cret" not in script + json.dumps(plan)
    started = run_in(shell, script, box.environment({"SECRET": "s3cret"}))
    resolved = json.loads(json.dumps([plan["argv"], plan["env"]]).replace("${env:SECRET}", "s3cret"))
    assert started.argv == resolved[0][1:]
    assert started.env == resolved[1]


@pytest.mark.parametrize("shell", SHELLS)
def test_any_secret_arrives_whole_from_variable_and_file(box: Box, program: Path, shell: str) -> None:
    env = {"MIXED": "<${env:KEY_0}|${env:KEY_1}>", "BY_HOME": "${file:~/own}"}
    outside = {}
    for number, secret in enumerate(SECRETS.values()):
        (box.root / f"it's a $secret {number}").write_text(secret)
        env[f"BY_ENV_{number}"] = f"${{env:KEY_{number}}}"
        env[f"BY_FILE_{number}"] = f"${{file:{box.root}/it's a $secret {number}}}"
        outside[f"KEY_{number}"] = secret
    (box.root / "home" / "own").write_text("mine\n")
    (box.profiles / "p.yaml").write_text(profile_text(program, env=env))
    script = box.ok("render", "p").stdout
    started = run_in(shell, script, box.environment(outside))
    for number, secret in enumerate(SECRETS.values()):
        assert started.env[f"BY_ENV_{number}"] == secret
        assert started.env[f"BY_FILE_{number}"] == secret.removesuffix("\n")
    first, second = list(SECRETS.values())[:2]
    assert (started.env["MIXED"], started.env["BY_HOME"]) == (f"<{first}|{second}>", "mine")
    assert not {*outside, "PWD", "SHLVL", "OLDPWD", "_"} & started.env.keys()


def test_the_real_pipe(box: Box, program: Path) -> None:
    (box.profiles / "p.yaml").write_text(profile_text(program, env={"T": "${env:KEY}"}, args={"x": "$HOME"}))
    line = f"{KDEPLOY} render p --format shell | sh"
    done = subprocess.run(
        ["/bin/sh", "-c", line], env=box.environment({"KEY": "s3"}), cwd=box.root, capture_output=True, check=True
    )
    started = read(done.stdout)
    assert started.argv == ["serve", "org/m", "--host", "127.0.0.1", "--port", "8000", "--x", "$HOME"]
    assert started.env["T"] == "s3"


def test_a_secret_is_in_no_argument_list_on_the_way(box: Box, program: Path, tmp_path: Path) -> None:
    """An `env` and an `sh` first on PATH write down what they are given, as `ps` would show it."""
    spies = tmp_path / "spies"
    spies.mkdir()
    for name in ("env", "cat"):
        real = shutil.which(name)
        spy = f'#!/bin/sh\nprintf "%s\\n" "$0" "$@" >> {spies}/seen\nexec {real} "$@"\n'
        (spies / name).write_text(spy)
        (spies / name).chmod(0o755)
    (box.root / "file").write_text("s3cret-of-file")
    env = {"A": "${env:KEY}", "B": f"${{file:{box.root}/file}}", "PATH": f"{spies}:/usr/bin:/bin"}
    (box.profiles / "p.yaml").write_text(profile_text(program, env=env))
    script = box.ok("render", "p", env={"KEY": "s3cret-of-env"}).stdout
    outside = box.environment({"KEY": "s3cret-of-env", "PATH": f"{spies}:/usr/bin:/bin"})
    started = run_in("/bin/sh", script, outside)
    assert (started.env["A"], started.env["B"]) == ("s3cret-of-env", "s3cret-of-file")
    seen = (spies / "seen").read_text()
    assert seen.count("/env\n") == 2
    assert "s3cret" not in seen


@pytest.mark.parametrize("text", ["${env:MISSING}", "${file:/no/such/file}"])
def test_a_missing_secret_starts_nothing(box: Box, program: Path, text: str) -> None:
    (box.profiles / "p.yaml").write_text(profile_text(program, env={"T": text}))
    script = box.ok("render", "p").stdout
    done = subprocess.run(
        ["/bin/sh"], input=script.encode(), env=box.environment(), capture_output=True, check=False, timeout=60
    )
    assert done.returncode != 0
    assert done.stdout == b""
    assert text[6:-1].partition(":")[2].encode() in done.stderr or b"MISSING" in done.stderr


def test_a_variable_that_no_shell_can_set_is_refused_when_it_holds_a_secret(box: Box, program: Path) -> None:
    (box.profiles / "p.yaml").write_text(profile_text(program, env={"a.b": "${env:KEY}"}))
    result = box.run("render", "p")
    assert (result.rc, result.stdout) == (2, "")
    assert "env.a.b" in result.stderr


def test_a_strange_path_of_the_profile_stays_a_comment(box: Box, program: Path) -> None:
    folder = box.root / "a\necho injected"
    folder.mkdir()
    (folder / "p.yaml").write_text(profile_text(program))
    script = box.ok("render", f"{folder}/p.yaml").stdout
    assert run_in("/bin/sh", script, box.environment()).argv[0] == "serve"


# ---------------------------------------------------------------- whatever the text

words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: (
        name not in ("PATH", "LD_PRELOAD", "LD_LIBRARY_PATH", "_", "PWD", "OLDPWD", "SHLVL", "IFS", "ENV", "PS4")
    )
)


@pytest.fixture
def plan(program: Path, monkeypatch: pytest.MonkeyPatch) -> LaunchPlan:
    """A plan to vary."""
    monkeypatch.setenv("HOME", str(program.parent))
    monkeypatch.setenv("KDEPLOY_DATA_DIR", str(program.parent))
    path = program.parent / "p.yaml"
    path.write_text(profile_text(program))
    return plan_for_show(Catalogue([]).resolve(str(path)), Wish("p"))


@given(st.lists(words, max_size=6), st.dictionaries(names, words, max_size=6), st.booleans())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_words_and_values_survive_the_shell(
    plan: LaunchPlan, tail: list[str], env: dict[str, str], secretly: bool
) -> None:
    from dataclasses import replace

    argv = [*plan.argv, *tail]
    path = {"PATH": "/usr/bin:/bin"}
    varied = replace(plan, argv=argv, env={**env, **path, **({"KDEPLOY_S": "${env:OUTER}"} if secretly else {})})
    started = run_in("/bin/sh", shell_script(varied), {**path, "OUTER": "line\nline"})
    assert started.argv == argv[1:]
    assert started.env == {**env, **path, **({"KDEPLOY_S": "line\nline"} if secretly else {})}
