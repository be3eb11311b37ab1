"""The life of one admitted request: it waits, is sent to the engine it was given, relayed, settled.

It is driven by callbacks alone, so it costs no task: admission tells it to start or that it is shed, the relay when the
engine's part is over, the wire when the client has left or has its last byte. Whichever comes, and in whichever order, it ends
once, and what it holds is freed. The place is free with the engine's last byte, and the tenant's with the client's.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from fairlane.core.request import Request
from fairlane.core.values import Outcome, Usage
from fairlane.errors import Reason, Refused
from fairlane.gateway.answers import refusal
from fairlane.gateway.calls import order
from fairlane.gateway.calls.body import Call, rewrite
from fairlane.gateway.calls.usage import OK_MAX, reported, unreported
from fairlane.gateway.links import EngineLink
from fairlane.gateway.wire.exchange import Exchange
from fairlane.gateway.wire.relay import Relay
from fairlane.gateway.wire.upstream import OUT_OF_DESCRIPTORS, ConnectFailed, UpstreamConnection
from fairlane.predict.estimate import Estimate
from fairlane.telemetry.trail import Trail

if TYPE_CHECKING:
    from fairlane.gateway.proxy import Entry, Model, Proxy

OWNED_FIELDS = frozenset({"priority", "n_predict"})  # an engine would order by the one, and take the other for the cap
RECOVER_S = 2.0  # how long a request waits for the only engine to come back, after it could not be reached
MADE_MARGIN = 2  # an answer's pace is known as a mean, prompts included: it may have as many times the tokens
_TOKEN_LIMITS = frozenset({Reason.RATE_LIMIT_TOKENS, Reason.REQUEST_OVER_LIMIT})


class Run:
    """One request, from the moment it asks for a place. A holder of admission and the worker of its exchange."""

    __slots__ = (
        "_beside",
        "_call",
        "_connecting",
        "_counted",
        "_entry",
        "_estimate",
        "_exchange",
        "_link",
        "_model",
        "_over",
        "_proxy",
        "_relay",
        "_started_at",
        "_timer",
        "_trail",
        "_tried",
        "_turned_back",
        "request",
    )

    def __init__(
        self,
        proxy: Proxy,
        exchange: Exchange,
        trail: Trail,
        *,
        entry: Entry,
        call: Call,
        model: Model,
        estimate: Estimate,
        request: Request,
    ) -> None:
        self.request = request
        self._proxy = proxy
        self._exchange = exchange
        self._trail = trail
        self._entry = entry
        self._call = call
        self._model = model
        self._estimate = estimate
        self._link: EngineLink | None = None
        self._relay: Relay | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._started_at = 0.0
        self._beside = 0  # requests that ran on the engine when this one started, itself included
        self._counted = 0  # output tokens that the engine's count has of it
        self._turned_back = False  # by an engine that was full
        self._tried = False  # one connection could not be had, or was closed before anything was written to it
        self._over = False

    # What admission tells.

    def start(self, engine: str, now: float) -> None:
        """Sends the request to this engine."""
        try:
            self._stop_waiting()
            self._started_at = now
            self._beside = self.request.engine.limit.running
            self._trail.engine = engine
            if self._exchange.gone:
                self.abandon()
                return
            self._link = link = self._proxy.links[self._model.pool, engine]
            connection = link.acquire()
            if connection is None:
                self._connect(link)
            else:
                self._send(link, connection)
        except Exception as error:  # noqa: BLE001 - see Holder
            self._fail(error)

    def shed(self, refused: Refused) -> None:
        """Answers that there is no place."""
        try:
            if refused.reason in _TOKEN_LIMITS:
                refused = self._proxy.in_numbers(refused, self.request, self._call)
            self._refuse(refused)
        except Exception as error:  # noqa: BLE001 - see Holder
            self._fail(error)

    def made(self, now: float) -> int | None:
        """Output tokens that its engine has made of it at most; None where the client has some, or the engine has not got it or goes on."""
        relay, link = self._relay, self._link
        if self._over or relay is None or link is None or relay.failure is not None or self._exchange.started:
            return None
        if self._call.stream or link.lingering.works_on:
            return 1 if self._call.stream else None
        return MADE_MARGIN * self._call.choices * link.speed.tokens_in(now - self._started_at)

    def give_way(self, tokens: int) -> None:
        """Stops at its engine, where so many tokens were made in vain, and waits again in its old place."""
        try:
            if self._relay is not None:
                self._relay.abandon()
            self._relay = None
            self._trail.gave_way(tokens)
            self._proxy.metrics.yielded(self._trail.cls, tokens)
            self._proxy.admission.again(self)
        except Exception as error:  # noqa: BLE001 - see Holder
            self._fail(error)

    # What the wire tells.

    def abandon(self) -> None:
        """Nobody waits for the answer any more."""
        if self._over:
            return
        try:
            relay, link = self._relay, self._link
            if relay is not None and link is not None:
                relay.abandon()
                link.lingering.add(self.request.sequences)
                self._settle(link, relay, Outcome.CANCELLED)
            self._trail.outcome = Outcome.CANCELLED
            self._end(Outcome.CANCELLED)
        except Exception as error:  # noqa: BLE001 - the place must be freed all the same
            self._fail(error)

    def cut(self) -> None:
        """The gateway stops: what the engine has done until now is settled, and the client is told, or sees the break.

        An answer that is there in full is left to reach its client.
        """
        try:
            relay, link = self._relay, self._link
            if relay is None and self._exchange.started:
                return
            if relay is not None and link is not None:
                relay.abandon()
                self._settle(link, relay, Outcome.CANCELLED)
            self._break_off(Reason.DRAINING)
        except Exception as error:  # noqa: BLE001 - the others are to be cut, too
            self._fail(error)

    # The connection.

    def _connect(self, link: EngineLink) -> None:
        self._connecting = asyncio.get_running_loop().create_task(self._open(link))

    async def _open(self, link: EngineLink) -> None:
        """Makes a connection. An engine that is not there costs the request its turn, not its life."""
        try:
            try:
                connection = await link.connect()
            except ConnectFailed as failure:
                self._connecting = None
                self._unreached(link, failure.why)
            else:
                self._connecting = None
                self._send(link, connection)
        except Exception as error:  # noqa: BLE001 - the last resort of a task
            self._fail(error)

    def _unreached(self, link: EngineLink, why: str) -> None:
        """Waits for another engine, or for a short while for this one to come back."""
        proxy = self._proxy
        proxy.metrics.engine_failed(link.name, "unreachable")
        if why == OUT_OF_DESCRIPTORS:
            self._refuse(Refused(Reason.NO_ENGINE))
            return
        link.unreachable(f"could not be reached: {why}")
        if self._tried:
            self._refuse(Refused(Reason.ENGINE_UNREACHABLE))
            return
        self._tried = True
        if not any(other.open for other in proxy.links.values() if other.pool == link.pool):
            self._timer = asyncio.get_running_loop().call_later(RECOVER_S, self.shed, Refused(Reason.ENGINE_UNREACHABLE))
        proxy.admission.again(self)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # The answer.

    def _send(self, link: EngineLink, connection: UpstreamConnection) -> None:
        call, settings, trail = self._call, link.settings, self._trail
        waited_s = self._started_at - trail.arrived_at
        if trail.queue_s is None:  # one that is sent again has been counted
            self._proxy.metrics.waited(trail.cls, waited_s)
        trail.queue_s = waited_s
        self._relay = relay = Relay(
            self._exchange,
            connection,
            self._lines,
            self._relayed,
            first_byte_s=settings.first_byte_s,
            idle_s=settings.idle_s,
            stream=call.stream,
            hide_usage=call.stream and not call.include_usage,
            full_status=0 if self._turned_back else link.full_status,
        )
        if call.stream:
            relay.on_progress = self._progress
        relay.start(self._message(link))

    def _message(self, link: EngineLink) -> bytes:
        """The whole request for the engine: the headers that it needs, and the body with our fields put right."""
        call, request = self._call, self.request
        ours = {"stream_options": call.stream_options} if call.stream and not call.include_usage else {}
        if link.priority_sign:
            ours["priority"] = b"%d" % (link.priority_sign * order.stamp(request, time.time_ns() // 1000, link.step_us))
        if link.settings.scheduler_plugin and call.route.caps:
            ours["vllm_xargs"] = order.xargs(request, call)
        body = rewrite(
            self._exchange.body,
            call,
            model=self._model.engine_name,
            drop=OWNED_FIELDS,
            set_fields=ours,
        )
        return b"%b%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n%b" % (
            link.head(call.route.path),
            self._entry.forwarded,
            order.engine_id(self._trail.request_id),
            len(body),
            body,
        )

    def _lines(self, _status: int) -> bytes:
        return self._proxy.answer_lines(self._entry.caller, self._trail)

    def _progress(self, produced: int) -> None:
        if self._trail.ttft_s is None and self._relay is not None:
            self._note_first_token(self._relay)
        if self._link is not None:
            self._link.counts.tokens += produced - self._counted
            self._counted = produced
        self._proxy.admission.progress(self.request, produced)

    def _note_first_token(self, relay: Relay) -> None:
        trail, at = self._trail, relay.first_byte_at
        if at is not None:
            trail.ttft_s = ttft_s = at - trail.arrived_at
            self._proxy.metrics.first_token(trail.cls, ttft_s)
            if self._call.stream and self._link is not None:
                beside = max(self._beside, self.request.engine.limit.running)
                self._link.counts.first_token(at - self._started_at, beside, at)
                self._link.heeding.first_token(self.request, self._started_at, at)

    def _relayed(self, relay: Relay) -> None:
        """The engine's part is over."""
        try:
            link = self._link
            if link is not None and not self._over:
                self._finish(link, relay)
        except Exception as error:  # noqa: BLE001 - nobody above could free what this request holds
            self._fail(error)

    def _finish(self, link: EngineLink, relay: Relay) -> None:
        """Settles an answer that ended by itself, well or not."""
        trail = self._trail
        if relay.full:
            self._relay, self._turned_back = None, True
            self._note_full(link, link.full_status)
            self._proxy.admission.again(self)
            return
        if relay.failure is not None:
            if relay.unsent and not self._tried:
                self._tried, self._relay = True, None
                self._connect(link)
                return
            link.broke()
            link.lingering.add(self.request.sequences if relay.failure == "timeout" else 0)
            self._proxy.metrics.engine_failed(link.name, relay.failure)
            self._settle(link, relay, Outcome.FAILED)
            trail.reason = reason = Reason.ENGINE_TIMEOUT if relay.failure == "timeout" else Reason.ENGINE_FAILED
            if not self._exchange.started:
                self._refuse(Refused(reason))
                return
        elif relay.refused or relay.status > OK_MAX:
            link.succeeded(0, 0.0)
            self._note_full(link, relay.status)
            trail.reason = "engine_refused"
            self._settle(link, relay, Outcome.FAILED)
        else:
            now = self._settle(link, relay, Outcome.COMPLETED)
            link.succeeded(trail.tokens_out or 0, now - self._started_at)
        self._relay = None
        self._exchange.when_flushed(self._flushed)

    def _note_full(self, link: EngineLink, status: int) -> None:
        """Counts an engine's refusal; one for want of room keeps further requests from it for a moment."""
        self._proxy.metrics.engine_refused(link.name, status)
        link.refused(status, self.request.engine.limit.running - self.request.sequences)

    def _settle(self, link: EngineLink, relay: Relay, outcome: Outcome) -> float:
        """Frees the place and tells what the request used. Returns the time."""
        trail, proxy = self._trail, self._proxy
        now = time.monotonic()
        usage = self._usage(link, relay, outcome, now)
        trail.outcome = outcome
        trail.status = relay.status
        proxy.admission.settle(self.request, usage, outcome, now)
        if trail.ttft_s is None:
            self._note_first_token(relay)
        if usage is None:
            return now
        trail.tokens_in, trail.tokens_out = usage.prompt_tokens, usage.output_tokens
        trail.pool, trail.cost = link.pool, self.request.cost
        link.counts.tokens += usage.output_tokens - self._counted
        if outcome is Outcome.COMPLETED and relay.usage is not None:
            if self._call.stream and relay.first_byte_at is not None and not relay.slowed:
                link.counts.answered(usage.output_tokens, now - relay.first_byte_at, now)
            proxy.learn(self.request, self._call, self._estimate, usage, now, told=relay.usage)
        return now

    def _usage(self, link: EngineLink, relay: Relay, outcome: Outcome, now: float) -> Usage | None:
        """What the request consumed, as the engine reports it, else as far as it can be told."""
        if relay.usage is not None:
            return reported(relay.usage)
        events = relay.events if self._call.stream else None
        return unreported(self._estimate, outcome, relay.status, events=events, made=link.speed.tokens_in(now - self._started_at))

    # The end.

    def _flushed(self) -> None:
        self._end(Outcome.COMPLETED)

    def _refuse(self, refused: Refused) -> None:
        """Gives the client an error answer of ours."""
        trail = self._trail
        trail.refuse(refused)
        self._proxy.admission.leave(self.request, Outcome.FAILED)
        self._exchange.respond(*refusal(refused, self._lines(trail.status)))
        self._end(Outcome.FAILED)

    def _fail(self, error: Exception) -> None:
        """A mistake of ours: this request ends, and nothing else."""
        self._proxy.on_error(self._exchange, error)
        self._break_off(Reason.INTERNAL)

    def _break_off(self, reason: Reason) -> None:
        """Gives the client an error answer of ours, or a visible break if it has a part of the engine's."""
        if self._over:
            return
        if self._relay is not None:
            self._relay.abandon()
        if self._exchange.started:
            self._trail.reason, self._trail.outcome = reason, Outcome.FAILED
            self._exchange.abort()
            self._end(Outcome.FAILED)
        else:
            self._exchange.keep_alive = False
            self._refuse(Refused(reason))

    def _end(self, outcome: Outcome) -> None:
        """Frees what is left and tells of the request, once."""
        if self._over:
            return
        self._over = True
        self._stop_waiting()
        if self._connecting is not None:
            self._connecting.cancel()
        self._exchange.worker = None  # what refers to each other would wait for the collector
        self._relay = None
        self._proxy.admission.leave(self.request, outcome)
        self._proxy.tell(self._trail)
