"""`kdeploy profile` and `kdeploy render` as their users meet them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.box import FAKE_VLLM, Box, Result, write_checkpoint

SECRET = "s3cret-that-nobody-may-see"


def write(box: Box, name: str, text: str) -> Path:
    """A profile of the user's own."""
    path = box.profiles / f"{name}.yaml"
    path.write_text(text)
    return path


def one_document(result: Result) -> Any:
    """stdout as the one JSON document that it must be."""
    document, end = json.JSONDecoder().raw_decode(result.stdout)
    assert result.stdout[end:] == "\n"
    return document


def refused(result: Result, code: int = 2) -> str:
    """The talk of a refusal: its code, three parts, no traceback, nothing on stdout."""
    assert result.rc == code, result
    lines = result.stderr.splitlines()
    assert any(line.startswith("error: ") for line in lines)
    assert any(line.startswith("  -> ") for line in lines), result.stderr
    assert "Traceback" not in result.stderr
    assert "a fault of kdeploy" not in result.stderr
    return result.stderr


# ---------------------------------------------------------------- list, show, check


def test_list_shows_what_there_is_and_the_users_own_hides_the_shipped(box: Box) -> None:
    own = write(box, "kimi-int4", "summary: my own\nmodel: {id: a/b}\nhardware: {gpus: 0}\n")
    write(box, "broken", "prot: 1\n")
    rows = {row["name"]: row for row in one_document(box.ok("profile", "list", "--json"))["profiles"]}
    assert {"kimi-nvfp4", "minimax-fp8", "glm5-nvfp4", "tiny-moe", "sm120-pcie"} <= rows.keys()
    assert (rows["kimi-int4"]["file"], rows["kimi-int4"]["summary"]) == (str(own), "my own")
    assert (rows["sm120-pcie"]["base"], rows["minimax-fp8"]["gpus"]) == (True, 4)
    assert rows["broken"]["valid"] is False
    text = box.ok("ls").stdout
    assert text.startswith("NAME")
    assert "my own" in text


def test_show_is_a_profile_again(box: Box) -> None:
    write(box, "base", "env: {A: 1, 'odd key: #': x}\nargs:\n  list:\n    - a, b\n    - '[c]'\n    - 3.10\n")
    path = write(box, "p", 'extends: [base]\nsummary: "a: b # c"\nargs: {t: "017", n: 017, s: no, e: ""}\n')
    shown = box.ok("profile", "show", "p", "--set", "env.B=x  #y: z").stdout
    write(box, "again", shown)
    first = one_document(box.ok("profile", "show", str(path), "--set", "env.B=x  #y: z", "--json"))["profile"]
    second = one_document(box.ok("profile", "show", "again", "--json"))["profile"]
    assert {**first, "name": ""} == {**second, "name": ""}
    assert first["args"] == {"list": ["a, b", "[c]", "3.10"], "t": "017", "n": "017", "s": "no", "e": ""}
    assert first["env"] == {"A": "1", "odd key: #": "x", "B": "x  #y: z"}


def test_show_origin_names_file_and_line_of_each_value(box: Box) -> None:
    base = write(box, "base", "\nenv:\n  A: low\n  B: low\n")
    path = write(box, "p", "extends: [base]\nenv: {B: 3.10}\n")
    (box.root / "config" / "kdeploy" / "host.yaml").write_text("engine: {executable: other}\n")
    arguments = ("profile", "show", "p", "--origin", "--set", "serve.port=9")
    origin = one_document(box.ok(*arguments, "--json"))["origin"]
    assert origin["env.A"] == f"{base}:3:6"
    assert origin["env.B"] == f"{path}:2:10"
    assert origin["engine.executable"] == f"{box.root}/config/kdeploy/host.yaml:1:22"
    assert origin["serve.port"] == "--set serve.port=9"
    assert ["env.B", "3.10", f"{path}:2:10"] in [line.split() for line in box.ok(*arguments).stdout.splitlines()]


