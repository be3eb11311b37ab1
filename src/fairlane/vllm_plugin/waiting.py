"""vLLM's waiting requests, kept in Fairlane's order: what vLLM's scheduler uses in the place of its own `RequestQueue`.

vLLM looks at the first request and takes it, either into the batch or aside, because it cannot run yet (its grammar is being compiled,
no LoRA slot is free). Taking charges it. What was set aside comes back by `prepend_requests` at the end of the step, and is
charged nothing. What ran and was preempted for want of KV comes back the same way: it stands before all others, as in vLLM's own
queue, and stays charged.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from fairlane.core.request import Request
from fairlane.core.scheduler import CHARGE_STEP
from fairlane.core.values import WAITING, CostWeights, Usage
from fairlane.vllm_plugin.asked import EngineRequest
from fairlane.vllm_plugin.order import BatchOrder


@dataclass(eq=False, slots=True)
class Entry:
    """A request of vLLM from its arrival to its end, and what it is in the order."""

    engine: EngineRequest
    request: Request
    cached_tokens: int = 0  # of its prompt, found in vLLM's prefix cache or loaded from elsewhere


class WaitingRequests:
    """The methods of vLLM's `RequestQueue`, and two more: `progress` and `finish` for what has been taken."""

    def __init__(self, order: BatchOrder, read: Callable[[EngineRequest], Request], weights: CostWeights) -> None:
        self.order = order
        self._read = read
        self._weights = weights
        self._entries: dict[str, Entry] = {}  # of all that waits or was taken and has not ended, by vLLM's id
        self._waiting: dict[int, Entry] = {}  # of what waits in the order, by the order's id
        self._resumed: deque[EngineRequest] = deque()  # first in line: they were charged when they were taken first

    def add_request(self, request: EngineRequest) -> None:
        """Puts a new request into the order; one that was taken before goes on, and stands before those."""
        if request.request_id in self._entries:
            self._resumed.append(request)
        else:
            self._entries[request.request_id] = entry = Entry(request, self._read(request))
            self._waiting[entry.request.id] = entry
            self.order.add(entry.request)

    def peek_request(self) -> EngineRequest:
        """The request whose turn it is; the same that `pop_request` gives, as long as nothing changes between."""
        if self._resumed:
            return self._resumed[0]
        if not self._waiting:
            raise IndexError("nothing waits")
        return self._waiting[self.order.first().id].engine

    def pop_request(self) -> EngineRequest:
        """Takes the request whose turn it is, and charges it unless it was charged before."""
        if self._resumed:
            return self._resumed.popleft()
        if not self._waiting:
            raise IndexError("nothing waits")
        entry = self._waiting.pop(self.order.start().id)
        stats = entry.engine.prefill_stats
        entry.cached_tokens = 0 if stats is None else stats.num_cached_tokens
        return entry.engine

    def prepend_request(self, request: EngineRequest) -> None:
        """Takes back what was preempted, to the front, or was set aside, to its place."""
        entry = self._entries.get(request.request_id)
        if entry is None or request.num_preemptions:
            self._resumed.appendleft(request)
        else:
            self.order.put_back(entry.request)
            self._waiting[entry.request.id] = entry

    def prepend_requests(self, requests: Iterable[EngineRequest]) -> None:
        """The same for each; as in vLLM's own queue the last comes to stand first."""
        for request in requests:
            self.prepend_request(request)

    def remove_request(self, request: EngineRequest) -> None:
        """Takes out a request that is to end, wherever it stands in line; one that is not in it stays where it is."""
        entry = self._entries.get(request.request_id)
        if entry is not None and entry.request.state is WAITING:
            del self._entries[request.request_id], self._waiting[entry.request.id]
            self.order.remove(entry.request)
        elif request in self._resumed:
            self._resumed.remove(request)

    def remove_requests(self, requests: Iterable[EngineRequest]) -> None:
        """The same for each."""
        for request in requests:
            self.remove_request(request)

    def progress(self, request: EngineRequest) -> None:
        """Charges a running request for what it has produced beyond its prediction, in steps."""
        entry = self._entries.get(request.request_id)
        if entry is None:
            return
        booked = entry.request
        extra = (request.num_output_tokens - booked.output_tokens) // CHARGE_STEP * CHARGE_STEP - booked.charged_beyond
        if extra > 0:
            booked.charged_beyond += extra
            self.order.progress(booked, self._weights.output * extra)

    def finish(self, request: EngineRequest) -> None:
        """A request is over, at its end or aborted: what was taken is settled to what it used. Idempotent."""
        self.remove_request(request)
        entry = self._entries.pop(request.request_id, None)
        if entry is not None:
            self.order.settle(entry.request, self._weights.cost(used(entry)))

    def __len__(self) -> int:
        return len(self._resumed) + len(self._waiting)

    def __bool__(self) -> bool:
        return bool(self._resumed or self._waiting)

    def __iter__(self) -> Iterator[EngineRequest]:
        """First what was preempted, then the others by arrival: their order depends on what the first of them will be charged."""
        yield from self._resumed
        yield from (entry.engine for entry in self._waiting.values())


def used(entry: Entry) -> Usage:
    """What a request has used so far: of a prompt that is being prefilled, as much as was computed."""
    engine = entry.engine
    prompt = engine.num_prompt_tokens
    if not engine.num_output_tokens and not engine.num_preemptions:  # a preemption sets back what was computed
        prompt = min(prompt, engine.num_computed_tokens)
    return Usage(prompt, engine.num_output_tokens, min(entry.cached_tokens, prompt))
