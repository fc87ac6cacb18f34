"""Which processes are the engine's: recorded identities, kept for the journal and for whoever adopts."""

import os
import re
from typing import NamedTuple

from deploy.host.cgroups import pids_in
from deploy.host.processes import Identity, Process, holders_of, snapshot, title, tree

# What a process is for, by the title that vLLM gives it. This never decides whose a process is.
RANK = re.compile(r"(^|::)(EngineCore|Worker)")
CORE = re.compile(r"(^|::)EngineCore")
SERVER = re.compile(r"(^|::)APIServer")


class Member(NamedTuple):
    """One process of the engine, with the title it had when it was recorded."""

    identity: Identity
    title: str

    @property
    def is_rank(self) -> bool:
        """Whether the engine cannot live without it."""
        return RANK.search(self.title) is not None


class Ledger:
    """The engine's processes as far as they were ever seen."""

    def __init__(self, log: str) -> None:
        self.log = log
        self.leader: Identity | None = None
        self.members: dict[Identity, Member] = {}
        self.group: str | None = None  # the engine's own cgroup
        self.parent_of_engine = True  # False after adoption: orphans do not come to us then
        self.spared: set[int] = set()  # children of ours that are not the engine's

    def living(self) -> list[Process]:
        """The engine's living processes now."""
        processes = snapshot()
        known = set(self.members)
        known.update(processes[pid].identity for pid in pids_in(self.group) if pid in processes)
        if not self.parent_of_engine:
            known.update(process.identity for process in holders_of(self.log))
        return tree(
            self.leader,
            known,
            processes,
            reaper=os.getpid() if self.parent_of_engine else None,
            spared=self.spared,
        )

    def loaders(self) -> list[tuple[int, str]]:
        """The living processes, with their titles, that load vLLM's plugins: the server, engines, ranks.

        The server is whoever started an EngineCore (the first process may be a wrapper), else the first process.
        """
        living = [(process, title(process.pid)[:80]) for process in self.living()]
        known = {process.pid for process, _ in living}
        parents = {process.ppid for process, name in living if CORE.search(name)} & known
        if not parents and self.leader is not None:
            parents = {self.leader[0]}
        return [
            (process.pid, name)
            for process, name in living
            if process.pid in parents or RANK.search(name) or SERVER.search(name)
        ]

    def refresh(self) -> list[Member]:
        """Look again; the members that are new or have taken their title since, which a rank does in two steps
        (VLLM::Worker, then VLLM::Worker_TP1_EP1)."""
        fresh = []
        for process in self.living():
            member = Member(process.identity, title(process.pid)[:80])
            before = self.members.get(process.identity)
            if before is None or (member.is_rank and member.title != before.title):
                self.members[process.identity] = member
                fresh.append(member)
        return fresh