def test_check_of_all_profiles_and_of_a_wrong_one(box: Box) -> None:
    everything = one_document(box.ok("profile", "check", "--json"))["profiles"]
    assert all(entry["valid"] for entry in everything)
    path = write(box, "bad", 'serve:\n  port: "8000"\n  prot: 1\n')
    result = box.run("profile", "check", "bad", "kimi-int4", "--json")
    assert result.rc == 2
    bad, good = one_document(result)["profiles"]
    assert (bad["valid"], good["valid"]) == (False, True)
    assert f"{path}:2:9: error: `serve.port`: '8000' where a whole number belongs; remove the quotes" in bad["errors"]
    assert "did you mean `port`?" in refused(box.run("profile", "check", "bad"))


def test_check_goes_on_after_what_cannot_run_here(box: Box) -> None:
    path = box.profile("old", "", {"engine.version": ">=99"})
    path.write_text(path.read_text().replace(str(FAKE_VLLM), "engine-of-another-version"))
    record = {"start": ["true"], "version": "0.32.0", "interpreter": "/usr/bin/python3"}
    folder = box.root / "data" / "engines" / "engine-of-another-version"
    folder.mkdir(parents=True)
    (folder / "engine.json").write_text(json.dumps(record))
    result = box.run("profile", "check", "old", "kimi-int4", "--json")
    assert result.rc == 6
    old, good = one_document(result)["profiles"]
    assert "0.32.0" in old["errors"][0]
    assert good["valid"] is True
    assert "0.32.0" in refused(box.run("render", "old"), 6)


def test_the_search_path_reaches_every_verb(box: Box, tmp_path: Path) -> None:
    for name in ("flag", "variable"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.yaml").write_text(f"summary: {name}\nmodel: {{id: m}}\nhardware: {{gpus: 0}}\n")
    env = {"KDEPLOY_PROFILES": f"{tmp_path}/variable"}
    flag = f"{tmp_path}/flag"
    for arguments in (("profile", "show", "x"), ("profile", "check", "x"), ("render", "x")):
        assert f"{flag}/x.yaml" in box.ok(*arguments, "--profiles", flag, "--json").stdout
    assert one_document(box.ok("profile", "show", "x", "--json", env=env))["profile"]["summary"] == "variable"
    both = box.ok("--profiles", flag, "profile", "show", "x", "--json", env=env)
    assert one_document(both)["profile"]["summary"] == "flag"


def test_a_profile_from_a_pipe(box: Box) -> None:
    pipe = box.root / "pipe.yaml"
    pipe.symlink_to("/dev/stdin")
    assert "the file is empty" in refused(box.run("render", str(pipe)))  # the box gives no stdin


# ---------------------------------------------------------------- render


def test_the_formats_of_render_say_the_same(box: Box) -> None:
    box.profile("p", "", {"env.T": "${env:KEY}", "env.NCCL_X": "1"})
    plan = one_document(box.ok("render", "p", "--format", "json"))
    assert one_document(box.ok("render", "p", "--json")) == plan
    assert json.loads(box.ok("render", "p", "--format", "argv").stdout) == plan["argv"]
    lines = box.ok("render", "p", "--format", "env").stdout.splitlines()
    assert dict(line.split("=", 1) for line in lines) == plan["env"]
    assert plan["env"]["T"] == "${env:KEY}"
    assert box.ok("render", "p").stdout.startswith("#!/bin/sh\n")


def test_render_takes_set_port_name_and_extra(box: Box) -> None:
    box.profile("p")
    arguments = ("render", "p", "--port", "9", "--name", "other", "--set", "args.seed=-1", "--format", "json")
    plan = one_document(box.ok(*arguments, "--", "--max-num-seqs", "4"))
    assert (plan["name"], plan["port"]) == ("other", 9)
    assert plan["argv"][-4:] == ["--seed", "-1", "--max-num-seqs", "4"]


def test_what_is_dropped_and_what_is_unknown_is_told_on_stderr(box: Box) -> None:
    box.profile("p", "", {"args": {"max-num-sequences": 3}, "env.VLLM_USE_V1": "1", "env.HF_TOKEN": "hf_clear_text"})
    result = box.ok("render", "p", "--format", "argv", env={"VLLM_PORT": "tcp://10.0.0.9:8000", "NCCL_GRAPH_FILE": ""})
    assert "not passed on: VLLM_PORT" in result.stderr
    assert "not passed on: NCCL_GRAPH_FILE" in result.stderr
    assert "did you mean --max-num-seqs?" in result.stderr
    assert "VLLM_USE_V1" in result.stderr
    assert "env.HF_TOKEN holds a secret in clear text" in result.stderr
    assert "hf_clear_text" not in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        *(("render", "p", "--format", form) for form in ("shell", "argv", "env", "json")),
        *(
            ("profile", verb, "p", *more)
            for verb, more in (("show", ()), ("show", ("--json",)), ("check", ("--json",)))
        ),
        ("profile", "show", "p", "--origin"),
        ("up", "p", "--dry-run"),
        ("render", "p", "--", "--hf-token", "${env:KEY}"),
    ],
)
def test_no_secret_comes_out_anywhere(box: Box, arguments: tuple[str, ...]) -> None:
    (box.root / "secret").write_text(SECRET)
    keys = {"env.A": "${env:KEY}", "env.B": f"${{file:{box.root}/secret}}", "args": {"api-key": ["${env:KEY}"]}}
    box.profile("p", "", keys)
    env = {"KEY": SECRET, "HF_TOKEN": SECRET, "https_proxy": f"http://me:{SECRET}@proxy:1"}
    result = box.ok(*arguments, env=env)
    assert SECRET not in result.stdout + result.stderr


