"""The reading threads on real files."""

from pathlib import Path

from deploy.warm.reader import READ_BLOCK, Reader
from tests.box import wait_until


def test_what_cannot_be_read_does_not_count_as_present(tmp_path: Path) -> None:
    """A file that ends before its header says: bytes behind the gap are in memory, but not without a gap."""
    whole, short, third = (tmp_path / name for name in "abc")
    whole.write_bytes(b"x" * READ_BLOCK)
    short.write_bytes(b"x" * 5000)
    third.write_bytes(b"x" * READ_BLOCK)
    files = [(str(whole), READ_BLOCK), (str(short), READ_BLOCK), (str(third), READ_BLOCK)]
    reader = Reader(files, threads=2, use_populate=False)
    reader.allow(0, 3 * READ_BLOCK)
    wait_until(lambda: reader.read + reader.found >= 2 * READ_BLOCK and reader.errors, "both whole files to be in")
    assert reader.present == READ_BLOCK
    assert not reader.done
    assert "earlier than expected" in reader.errors[0]
    assert str(short) in reader.errors[0]
    reader.stop()
