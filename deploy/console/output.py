"""Where words go: data to stdout, talk to stderr; a closed stream is never a crash."""

import json
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from deploy.errors import KdeployError, located


def say(text: str = "") -> None:
    """Talk: one line to stderr."""
    _write(sys.stderr, text + "\n")


def data(text: str) -> None:
    """Data: to stdout, newline added."""
    _write(sys.stdout, text + "\n")


def document(value: Any) -> None:
    """One JSON document to stdout."""
    _write(sys.stdout, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def raw(chunk: bytes) -> None:
    """Bytes to stdout as they are."""
    if sys.stdout is None:
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:  # started with the stream closed
        return
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        # the reader has left (`| head`); nothing more can be told there
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except OSError:
        pass


def error(problem: KdeployError) -> None:
    """The three parts of an error: what, evidence, next step."""
    say(f"error: {problem.what}")
    for line in problem.evidence:
        say(f"  {line}")
    for line in problem.fix:
        if line:
            say(f"  -> {line}")


def diagnosis(found: dict[str, Any], log: str) -> None:
    """Why a deployment failed, with the lines of its log."""
    say(f"  cause: {found['cause']}: {found['summary']}")
    for item in found.get("evidence", ()):
        say(f"  {located(item, log)}")
    for fix in found.get("fix", ()):
        say(f"  -> {fix}")


def table(rows: Sequence[Sequence[str]]) -> None:
    """Aligned columns to stdout, without box characters."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        data("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def is_terminal() -> bool:
    """Whether a person watches: no redraw when either stream goes elsewhere."""
    watched = all(stream is not None and stream.isatty() for stream in (sys.stdout, sys.stderr))
    return watched and os.environ.get("TERM", "") != "dumb"
