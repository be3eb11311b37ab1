"""The metered routes: a request is read, priced and asks for a place; from then on it is a `Run`.

Nothing is charged before the body is understood, and nothing is sent before a place is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count

from fairlane.core.request import Prefix, Request
from fairlane.core.values import Usage
from fairlane.errors import Reason, Refused
from fairlane.gateway.admission import Admission
from fairlane.gateway.answers import allowance, allowance_lines
from fairlane.gateway.calls import prefix
from fairlane.gateway.calls.body import CHAT, Call, Route, read
from fairlane.gateway.identity import Caller, Identities
from fairlane.gateway.knowledge import Turns
from fairlane.gateway.links import EngineLink
from fairlane.gateway.run import Run
from fairlane.gateway.wire.exchange import Exchange
from fairlane.predict.estimate import Estimate, Estimator
from fairlane.predict.short import ShortRequests
from fairlane.predict.trained.boosted import Boosted
from fairlane.settings.model import Settings
from fairlane.telemetry.metrics import Metrics
from fairlane.telemetry.trail import Trail

FORWARDED_HEADERS = (b"accept", b"traceparent", b"tracestate")
MODELS_TOLD_MAX = 5  # in a refusal; all of them are at /v1/models
MODEL_NAME_MAX = 200  # characters of an unknown model's name that are logged


@dataclass(frozen=True)
class Model:
    """A model as clients name it: its pool, the name that engines know, and what is short for the pool's fast lane, if it has one.

    `affinity`: whether its requests are sent to where their prompts may be cached.
    """

    pool: str
    engine_name: str
    short: ShortRequests | None = None
    affinity: bool = True


def models(settings: Settings) -> dict[str, Model]:
    """Every model that clients may ask for, by the name that they know."""
    known: dict[str, Model] = {}
    for pool in settings.pools:
        lane = pool.fast_lane
        short = ShortRequests(lane.max_input, lane.max_output) if lane else None
        known |= {alias: Model(pool.name, name, short, pool.prefix_affinity) for alias, name in pool.aliases.items()}
    return known


@dataclass(frozen=True)
class Entry:
    """What the head of a request says, understood once for all requests with that head.

    `route` is None for the list of models, `asked_rank` where the head names no class, `request_id` where it has no fit one.
    `forwarded` are the header lines that the engine gets.
    """

    caller: Caller
    route: Route | None
    asked_rank: int | None
    request_id: str | None
    forwarded: bytes


def forwarded(headers: Mapping[bytes, bytes]) -> bytes:
    """The header lines of a client's request that its engine gets."""
    return b"".join([b"%b: %b\r\n" % (name, headers[name]) for name in FORWARDED_HEADERS if name in headers])


