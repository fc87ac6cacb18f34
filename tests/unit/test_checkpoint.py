"""What is read of a checkpoint folder before anything is started."""

import json
import struct
from pathlib import Path

import pytest

from deploy.checkpoint.weights import natural_key, read_weights
from deploy.errors import ENVIRONMENT, KdeployError
from tests.box import write_checkpoint, write_shard

INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole checkpoint of four shards."""
    return write_checkpoint(tmp_path / "model", shards=4)


def shard(folder: Path, number: int) -> Path:
    """One of the four."""
    return folder / f"model-{number:05d}-of-00004.safetensors"


def refusal(folder: Path) -> KdeployError:
    """The error of reading, which is always one of the environment."""
    with pytest.raises(KdeployError) as caught:
        read_weights(str(folder))
    assert caught.value.code == ENVIRONMENT
    assert caught.value.fix
    return caught.value


def damage(folder: Path) -> str:
    """The one thing that is said against a checkpoint with one bad file."""
    (line,) = refusal(folder).evidence
    return line


def headed(header: bytes, data: int = 0) -> bytes:
    """The bytes of a safetensors file with this header."""
    return struct.pack("<Q", len(header)) + header + bytes(data)


def test_a_whole_checkpoint(folder: Path) -> None:
    files = read_weights(str(folder))
    assert [file.name for file in files] == [shard(folder, number).name for number in (1, 2, 3, 4)]
    assert all(file.size == (folder / file.name).stat().st_size for file in files)


def test_files_come_in_natural_order(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for name in ("model-10", "model-2", "model-1", "b", "model-2a", "10"):
        write_shard(tmp_path / f"{name}.safetensors", ["w"], 1)
    names = [Path(file.name).stem for file in read_weights(str(tmp_path))]
    assert names == ["10", "b", "model-1", "model-2", "model-2a", "model-10"]


def test_strange_digits_are_no_crash() -> None:
    assert sorted(["²1", "²", "٣", "3"], key=natural_key)


def test_without_an_index_every_safetensors_file_counts(folder: Path) -> None:
    (folder / INDEX).unlink()
    (folder / "notes.txt").write_text("")
    assert len(read_weights(str(folder))) == 4


def test_with_an_index_only_the_files_that_it_names(folder: Path) -> None:
    write_shard(folder / "consolidated.safetensors", ["w"], 1)
    assert len(read_weights(str(folder))) == 4


def test_another_format_has_no_weights_that_we_know(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    assert read_weights(str(tmp_path)) == []


def test_a_shard_that_the_index_names_and_nobody_has(folder: Path) -> None:
    shard(folder, 3).unlink()
    error = refusal(folder)
    assert "1 of 4" in error.what
    assert error.evidence == (f"{shard(folder, 3)}: No such file or directory",)


@pytest.mark.parametrize("size", [0, 7, 8, 20, -1])
def test_a_truncated_shard(folder: Path, size: int) -> None:
    whole = shard(folder, 2).read_bytes()
    shard(folder, 2).write_bytes(whole[:size])
    assert damage(folder).startswith(f"{shard(folder, 2)}: truncated")


def test_a_shard_that_is_too_long(folder: Path) -> None:
    with shard(folder, 2).open("ab") as file:
        file.write(b"xyz")
    assert "3 bytes too long" in damage(folder)


def test_an_lfs_pointer(folder: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4294967296\n"
    shard(folder, 1).write_text(pointer)
    error = refusal(folder)
    assert "git-lfs pointer" in error.evidence[0]
    assert "git lfs pull" in error.fix[0]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (struct.pack("<Q", 1 << 60) + b"x" * 100, "not a safetensors file"),
        (b"<!DOCTYPE html><html>" + b"x" * 100, "not a safetensors file"),
        (headed(b"not json"), "not readable"),
        (headed(b"\xff\xfe"), "not readable"),
        (headed(b"[]"), "not readable"),
        (headed(b"null"), "not readable"),
        (headed(b'{"w": 1}'), "not readable"),
        (headed(b'{"w": {"data_offsets": [0]}}'), "not readable"),
        (headed(b'{"w": {"data_offsets": [0, "x"]}}'), "not readable"),
        (headed(b'{"w": {"data_offsets": [0, null]}}'), "not readable"),
        (headed(b'{"w":' + b"[" * 100_000), "not readable"),
        (headed(b'{"w": {"data_offsets": [0, 8]}}', 7), "truncated"),
    ],
)
def test_garbage_in_a_header(folder: Path, data: bytes, words: str) -> None:
    shard(folder, 4).write_bytes(data)
    assert words in damage(folder)


def test_an_empty_header_is_a_file_without_tensors(folder: Path) -> None:
    shard(folder, 4).write_bytes(headed(b"{}      "))
    assert len(read_weights(str(folder))) == 4


def test_all_damaged_files_are_named_together(folder: Path) -> None:
    shard(folder, 1).write_bytes(b"")
    shard(folder, 2).unlink()
    shard(folder, 4).write_text("version https://git-lfs.github.com/spec/v1\n")
    assert len(refusal(folder).evidence) == 3


def test_very_many_damaged_files_are_counted(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "big", shards=12)
    for path in folder.glob("*.safetensors"):
        path.unlink()
    error = refusal(folder)
    assert len(error.evidence) == 9
    assert error.evidence[-1] == "and 4 more"


def test_a_farm_of_links_as_in_the_hub_cache(folder: Path, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(folder.iterdir())):
        path.rename(blobs / f"{number:064x}")
        (snapshot / path.name).symlink_to(f"../../blobs/{number:064x}")
    files = read_weights(str(snapshot))
    assert files[0].name == "model-00001-of-00004.safetensors"
    assert all(file.size > 16_000 for file in files)
    (blobs / f"{1:064x}").unlink()
    assert "No such file" in damage(snapshot)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"weight_map": []}',
        '{"weight_map": {"w": 5}}',
        '{"weight_map": {"w": ["x"]}}',
        "[" * 100_000,
    ],
)
def test_a_broken_index(folder: Path, text: str) -> None:
    (folder / INDEX).write_text(text)
    assert INDEX in refusal(folder).what


def test_a_folder_in_the_place_of_a_shard(folder: Path) -> None:
    shard(folder, 1).unlink()
    shard(folder, 1).mkdir()
    assert "directory" in damage(folder).lower()


def test_no_folder_no_config(folder: Path, tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "nowhere").what
    assert "is no folder" in refusal(folder / "config.json").what
    (folder / "config.json").unlink()
    error = refusal(folder)
    assert "config.json is missing" in error.what
    assert "model-00001" in error.evidence[0]


def test_an_empty_folder_says_so(tmp_path: Path) -> None:
    assert refusal(tmp_path).evidence == (f"{tmp_path}: empty",)


def test_the_files_themselves_are_not_read(folder: Path) -> None:
    size = 1 << 36
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with shard(folder, 1).open("wb") as file:  # sparse: 64 GiB that take no room
        file.write(headed(header))
        file.truncate(8 + len(header) + size)
    assert read_weights(str(folder))[0].size > size
