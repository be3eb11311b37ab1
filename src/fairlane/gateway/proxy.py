"""The life of one metered request: read, priced, admitted, sent to the engine it was given, relayed, settled.

The order matters. Nothing is charged before the body is understood; nothing is sent before a place is held; the place is
free with the engine's last byte, and the tenant's with the client's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from fairlane.core.scheduler import Scheduler
from fairlane.core.values import Outcome, Request, Usage
from fairlane.errors import Reason, Refused
from fairlane.gateway.admission import Admission, Lease
from fairlane.gateway.answers import allowance_lines
from fairlane.gateway.calls.body import CHAT, Call, Route, read, rewrite
from fairlane.gateway.identity import Caller, Identities
from fairlane.gateway.links import EngineLink
from fairlane.gateway.trail import Trail
from fairlane.gateway.wire.exchange import Exchange
from fairlane.gateway.wire.relay import Relay
from fairlane.gateway.wire.upstream import OUT_OF_DESCRIPTORS, ConnectFailed, UpstreamConnection
from fairlane.predict.estimate import Estimate, Estimator
from fairlane.telemetry.metrics import Metrics

OWNED_FIELDS = frozenset({"priority", "n_predict"})  # an engine would order by the one, and take the other for the cap
FORWARDED_HEADERS = (b"accept", b"traceparent", b"tracestate")
MODELS_TOLD_MAX = 5  # in a refusal; all of them are at /v1/models
MODEL_NAME_MAX = 200  # characters of an unknown model's name that are logged
RECOVER_S = 2.0  # how long a request waits for the only engine to come back, after it could not be reached
_OK_MAX = 399
_TOKEN_LIMITS = frozenset({Reason.RATE_LIMIT_TOKENS, Reason.REQUEST_OVER_LIMIT})


@dataclass(frozen=True, slots=True)
class Model:
    """A model as clients name it: its pool, and the name that engines know."""

    pool: str
    engine_name: str


@dataclass(frozen=True, slots=True)
class _Run:
    """One admitted request."""

    call: Call
    model: Model
    caller: Caller
    estimate: Estimate
    lease: Lease
    trail: Trail

    @property
    def asks_usage(self) -> bool:
        """Whether the gateway asks for the usage of a stream whose client did not."""
        return self.call.stream and not self.call.include_usage

    @property
    def set_fields(self) -> dict[str, bytes]:
        """Fields of the body that the gateway sets."""
        return {"stream_options": self.call.stream_options} if self.asks_usage else {}

    def usage(self, relay: Relay, outcome: Outcome, link: EngineLink) -> Usage | None:
        """What the request consumed: as the engine reports it, else the estimate of the prompt and the events that came.

        Of an answer that comes as a whole and was given up, what the engine will have made of it in that time. None, nothing,
        for an error answer and for a failure before any output.
        """
        if relay.usage is not None:
            return _reported(relay.usage)
        estimate = self.estimate
        if outcome is Outcome.COMPLETED:
            return Usage(estimate.prompt_tokens, relay.events if self.call.stream else estimate.output_tokens)
        if relay.events or (outcome is Outcome.CANCELLED and relay.status <= _OK_MAX):
            return Usage(estimate.prompt_tokens, relay.events if self.call.stream else self._produced(link))
        return None

    def _produced(self, link: EngineLink) -> int:
        """Tokens of an answer that nobody waited for: by the time it ran, at most what was expected."""
        ran_s = time.monotonic() - self.lease.started_at
        return min(self.estimate.output_tokens, link.tokens_in(ran_s))


class Proxy:
    """Serves the metered routes."""

    def __init__(
        self,
        identities: Identities,
        models: Mapping[str, Model],
        classes: tuple[str, ...],
        *,
        links: Mapping[tuple[str, str], EngineLink],
        admission: Admission,
        metrics: Metrics,
    ) -> None:
        self._identities = identities
        self._models = models
        self._classes = classes
        self._class_lines = tuple(b"x-fairlane-class: %b\r\n" % name.encode() for name in classes)
        self._links = links
        self._admission = admission
        self._scheduler: Scheduler = admission.scheduler
        self._estimator = Estimator()
        self._metrics = metrics
        self._ids = count(1)

    async def serve(self, exchange: Exchange, route: Route, caller: Caller, trail: Trail) -> None:
        """Answers one request; raises `Refused` as long as nothing of an answer was sent."""
        call = read(route, exchange.body)
        trail.model = call.model[:MODEL_NAME_MAX]
        model = self._models.get(call.model)
        if model is None or not caller.may_use(call.model):
            raise unknown_model(call.model, caller, self._models)
        rank = self._identities.rank(caller, exchange, call)
        trail.cls = self._classes[rank]
        estimate = self._estimator.estimate(caller.tenant.name, call.model, call.prompt, call.cap, call.choices)
        longest = estimate.prompt_tokens if call.route is CHAT else estimate.prompt_tokens // call.choices
        request = Request(
            id=next(self._ids),
            tenant=caller.tenant,
            pool=model.pool,
            rank=rank,
            model=call.model,
            prompt_tokens=estimate.prompt_tokens,
            output_tokens=estimate.output_tokens,
            limit_tokens=estimate.limit_tokens,
            longest_prompt=longest,
            max_tokens=longest + (call.cap or 0),
            arrived_at=trail.arrived_at,
            streams=call.stream,
        )
        try:
            async with self._admission.admit(request) as lease:
                await self._run(exchange, _Run(call, model, caller, estimate, lease, trail))
                await exchange.flushed()
        except Refused as refused:
            if refused.reason not in _TOKEN_LIMITS:
                raise
            raise self._in_numbers(refused, request, call) from None

    def _in_numbers(self, refused: Refused, request: Request, call: Call) -> Refused:
        """A refusal by the caller's limit of tokens that tells the sizes of the request and of the limit."""
        rate, (_, left) = request.tenant.tokens, self._scheduler.tenants[request.tenant.name].allowances(self._admission.time())
        if rate is None or left is None:
            return refused
        cure = " Set max_tokens to lower it." if call.cap is None else ""
        if refused.reason is Reason.REQUEST_OVER_LIMIT:
            text = f"This request may use {request.limit_tokens} tokens; your limit holds {left.limit} at most.{cure}"
        else:
            text = (
                f"This request is expected to use {request.limit_tokens} tokens; "
                f"{left.remaining} of your {left.limit} are left ({60 * rate.per_s:.10g} a minute).{cure}"
            )
        return Refused(refused.reason, text, retry_after_s=refused.retry_after_s)

    def answer_lines(self, caller: Caller, trail: Trail) -> bytes:
        """The headers of every answer to this caller: its class, its wait, and what is left of its limits."""
        lines = b"x-request-id: %b\r\n" % trail.request_id.encode()
        if trail.cls in self._classes:
            lines += self._class_lines[self._classes.index(trail.cls)]
        if trail.queue_s is not None:
            lines += b"x-fairlane-queue-ms: %d\r\n" % (trail.queue_s * 1000)
        if caller.tenant.requests is None and caller.tenant.tokens is None:
            return lines
        state = self._scheduler.tenants.get(caller.tenant.name)
        if state is None:
            return lines
        requests, tokens = state.allowances(self._admission.time())
        return lines + allowance_lines(((b"requests", requests), (b"tokens", tokens)))

    async def _run(self, exchange: Exchange, run: _Run) -> None:
        """Sends the request to its engine and settles it when the engine's part is over."""
        link, connection = await self._connect(run)
        message = self._message(exchange, run, link)
        relay = Relay(
            exchange,
            connection,
            lambda _: self.answer_lines(run.caller, run.trail),
            first_byte_s=link.settings.first_byte_s,
            idle_s=link.settings.idle_s,
            stream=run.call.stream,
            hide_usage=run.asks_usage,
        )
        relay.on_progress = lambda produced: self._admission.progress(run.lease.request, produced)
        try:
            await relay.run(message)
        except asyncio.CancelledError:
            self._settle(run, link, relay, Outcome.CANCELLED)
            raise
        self._finish(run, link, relay)

    async def _connect(self, run: _Run) -> tuple[EngineLink, UpstreamConnection]:
        """A connection to the engine of the lease. An engine that is not there costs the request its turn, not its life."""
        for last in (False, True):
            lease, trail = run.lease, run.trail
            link = self._links[run.model.pool, lease.engine]
            trail.engine = link.name
            trail.queue_s = lease.started_at - trail.arrived_at
            try:
                connection = await link.connect()
            except ConnectFailed as failure:
                self._metrics.engine_failed(link.name, "unreachable")
                if failure.why == OUT_OF_DESCRIPTORS:
                    raise Refused(Reason.NO_ENGINE) from None
                link.unreachable(f"could not be reached: {failure.why}")
                if last:
                    raise Refused(Reason.ENGINE_UNREACHABLE) from None
                await self._wait_again(run)
            else:
                self._metrics.waited(trail.cls, trail.queue_s)
                return link, connection
        raise AssertionError("unreachable")

    async def _wait_again(self, run: _Run) -> None:
        """Waits for another engine, or for a short while for this one to come back."""
        pool = run.model.pool
        others = any(link.up for link in self._links.values() if link.pool == pool)
        try:
            async with asyncio.timeout(None if others else RECOVER_S):
                await run.lease.again()
        except TimeoutError:
            raise Refused(Reason.ENGINE_UNREACHABLE) from None

    def _message(self, exchange: Exchange, run: _Run, link: EngineLink) -> bytes:
        """The whole request for the engine: the headers that it needs, and the body with our fields put right."""
        body = rewrite(exchange.body, run.call, model=run.model.engine_name, drop=OWNED_FIELDS, set_fields=run.set_fields)
        lines = [link.head(run.call.route.path)]
        for name in FORWARDED_HEADERS:
            value = exchange.headers.get(name)
            if value is not None:
                lines.append(b"%b: %b\r\n" % (name, value))
        lines.append(b"x-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (run.trail.request_id.encode(), len(body)))
        lines.append(body)
        return b"".join(lines)

    def _finish(self, run: _Run, link: EngineLink, relay: Relay) -> None:
        """Settles an answer that ended by itself, well or not."""
        if relay.failure is not None:
            link.broke()
            self._metrics.engine_failed(link.name, relay.failure)
            self._settle(run, link, relay, Outcome.FAILED)
            reason = Reason.ENGINE_TIMEOUT if relay.failure == "timeout" else Reason.ENGINE_FAILED
            run.trail.reason = reason
            if not relay.started:
                raise Refused(reason)
            return
        link.succeeded()
        if relay.refused or relay.status > _OK_MAX:
            self._metrics.engine_refused(link.name, relay.status)
            run.trail.reason = "engine_refused"
            self._settle(run, link, relay, Outcome.FAILED)
        else:
            self._settle(run, link, relay, Outcome.COMPLETED)
            link.note_speed(run.trail.tokens_out or 0, time.monotonic() - run.lease.started_at)

    def _settle(self, run: _Run, link: EngineLink, relay: Relay, outcome: Outcome) -> None:
        """Frees the place and tells what the request used."""
        trail = run.trail
        usage = run.usage(relay, outcome, link)
        trail.outcome = outcome
        trail.status = relay.status
        run.lease.settle(usage, outcome)
        if relay.first_byte_at is not None:
            trail.ttft_s = relay.first_byte_at - trail.arrived_at
            self._metrics.first_token(trail.cls, trail.ttft_s)
        if usage is None:
            return
        trail.tokens_in, trail.tokens_out = usage.prompt_tokens, usage.output_tokens
        self._metrics.served(link.pool, trail.cls, usage.prompt_tokens, usage.output_tokens, run.lease.request.cost, tenant=trail.caller)
        if outcome is Outcome.COMPLETED and relay.usage is not None:
            call = run.call
            self._estimator.learn(run.caller.tenant.name, call.model, call.prompt, run.estimate, usage, complete=True)


def unknown_model(name: str, caller: Caller, models: Iterable[str]) -> Refused:
    """The refusal of a model that the caller may not use or that is none, with some that it may use."""
    usable = [repr(model) for model in models if caller.may_use(model)]
    told, more = ", ".join(usable[:MODELS_TOLD_MAX]), " and others" if len(usable) > MODELS_TOLD_MAX else ""
    hint = f" You may use {told}{more}." if usable else ""
    return Refused(Reason.MODEL_NOT_FOUND, f"The model {name[:100]!r} does not exist or you do not have access to it.{hint}")


def _reported(usage: Mapping[str, Any]) -> Usage:
    """An engine's usage object; what is missing or no number counts as 0."""
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")), _count(cached))


def _count(value: object) -> int:
    return max(0, value) if isinstance(value, int) else 0
