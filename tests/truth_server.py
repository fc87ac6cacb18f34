"""The chat server of known truth (tests/fakes/openai_server.py) for one test."""

import contextlib
import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.box import FAKES, LIMIT_S


class TruthServer(NamedTuple):
    """A running one."""

    port: int

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def truth(self) -> list[dict[str, Any]]:
        """What it really did, a request each in the order of arrival."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        connection.request("GET", "/truth")
        told: list[dict[str, Any]] = json.loads(connection.getresponse().read())
        connection.close()
        return told


@contextlib.contextmanager
def truth_server(**options: Any) -> Iterator[TruthServer]:
    """Start one with `options` (fields of its Options), and end it afterwards."""
    command = [sys.executable, str(FAKES / "openai_server.py"), json.dumps(options)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield TruthServer(json.loads(process.stdout.readline())["port"])
        finally:
            process.kill()