def test_no_gpu_and_no_engine_is_no_reason_not_to_render(box: Box) -> None:
    result = box.ok("render", "kimi-int4", "--format", "json", env={"PATH": "/usr/bin:/bin"})
    plan = one_document(result)
    assert plan["argv"][:3] == ["vllm", "serve", f"{box.root}/home/models/Kimi-K2.5"]
    assert plan["env"]["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
    assert "no engine 'vllm'" in result.stderr


def test_data_parallelism_counts_its_gpus(box: Box) -> None:
    sets = ("--set", "parallel.tensor=4", "--set", "parallel.data=2")
    plan = one_document(box.ok("render", "kimi-int4", *sets, "--format", "json"))
    assert plan["gpus_wanted"] == 8
    assert plan["argv"][plan["argv"].index("--data-parallel-size") + 1] == "2"


def test_a_cpu_engine_with_two_ranks_needs_no_gpus(box: Box) -> None:
    box.profile("p", "", {"parallel": {"tensor": 2, "data": 2}, "hardware": {"gpus": 0}})
    plan = one_document(box.ok("render", "p", "--json"))
    assert (plan["gpus_wanted"], plan["gpus"]) == (0, [])
    assert not [name for name in plan["env"] if name.startswith("CUDA")]


def test_a_list_of_served_names(box: Box) -> None:
    box.profile("p", "", {"model.served_name": ["one", "3.10"]})
    plan = one_document(box.ok("render", "p", "--json"))
    at = plan["argv"].index("--served-model-name")
    assert plan["argv"][at + 1 : at + 3] == plan["served_names"] == ["one", "3.10"]


def test_a_relative_model_lies_beside_the_profile_or_in_the_model_folder(box: Box) -> None:
    near = box.profiles / "weights"
    near.mkdir()
    box.profile("near", "", {"model.path": "weights"})
    box.profile("far", "", {"model.path": "elsewhere"})
    box.profile("dot", "", {"model.path": "./elsewhere"})
    models = {name: one_document(box.ok("render", name, "--json"))["model"] for name in ("near", "far", "dot")}
    expected = {"near": str(near), "far": f"{box.root}/data/models/elsewhere", "dot": f"{box.profiles}/elsewhere"}
    assert models == expected


def test_an_id_is_loaded_from_the_hosts_model_folders(box: Box) -> None:
    store = box.root / "store"
    write_checkpoint(store / "org" / "model")
    write_checkpoint(store / "other")
    overlay = box.root / "config/kdeploy/host.yaml"
    overlay.parent.mkdir(parents=True, exist_ok=True)
    overlay.write_text(f"model: {{folders: [/nowhere, '{store}']}}\n")
    keys = {"model.path": None, "model.revision": "abc", "model.served_name": None}
    for name, model in (("one", "org/model"), ("two", "org/other"), ("three", "org/absent")):
        box.profile(name, "", {**keys, "model.id": model})
    plans = {name: one_document(box.ok("render", name, "--json")) for name in ("one", "two", "three")}
    models = {name: plan["model"] for name, plan in plans.items()}
    assert models == {"one": f"{store}/org/model", "two": f"{store}/other", "three": "org/absent"}
    assert plans["one"]["served_names"] == ["org/model"]
    assert plans["one"]["argv"].count("--served-model-name") == 1
    assert "--revision" not in plans["one"]["argv"]
    assert "--revision" in plans["three"]["argv"]
    assert len(plans["one"]["shards"]) == 4
    # the shipped profiles name a path of their own
    write_checkpoint(store / "Kimi-K2.5")
    shown = box.ok("render", "kimi-int4", "--json")
    assert one_document(shown)["model"] == f"{store}/Kimi-K2.5"
    assert "model.path ~/models/Kimi-K2.5 is not here" in shown.stderr


def test_the_hub_cache_of_the_profiles_own_environment_is_read(box: Box) -> None:
    write_checkpoint(box.root / "hf/hub/models--org--model/snapshots/abc")
    keys = {"model.path": None, "model.id": "org/model", "model.revision": "abc", "env.HF_HOME": str(box.root / "hf")}
    box.profile("p", "", keys)
    assert len(one_document(box.ok("render", "p", "--json"))["shards"]) == 4


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize("verb", ["up", "render", "profile show", "profile check"])
def test_an_unknown_profile_names_the_nearest(box: Box, verb: str) -> None:
    text = refused(box.run(*verb.split(), "kimi-int"))
    assert "did you mean kimi-int4?" in text
    assert not box.state.exists()


BAD_FILES: dict[str, bytes] = {
    "empty": b"",
    "comment": b"# nothing\n",
    "list": b"- a\n- b\n",
    "binary": bytes(range(256)) * 10,
    "elf": b"\x7fELF\x02\x01\x01\x00" * 100,
    "large": b"a: 1\n" * 2_000_000,
    "bomb": b"a: &a [x,x,x,x,x,x,x,x,x]\n"
    + b"".join(b"%c: &%c [%s]\n" % (n, n, b",".join([b"*%c" % (n - 1)] * 9)) for n in range(98, 110)),
    "itself": b"a: &a [*a]\n",
    "deep": b"a: " + b"[" * 5000,
    "slash": b"name: a/b\nmodel: {id: x}\n",
    "base": b"extends: [no-such-base]\nmodel: {id: x}\n",
    "cycle": b"extends: [./cycle.yaml]\n",
    "broken": b"serve: {port: 1\nmodel: x\n",
    "tab": b"serve:\n\tport: 1\n",
    "twice": b"env: {A: 1}\nenv: {B: 2}\n",
    "two documents": b"schema: 1\n---\nschema: 1\n",
    "schema 2": b"schema: 2\nmodel: {id: x}\n",
    "port 0": b"model: {id: x}\nserve: {port: 0}\n",
    "port 70000": b"model: {id: x}\nserve: {port: 70000}\n",
    "no model": b"schema: 1\n",
    "no revision": b"model: {id: x, trust_remote_code: true}\n",
    "context parallel": b"model: {id: x}\nparallel: {tensor: 4, decode_context: 3}\n",
    "gpus": b"model: {id: x}\nparallel: {tensor: 4}\nhardware: {gpus: 2}\n",
    "a billion": b"model: {id: x}\nparallel: {tensor: 1000000000}\n",
    "managed": b"model: {id: x}\nargs: {tensor-parallel: 8}\n",
    "flag twice": b"model: {id: x}\nargs: {max-num-seqs: 1, max_num_seqs: 2}\n",
    "dashes": b"model: {id: x}\nargs: {--seed: 1}\n",
    "reference": b"model: {id: x}\nenv: {A: '${env:B C}'}\n",
    "version": b"model: {id: x}\nengine: {version: new}\n",
    "patch": b"model: {id: x}\npatches: [none-such]\n",
    "tls": b"model: {id: x}\nargs: {ssl-keyfile: /k}\n",
    "nul": b'model: {id: "x\\0y"}\n',
    "surrogate": b'model: {id: "x\\ud800"}\n',
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_profile_is_refused_everywhere_and_starts_nothing(box: Box, name: str) -> None:
    path = box.profiles / f"{name.replace(' ', '-')}.yaml"
    path.write_bytes(BAD_FILES[name])
    for arguments in (("up", str(path)), ("render", str(path))):
        text = refused(box.run(*arguments))
        assert len(text) < 5000
        assert str(path) in text or name in ("no model", "reference", "version")
    assert not list(box.state.glob("deployments/*/launches/*"))
    result = box.run("up", str(path), "--json")
    assert one_document(result)["error"]["exit_code"] == result.rc == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("./none.yaml",), "no such profile file"),
        (("some/where",), "no such profile file"),
        (("/",), "Is a directory"),
        (("p", "--set", "serve.prot=1"), "`port`"),
        (("p", "--set", "nonsense"), "KEY.KEY=VALUE"),
        (("p", "--port", "0"), "--port"),
        (("p", "--port", "70000"), "--port"),
        (("p", "--port", "eighty"), "--port"),
        (("p", "--name", "a/b"), "a/b"),
        (("p", "--name", ""), "''"),
        (("p", "--", "--port", "1"), "serve.port"),
        (("p", "--", "--tensor-par=8"), "parallel.tensor"),
        (("p", "--", "-tp", "8"), "parallel.tensor"),
        (("p", "--", "-t", "8"), "parallel.tensor"),
        (("p", "--", "--no-trust-remote-code"), "model.trust_remote_code"),
        (("p", "--", "--disable-expert-parallel"), "parallel.expert"),
        (("p", "--", "--ssl_keyfile=/k"), "TLS"),
        (("p", "--", "--config", "f.yaml"), "--config"),
        (("p", "--", "${env:A B}"), "${env:A B}"),
        ((), "PROFILE"),
    ],
)
def test_a_bad_command_line_is_refused(box: Box, arguments: tuple[str, ...], words: str) -> None:
    box.profile("p")
    for verb in ("up", "render"):
        result = box.run(verb, *arguments)
        assert (result.rc, result.stdout) == (2, "")
        assert words in result.stderr
        assert "Traceback" not in result.stderr
    assert not list(box.state.glob("deployments/*/launches/*"))