class Proxy:
    """Serves the metered routes. `tell` takes the trail of each request that ended, `on_error` our own mistakes."""

    def __init__(
        self,
        identities: Identities,
        models: Mapping[str, Model],
        classes: tuple[str, ...],
        *,
        links: Mapping[tuple[str, str], EngineLink],
        admission: Admission,
        metrics: Metrics,
        estimator: Estimator,
        tell: Callable[[Trail], None],
        on_error: Callable[[Exchange, Exception], None],
    ) -> None:
        self.links = links
        self.admission = admission
        self.metrics = metrics
        self.estimator = estimator
        self.turns = Turns()
        self.tell = tell
        self.on_error = on_error
        self._hinted = isinstance(estimator.lengths, Boosted)
        self._identities = identities
        self._models = models
        self._classes = classes
        self._last_rank = max(1, len(classes) - 1)  # whose requests do not use a fast lane, unless there is no other class
        self._class_lines = {name: b"x-fairlane-class: %b\r\n" % name.encode() for name in classes}
        self._ids = count(1)

    def serve(self, exchange: Exchange, route: Route, entry: Entry, trail: Trail) -> None:
        """Takes one request in; raises `Refused` where it does not even ask for a place. Else its `Run` answers it, and tells."""
        call = read(route, exchange.body, hinted=self._hinted)
        caller, name = entry.caller, call.model
        trail.model = name[:MODEL_NAME_MAX]
        model = self._models.get(name)
        if model is None or not caller.may_use(name):
            raise unknown_model(name, caller, self._models)
        rank = self._identities.rank(caller, entry.asked_rank, call)
        trail.cls = self._classes[rank]
        if self.admission.draining:
            raise Refused(Reason.DRAINING, retry_after_s=1.0)
        tenant = caller.tenant
        estimate = self._estimate(call, tenant.name, rank, trail.arrived_at)
        said = estimate.prediction
        longest = estimate.prompt_tokens if route is CHAT else estimate.prompt_tokens // call.choices
        request = Request(
            id=next(self._ids),
            tenant=tenant,
            pool=model.pool,
            rank=rank,
            model=name,
            prompt_tokens=estimate.prompt_tokens,
            output_tokens=estimate.output_tokens,
            limit_tokens=estimate.limit_tokens,
            longest_prompt=longest,
            max_tokens=longest + (call.cap or 0),
            arrived_at=trail.arrived_at,
            upper_tokens=0 if said is None else said.upper * call.choices,
            short=model.short is not None
            and rank < self._last_rank
            and model.short.is_short(estimate.asked, estimate.prompt_tokens, call.cap, call.choices),
            sequences=call.choices if route.caps else 1,
            streams=call.stream,
            prefix=self._prefix(call, model, tenant.name, estimate.prompt_tokens),
        )
        run = Run(self, exchange, trail, entry=entry, call=call, model=model, estimate=estimate, request=request)
        exchange.worker = run
        self.admission.enter(run, trail.arrived_at)

    def _estimate(self, call: Call, tenant: str, rank: int, now: float) -> Estimate:
        shape = call.shape
        before = self.turns.find(tenant, shape.before)
        previous, idle_s = (None, None) if before is None else (before.tokens, max(0.0, now - before.at))
        return self.estimator.estimate(
            tenant,
            call.model,
            call.prompt,
            call.cap,
            call.choices,
            rank=rank,
            template=shape.template,
            previous=previous,
            idle_s=idle_s,
            hints=shape.hints,
        )

    def _prefix(self, call: Call, model: Model, tenant: str, prompt_tokens: int) -> Prefix | None:
        """What the prompt shares with others, where there are several engines to choose from."""
        engines = self.admission.scheduler.pools[model.pool].places.engines
        return prefix.of(call, tenant, prompt_tokens) if model.affinity and len(engines) > 1 else None

    def learn(self, request: Request, call: Call, estimate: Estimate, usage: Usage, now: float, *, told: Mapping[str, object]) -> None:
        """Takes note of a finished answer, for requests like this one and for the next turn of its conversation.

        `told` is the usage as the engine wrote it.
        """
        self.metrics.cached(request.engine.spec.name, request.cached_tokens, usage.cached_tokens)
        if request.cached_tokens and prefix.is_told(told):
            self.admission.scheduler.pools[request.pool].placement.told(request, usage.cached_tokens)
        tenant, short = request.tenant.name, self._models[call.model].short
        if short is not None:
            short.learn(estimate.asked, usage.output_tokens)
        self.estimator.learn(tenant, call.model, call.prompt, estimate, usage, complete=True, now=now)
        self.turns.note(tenant, call.shape.turn, usage.output_tokens // call.choices, now)

    def in_numbers(self, refused: Refused, request: Request, call: Call) -> Refused:
        """A refusal by the caller's limit of tokens that tells the sizes of the request and of the limit."""
        state = self.admission.scheduler.tenants[request.tenant.name]
        rate, left = request.tenant.tokens, allowance(state.tokens, self.admission.time())
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
        lines = b"x-request-id: %b\r\n%b" % (trail.request_id.encode(), self._class_lines.get(trail.cls, b""))
        if trail.queue_s is not None:
            lines += b"x-fairlane-queue-ms: %d\r\n" % (trail.queue_s * 1000)
        tenant = caller.tenant
        if tenant.requests is None and tenant.tokens is None:
            return lines
        state = self.admission.scheduler.tenants.get(tenant.name)
        if state is None:
            return lines
        now = self.admission.time()
        return lines + allowance_lines(allowance(state.requests, now), allowance(state.tokens, now))


def unknown_model(name: str, caller: Caller, models: Iterable[str]) -> Refused:
    """The refusal of a model that the caller may not use or that is none, with some that it may use."""
    usable = [repr(model) for model in models if caller.may_use(model)]
    told, more = ", ".join(usable[:MODELS_TOLD_MAX]), " and others" if len(usable) > MODELS_TOLD_MAX else ""
    hint = f" You may use {told}{more}." if usable else ""
    return Refused(Reason.MODEL_NOT_FOUND, f"The model {name[:100]!r} does not exist or you do not have access to it.{hint}")
