"""Ends of processes, told by the kernel through pidfds in the supervisor's loop."""

import os
import selectors
from collections.abc import Callable

from deploy.host.processes import Identity, open_pidfd


class Pidfds:
    """One descriptor for each process that is waited for. Selector entries carry the callback for its end."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self.selector = selector
        self.descriptors: dict[Identity, int] = {}

    def watch(self, identity: Identity, on_end: Callable[[], None]) -> bool:
        """Call `on_end` when it ends; False when it is gone already."""
        if identity in self.descriptors:
            return True
        fd = open_pidfd(identity)
        if fd is None:
            return False
        self.descriptors[identity] = fd
        self.selector.register(fd, selectors.EVENT_READ, on_end)
        return True

    def drop(self, identity: Identity) -> None:
        """Wait for it no longer."""
        fd = self.descriptors.pop(identity, None)
        if fd is not None:
            self.selector.unregister(fd)
            os.close(fd)

    def drop_all(self) -> None:
        """Wait for none."""
        for identity in list(self.descriptors):
            self.drop(identity)