def test_two_profiles_of_one_name_in_one_folder(box: Box) -> None:
    write(box, "a", "name: same\n")
    write(box, "b", "name: same\n")
    for verb in ("up", "render"):
        text = refused(box.run(verb, "same"))
        assert f"{box.profiles}/a.yaml" in text
        assert f"{box.profiles}/b.yaml" in text


def test_an_error_of_the_plan_names_the_line_that_set_it(box: Box) -> None:
    path = write(box, "p", "model: {id: x}\nargs:\n  seed: 1\n  tensor_parallel_size: 8\n")
    assert f"{path}:4:25: args.tensor_parallel_size" in refused(box.run("render", "p"))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"engine.executable": "no-such-engine"}, "no engine 'no-such-engine'"),
        ({"engine.executable": "/no/such/vllm"}, "does not exist"),
        ({"engine.executable": "/etc/passwd"}, "cannot be executed"),
        ({"model.path": "/no/such/model"}, "does not exist"),
        ({"model.path": "/etc"}, "config.json is missing"),
        ({"env.T": "${env:NOT_SET_ANYWHERE}"}, "NOT_SET_ANYWHERE is not set"),
        ({"env.T": "${file:/no/such/secret}"}, "/no/such/secret cannot be read"),
    ],
)
def test_what_is_missing_on_this_machine_is_exit_6_for_up_and_a_note_for_render(
    box: Box, keys: dict[str, Any], words: str
) -> None:
    box.profile("p", "", keys)
    assert words in refused(box.run("up", "p"), 6)
    assert not list(box.state.glob("deployments/*/launches/*"))
    assert box.ok("render", "p").stdout


def test_a_damaged_checkpoint_is_told_with_every_file(box: Box) -> None:
    box.profile("p")
    shards = sorted(box.model.glob("*.safetensors"))
    shards[0].write_text("version https://git-lfs.github.com/spec/v1\n")
    shards[1].unlink()
    shards[2].write_bytes(shards[2].read_bytes()[:-1])
    text = refused(box.run("up", "p"), 6)
    assert f"{shards[0]}: a git-lfs pointer" in text
    assert f"{shards[1]}: No such file" in text
    assert f"{shards[2]}: truncated" in text
