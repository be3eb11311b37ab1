"""What the gateway shows of itself: the rows behind the gauges, and the state page."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fairlane.core.flows import ClassQueue
from fairlane.core.values import BASIS_POINTS
from fairlane.engines.adapter import Gauges
from fairlane.gateway.answers import allowance
from fairlane.gateway.links import EngineLink
from fairlane.telemetry.metrics import ClassSample, EngineSample, Sample
from fairlane.telemetry.table import ANONYMOUS

if TYPE_CHECKING:
    from fairlane.gateway.app import Gateway


_SAID = {"cls": "class"}  # what a Python name cannot be


class View:
    """Reads a gateway; changes nothing."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._configured = frozenset(tenant.name for tenant in gateway.settings.tenants)

    def sample(self) -> Sample:
        """All gauges at this moment."""
        now = time.monotonic()
        pools = self._gateway.scheduler.pools
        return Sample(
            classes=[
                ClassSample(
                    pool.name,
                    queue.spec.name,
                    backlog_requests=queue.queued,
                    backlog_cost=queue.cost,
                    running=queue.running,
                    oldest_waiting_s=_oldest_wait_s(queue, now),
                    min_share_ratio=queue.spec.min_share / BASIS_POINTS,
                )
                for pool in pools.values()
                for queue in pool.queues
            ],
            engines=[self._engine(link) for link in self._gateway.links.values()],
            tenants_running=self._tenants_running(),
            client_connections=len(self._gateway.http.connections),
        )

    def state(self) -> dict[str, Any]:
        """Everything of `sample`, and what is left of each tenant's limits, as plain values for people and scripts."""
        sample = self.sample()
        ready, reason = self._gateway.ready()
        return {
            "ready": ready,
            "reason": reason,
            "classes": [{_SAID.get(name, name): value for name, value in asdict(row).items()} for row in sample.classes],
            "engines": self.engines(),
            "tenants": list(self._tenants().values()),
            "client_connections": sample.client_connections,
        }

    def engines(self) -> list[dict[str, Any]]:
        """Every engine: its row of `sample`, whether it leaves for good, what is wrong with it, what it costs, what was learned of it."""
        return [
            asdict(self._engine(link))
            | {"kind": link.settings.kind, "leaving": link.leaving, "problem": link.problem, "price_per_hour": link.settings.price_per_hour}
            | {"placement": self._gateway.scheduler.pools[link.pool].placement.shown(link.name)}
            for link in self._gateway.links.values()
        ]

    def _tenants(self) -> dict[str, dict[str, Any]]:
        """What each tenant that was seen has running, waiting and left. Callers without a key have limits each for itself."""
        now = time.monotonic()
        rows: dict[str, dict[str, Any]] = {}
        for name, state in self._gateway.scheduler.tenants.items():
            label = self._label(name)
            row = rows.setdefault(label, {"tenant": label, "running": 0, "waiting": 0})
            row["running"] += state.running
            row["waiting"] += state.queued
            if label != ANONYMOUS:
                requests, tokens = allowance(state.requests, now), allowance(state.tokens, now)
                row["requests_left"] = requests and {"limit": requests.limit, "remaining": requests.remaining}
                row["tokens_left"] = tokens and {"limit": tokens.limit, "remaining": tokens.remaining}
        return rows

    def _label(self, tenant: str) -> str:
        return tenant if tenant in self._configured else ANONYMOUS

    def _engine(self, link: EngineLink) -> EngineSample:
        told = link.gauges or Gauges()
        return EngineSample(
            link.pool,
            link.name,
            running=self._running(link.pool, link.name),
            slots=link.spec.slots,
            up=link.up,
            draining=link.draining or link.leaving,
            measured=link.measured,
            told_running=told.running or 0,
            told_waiting=told.waiting or 0,
            kv_ratio=told.kv_ratio or 0.0,
            preemptions=told.preemptions or 0,
            limit_move=link.limit.last_move if link.limit else None,
            heeds_priority=link.heeding.heeds,
            kv_limit_ratio=link.limit.kv_ratio if link.limit else 1.0,
        )

    def _running(self, pool: str, engine: str) -> int:
        state = self._gateway.scheduler.pools[pool].places.engines.get(engine)
        return state.limit.running if state else 0

    def _tenants_running(self) -> dict[str, int]:
        running: dict[str, int] = {}
        for name, state in self._gateway.scheduler.tenants.items():
            label = self._label(name)
            running[label] = running.get(label, 0) + state.running
        return running


def _oldest_wait_s(queue: ClassQueue, now: float) -> float:
    return max((now - next(iter(flow.waiting.values())).arrived_at for flow in queue.waiting_flows), default=0.0)
