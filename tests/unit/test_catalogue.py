"""Layers, search order and names of profiles, as files in folders."""

from pathlib import Path

import pytest

from deploy.errors import USAGE, KdeployError
from deploy.plan.references import references
from deploy.profile.catalogue import Catalogue, standard
from deploy.profile.yaml_reader import leaves


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for profiles."""
    path = tmp_path / "profiles"
    path.mkdir()
    return path


def write(folder: Path, **files: str) -> Catalogue:
    """Profile files, and the catalogue of their folder."""
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return Catalogue([str(folder)])


def refusal(catalogue: Catalogue, argument: str, *sets: str) -> KdeployError:
    """The error of resolving, which is always a usage error."""
    with pytest.raises(KdeployError) as caught:
        catalogue.resolve(argument, sets)
    assert caught.value.code == USAGE
    assert "Traceback" not in str(caught.value)
    return caught.value


def told(error: KdeployError) -> str:
    """Everything that the user would read."""
    return "\n".join([error.what, *error.evidence, *error.fix])


# ---------------------------------------------------------------- layers


def test_maps_merge_lists_replace_and_the_file_itself_wins(folder: Path) -> None:
    catalogue = write(
        folder,
        low="env: {A: low, B: low, C: low}\nargs: {list: [a, b], map: {x: 1, y: 1}}\nmodel: {served_name: [l1, l2]}\n",
        mid="env: {B: mid, C: mid}\n",
        top="extends: [low, mid]\nenv: {C: top}\nargs: {list: [c], map: {y: 2}}\nmodel: {served_name: t}\n",
    )
    profile = catalogue.resolve("top").profile
    assert profile.env == {"A": "low", "B": "mid", "C": "top"}
    assert profile.args == {"list": ["c"], "map": {"x": 1, "y": 2}}
    assert profile.model.served_name == ["t"]


def test_bases_merge_left_to_right(folder: Path) -> None:
    catalogue = write(folder, a="env: {X: a}\n", b="env: {X: b}\n", ab="extends: [a, b]\n", ba="extends: [b, a]\n")
    assert catalogue.resolve("ab").profile.env == {"X": "b"}
    assert catalogue.resolve("ba").profile.env == {"X": "a"}


def test_a_chain_and_a_diamond(folder: Path) -> None:
    catalogue = write(
        folder,
        root="env: {R: 1, X: root}\n",
        left="extends: root\nenv: {X: left}\n",
        right="extends: [root]\nenv: {Y: right}\n",
        top="extends: [left, right]\n",
    )
    resolved = catalogue.resolve("top")
    assert resolved.profile.env == {"R": "1", "X": "root", "Y": "right"}
    assert [Path(file).stem for file in resolved.layers] == ["root", "left", "right", "top"]


def test_a_base_gives_neither_its_name_nor_its_summary(folder: Path) -> None:
    catalogue = write(folder, base="name: b\nsummary: the base\n", top="extends: [b]\n")
    resolved = catalogue.resolve("top")
    assert (resolved.name, resolved.profile.summary) == ("top", "")


def test_a_base_may_be_a_file_beside_the_profile_whatever_the_working_folder(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "far.yaml").write_text("env: {FAR: 1}\n")
    catalogue = write(folder, near="env: {NEAR: 1}\n", top="extends: [near.yaml, ./sub/far.yaml]\n")
    assert catalogue.resolve("top").profile.env == {"NEAR": "1", "FAR": "1"}


def test_a_cycle_is_refused_with_its_path(folder: Path) -> None:
    catalogue = write(folder, a="extends: [b]\n", b="extends: [c]\n", c="extends: [a]\n", own="extends: [own]\n")
    assert "a.yaml -> b.yaml -> c.yaml -> a.yaml" in told(refusal(catalogue, "a"))
    assert "own.yaml -> own.yaml" in told(refusal(catalogue, "own"))


def test_unknown_bases_are_told_with_place_and_nearest_name(folder: Path) -> None:
    catalogue = write(folder, sm120="", top="schema: 1\nextends:\n  - sm210\n  - ./nowhere.yaml\nprot: 1\n")
    text = told(refusal(catalogue, "top"))
    assert "top.yaml:3:5: error: unknown base profile `sm210`" in text
    assert "did you mean `sm120`?" in text
    assert "top.yaml:4:5: error: unknown base profile `./nowhere.yaml`" in text
    assert "top.yaml:5:1: error: unknown key `prot`" in text  # all of them at once


@pytest.mark.parametrize("word", ["[[a]]", "{a: b}", "[{a: b}]"])
def test_extends_that_is_no_list_of_names(folder: Path, word: str) -> None:
    catalogue = write(folder, odd=f"extends: {word}\n", top="extends: [odd]\n")
    assert "odd.yaml:1:" in told(refusal(catalogue, "odd"))
    assert "odd.yaml:1:" in told(refusal(catalogue, "top"))


@pytest.mark.parametrize("word", ["", "null", "[]"])
def test_extends_of_nothing(folder: Path, word: str) -> None:
    assert write(folder, top=f"extends: {word}\n").resolve("top").profile.extends == []


def test_null_takes_a_value_out_and_an_empty_section_leaves_it(folder: Path) -> None:
    base = "env: {A: 1, B: 2}\nargs: {x: 1, y: 2}\nserve: {max_model_len: 5, port: 9}\n"
    catalogue = write(
        folder,
        base=base,
        leaf="extends: [base]\nenv: {A: null}\nargs: {x: ~}\nserve: {max_model_len: null}\n",
        empty="extends: [base]\nargs:\n  # nothing yet\nenv:\n",
        reset="extends: [base]\nargs: null\nserve: null\n",
    )
    leaf = catalogue.resolve("leaf").profile
    assert (leaf.env, leaf.args) == ({"A": None, "B": "2"}, {"x": None, "y": "2"})
    assert (leaf.serve.max_model_len, leaf.serve.port) == (None, 9)
    empty = catalogue.resolve("empty").profile
    assert (empty.args, empty.env) == ({"x": "1", "y": "2"}, {"A": "1", "B": "2"})
    reset = catalogue.resolve("reset").profile
    assert (reset.args, reset.serve.port) == ({}, 8000)


def test_an_error_names_the_layer_that_made_it(folder: Path) -> None:
    catalogue = write(folder, base="\nserve:\n  port: eight\n", top="extends: [base]\nserve: {host: a}\n")
    assert "base.yaml:3:9: error: `serve.port`" in told(refusal(catalogue, "top"))


def test_a_value_that_a_layer_above_mends_is_no_error(folder: Path) -> None:
    catalogue = write(folder, base="serve: {port: eight}\n", top="extends: [base]\nserve: {port: 8}\n")
    assert catalogue.resolve("top").profile.serve.port == 8


def test_the_host_overlay_is_merged_above_the_profile_and_below_sets(folder: Path, tmp_path: Path) -> None:
    write(folder, base="env: {A: base}\n", top="extends: [base]\nenv: {A: top, B: top, C: top}\n")
    overlay = tmp_path / "host.yaml"
    overlay.write_text("env: {B: host, C: host}\n")
    resolved = Catalogue([str(folder)], str(overlay)).resolve("top", ["env.C=set"])
    assert resolved.profile.env == {"A": "top", "B": "host", "C": "set"}
    origin = {".".join(path): str(node.at) for path, node in leaves(resolved.tree)}
    assert origin["env.A"] == f"{folder}/top.yaml:2:10"
    assert origin["env.B"] == f"{overlay}:1:10"
    assert origin["env.C"] == "--set env.C=set"
    assert resolved.layers[-1] == str(overlay)


@pytest.mark.parametrize("text", ["name: x\n", "extends: [base]\n"])
def test_the_host_overlay_cannot_name_or_extend(folder: Path, tmp_path: Path, text: str) -> None:
    write(folder, top="env: {A: 1}\n")
    overlay = tmp_path / "host.yaml"
    overlay.write_text(text)
    assert "host.yaml:1:1" in told(refusal(Catalogue([str(folder)], str(overlay)), "top"))


def test_a_broken_host_overlay_names_itself(folder: Path, tmp_path: Path) -> None:
    write(folder, top="env: {A: 1}\n")
    overlay = tmp_path / "host.yaml"
    overlay.write_text("env: {A: 1\n")
    assert "host.yaml:" in told(refusal(Catalogue([str(folder)], str(overlay)), "top"))


# ---------------------------------------------------------------- --set


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("serve.port=8001", "serve.port", 8001),
        ("serve.host=::", "serve.host", "::"),
        ("serve.host='::1'", "serve.host", "::1"),
        ("serve.max_model_len=1e5", "serve.max_model_len", 100_000),
        ("serve.max_model_len=null", "serve.max_model_len", None),
        ("model.served_name=[a, 3.10]", "model.served_name", ["a", "3.10"]),
        ("model.id=org/name", "model.id", "org/name"),
        ('model.id="true"', "model.id", "true"),
        ("bench.target.tok_s=41.5", "bench.target.tok_s", 41.5),
        ("summary=a: b #c", "summary", "a: b #c"),
        ("summary==", "summary", "="),
    ],
)
def test_set_lays_one_value_over(folder: Path, text: str, key: str, value: object) -> None:
    found: object = write(folder, p="serve: {port: 1, max_model_len: 2}\n").resolve("p", [text]).profile
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("args.enforce-eager=true", {"enforce-eager": True}),
        ("args.seed=017", {"seed": "017"}),
        ("args.compilation-config.mode=3", {"compilation-config.mode": "3"}),
        ("args.compilation-config={mode: 3}", {"compilation-config": {"mode": 3}}),
        ("args.middleware=[a.b, c]", {"middleware": ["a.b", "c"]}),
        ("args.x='a b'", {"x": "a b"}),
        ("args.x=a  b\tc\nd #e", {"x": "a  b\tc\nd #e"}),
        ("args.x=%{@`", {"x": "%{@`"}),
        ("args.x=", {"x": None}),
    ],
)
def test_set_of_a_flag(folder: Path, text: str, args: dict[str, object]) -> None:
    assert write(folder, p="schema: 1\n").resolve("p", [text]).profile.args == args


def test_set_of_a_variable_with_dots(folder: Path) -> None:
    sets = ["env.a.b=c", "env.X=#1", "env.Y=null", "env.Z=no"]
    found = write(folder, p="schema: 1\n").resolve("p", sets).profile.env
    assert found == {"a.b": "c", "X": "#1", "Y": None, "Z": "no"}


def test_the_last_set_wins(folder: Path) -> None:
    assert write(folder, p="schema: 1\n").resolve("p", ["serve.port=1", "serve.port=2"]).profile.serve.port == 2


@pytest.mark.parametrize("text", ["", "x", "serve.port", "=1", ".port=1", "serve.=1", "serve..port=1"])
def test_set_without_a_key_or_a_value(folder: Path, text: str) -> None:
    error = refusal(write(folder, p="schema: 1\n"), "p", text)
    assert "KEY.KEY=VALUE" in error.what
    assert error.fix


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("serve.prot=1", "`port`"),
        ("port=1", "under `serve:`"),
        ("serve.port=0", "greater than or equal to 1"),
        ("serve.port='1'", "remove the quotes"),
        ("serve.port=[1", "not YAML"),
        ("serve=1", "map of keys"),
        ("model.id.x=1", "map"),
        ("args=x", "map of keys"),
        ("extends=[x]", "extends"),
        ("schema=2", "this kdeploy knows 1"),
        ("env.X=\udcff", "character"),
    ],
)
def test_a_wrong_set_is_shown_as_it_was_typed(folder: Path, text: str, words: str) -> None:
    error = refusal(write(folder, p="model: {id: a}\n"), "p", text)
    assert words in told(error)
    assert error.fix


# ---------------------------------------------------------------- names and search


def test_the_first_folder_that_has_a_name_wins(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same.yaml").write_text(f"summary: {name}\n")
    (tmp_path / "two" / "only.yml").write_text("summary: two\n")
    catalogue = Catalogue([str(tmp_path / "missing"), str(tmp_path / "one"), str(tmp_path / "two")])
    assert catalogue.resolve("same").profile.summary == "one"
    assert [(found.name, Path(found.file).parent.name) for found in catalogue.all()] == [
        ("only", "two"),
        ("same", "one"),
    ]


def test_a_base_is_looked_for_beside_its_profile_first(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "base.yaml").write_text(f"env: {{FROM: {name}}}\n")
    (tmp_path / "two" / "top.yaml").write_text("extends: [base]\n")
    catalogue = Catalogue([str(tmp_path / "one"), str(tmp_path / "two")])
    assert catalogue.resolve("top").profile.env == {"FROM": "two"}


def test_the_search_path_of_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("KDEPLOY_PROFILES", f"/a::{tmp_path}/b")
    monkeypatch.chdir(tmp_path)
    folders = standard(["given", "/abs"]).folders
    own = [f"{tmp_path}/given", "/abs", "/a", f"{tmp_path}/b", f"{tmp_path}/kdeploy/profiles", "/etc/kdeploy/profiles"]
    assert folders[:-1] == own
    assert Path(folders[-1], "kimi-int4.yaml").exists()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("name: inside\n", "inside"),
        ("# c\nschema: 1\nname:   'inside'   # why\n", "inside"),
        ('schema: 1\r\nname: "inside"\r\n', "inside"),
        ("{schema: 1, name: inside}\n", "inside"),
        ('{"schema": 1,\n "name": "inside"}', "inside"),
        ("model:\n  name: deeper\n", "file"),
        ("name: null\n", "file"),
        ("name:\n", "file"),
        ("name: a/b\n", "file"),
        ("summary: |\n  name: text\n", "file"),
    ],
)
def test_a_profile_is_called_what_it_says_else_as_its_file(folder: Path, text: str, name: str) -> None:
    assert [found.name for found in write(folder, file=text).all()] == [name]


def test_a_broken_profile_still_has_its_name(folder: Path) -> None:
    catalogue = write(folder, x="name: mine\nserve: {port\n")
    assert "x.yaml:" in told(refusal(catalogue, "mine"))


def test_a_name_with_a_slash_is_refused_where_it_stands(folder: Path) -> None:
    text = told(refusal(write(folder, x="schema: 1\nname: a/b\n"), "x"))
    assert "x.yaml:2:7: error: `name`: `a/b` cannot be a name" in text
    assert "    name: a/b\n          ^" in text


def test_two_profiles_of_one_name_in_one_folder_are_refused_with_both_files(folder: Path) -> None:
    catalogue = write(folder, a="name: same\n", b="name: same\n")
    error = refusal(catalogue, "same")
    assert "'same'" in error.what
    assert error.evidence == (f"{folder}/a.yaml", f"{folder}/b.yaml")
    assert error.fix


def test_an_unknown_name_tells_the_nearest_and_where_it_looked(folder: Path) -> None:
    error = refusal(write(folder, **{"kimi-int4": "", "minimax": ""}), "kimi-int8")
    assert "did you mean kimi-int4?" in told(error)
    assert str(folder) in told(error)
    assert "profile list" in told(refusal(Catalogue([str(folder)]), "zzz"))


@pytest.mark.parametrize("argument", ["./nowhere.yaml", "no/where", "nowhere.yaml"])
def test_a_path_that_is_not_there(folder: Path, argument: str) -> None:
    error = refusal(Catalogue([str(folder)]), argument)
    assert argument in error.what
    assert error.fix


def test_a_path_wins_over_the_search(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = write(folder, p="summary: searched\n")
    (tmp_path / "p.yaml").write_text("summary: here\n")
    monkeypatch.chdir(tmp_path)
    assert catalogue.resolve("p.yaml").profile.summary == "here"
    assert catalogue.resolve("./p.yaml").file == f"{tmp_path}/p.yaml"


def test_a_folder_and_an_unreadable_file(folder: Path) -> None:
    (folder / "dir.yaml").mkdir()
    (folder / "loop.yaml").symlink_to("loop.yaml")
    catalogue = Catalogue([str(folder)])
    assert "Is a directory" in told(refusal(catalogue, "dir"))
    assert "cannot read" in refusal(catalogue, "loop").what


# ---------------------------------------------------------------- how it is told


def test_errors_of_yaml_and_of_the_schema_come_together_with_carets(folder: Path) -> None:
    text = 'serve:\n  port: "8000"\n  prot: 1\n  host: a\n  host: b\nargs: {<<: {a: b}}\n'
    error = refusal(write(folder, x=text), "x")
    assert error.what == "the profile is not valid: 4 errors"
    assert list(error.evidence) == [
        f"{folder}/x.yaml:2:9: error: `serve.port`: '8000' where a whole number belongs; remove the quotes",
        '      port: "8000"',
        "            ^",
        f"{folder}/x.yaml:3:3: error: unknown key `serve.prot`",
        "      prot: 1",
        "      ^",
        "    did you mean `port`?",
        f"{folder}/x.yaml:5:3: error: duplicate key `host`; the first is in line 4",
        "      host: b",
        "      ^",
        "    keep one of them",
        f"{folder}/x.yaml:6:8: error: YAML 1.2 has no merge keys",
        "    args: {<<: {a: b}}",
        "           ^",
        "    use extends: [BASE]",
    ]
    assert error.fix


def test_the_caret_stays_under_the_place_in_a_long_line(folder: Path) -> None:
    text = "args: {" + ", ".join(f"flag-number-{n}: {n}" for n in range(40)) + ", bad: [[1]]}\n"
    _, line, caret = refusal(write(folder, x=text), "x").evidence[:3]
    assert len(line) < 140
    assert line[caret.index("^") :].startswith("[[1]]")


def test_no_binary_reaches_the_screen(folder: Path) -> None:
    (folder / "x.yaml").write_bytes(b"\x1b[31m\x00\x07\xff")
    error = refusal(Catalogue([str(folder)]), "x")
    assert told(error).replace("\n", "").isprintable()


@pytest.mark.parametrize("name", ["kimi-int4", "kimi-nvfp4", "minimax-fp8", "glm5-nvfp4", "tiny-moe", "sm120-pcie"])
def test_every_shipped_profile_is_valid_and_holds_no_secret(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nowhere")
    profile = standard().resolve(name).profile
    assert profile.name == name
    assert profile.summary
    assert not any(references(value or "") for value in profile.env.values())
