"""HTTP requests under way in the supervisor's loop: at most one for each purpose, each with its deadline."""

import contextlib
import selectors
import time
from collections.abc import Callable

from deploy.engine.http import Answer, Exchange

OnAnswer = Callable[[Answer], None]


class Exchanges:
    """The requests under way, by purpose. Selector entries carry the callback that moves them on."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self.selector = selector
        self.underway: dict[str, tuple[Exchange, OnAnswer]] = {}

    def busy(self, purpose: str) -> bool:
        """Whether a request of this purpose waits for its answer."""
        return purpose in self.underway

    def send(self, purpose: str, host: str, port: int, request: bytes, timeout_s: float, on_answer: OnAnswer) -> None:
        """Begin a request; `on_answer` is called exactly once, unless it is dropped before."""
        exchange = Exchange(host, port, request, deadline=time.monotonic() + timeout_s)
        self.underway[purpose] = (exchange, on_answer)
        if exchange.answer is not None:
            self._done(purpose)
            return
        self.selector.register(exchange, selectors.EVENT_WRITE, lambda: self._advance(purpose))

    def deadlines(self) -> list[float]:
        """Monotonic seconds at which a request expires."""
        return [exchange.deadline for exchange, _ in self.underway.values()]

    def expire(self, now: float) -> None:
        """End those whose time is over; their answers say so."""
        for purpose, (exchange, _) in list(self.underway.items()):
            if exchange.deadline <= now and self.underway.get(purpose, (None,))[0] is exchange:
                exchange.expire()
                self._done(purpose)

    def drop_all(self) -> None:
        """Give every request up; nobody is told."""
        for exchange, _ in self.underway.values():
            self._unregister(exchange)
            exchange.close()
        self.underway.clear()

    def _advance(self, purpose: str) -> None:
        exchange, _ = self.underway[purpose]
        exchange.advance()
        if exchange.answer is not None:
            self._done(purpose)
        elif not exchange.wants_write:
            self.selector.modify(exchange, selectors.EVENT_READ, lambda: self._advance(purpose))

    def _done(self, purpose: str) -> None:
        exchange, on_answer = self.underway.pop(purpose)
        self._unregister(exchange)
        assert exchange.answer is not None
        on_answer(exchange.answer)

    def _unregister(self, exchange: Exchange) -> None:
        with contextlib.suppress(KeyError):
            self.selector.unregister(exchange)
