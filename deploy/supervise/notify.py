"""Telling systemd how the deployment stands (sd_notify): one datagram to the socket it named, nothing waits for it."""

import contextlib
import os
import socket

EXTEND_S = 120  # each sign of progress buys the start that much more time


class Notifier:
    """The service manager, if there is one. Without NOTIFY_SOCKET every call does nothing."""

    def __init__(self) -> None:
        address = os.environ.pop("NOTIFY_SOCKET", "")  # the engine must not speak for us
        self.address = "\0" + address[1:] if address.startswith("@") else address
        period = os.environ.pop("WATCHDOG_USEC", "")
        meant = os.environ.pop("WATCHDOG_PID", "") in ("", str(os.getpid()))
        self.watchdog_s = int(period) / 2e6 if period.isdigit() and meant and self.address else None

    def send(self, *assignments: str) -> None:
        """Send assignments such as `READY=1`; a manager that is gone is no reason to fail."""
        if not self.address:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out,
        ):
            out.setblocking(False)
            out.sendto("\n".join(assignments).encode(), self.address)

    def starting(self, status: str) -> None:
        """The load moves: say where it is, and ask for more time."""
        self.send(f"STATUS={status}", f"EXTEND_TIMEOUT_USEC={EXTEND_S * 1_000_000}")

    def ready(self, status: str) -> None:
        """It serves."""
        self.send("READY=1", f"STATUS={status}")

    def stopping(self, status: str) -> None:
        """It is being stopped, or has failed."""
        self.send("STOPPING=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        """Only the words that `systemctl status` shows."""
        self.send(f"STATUS={status}")

    def watchdog(self) -> None:
        """We are alive."""
        self.send("WATCHDOG=1")
