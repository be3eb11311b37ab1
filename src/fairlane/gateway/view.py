"""What the gateway shows of itself: the rows behind the gauges, and the state page."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from fairlane.core.flows import ClassQueue
from fairlane.core.values import BASIS_POINTS
from fairlane.telemetry.metrics import ClassSample, EngineSample, Sample
from fairlane.telemetry.table import ANONYMOUS

if TYPE_CHECKING:
    from fairlane.gateway.app import Gateway


class View:
    """Reads a gateway; changes nothing."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

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
            engines=[
                EngineSample(link.pool, link.name, running=self._running(link.pool, link.name), slots=link.spec.slots, up=link.up)
                for link in self._gateway.links.values()
            ],
            tenants_running=self._tenants_running(),
            client_connections=len(self._gateway.http.connections),
        )

    def state(self) -> dict[str, Any]:
        """Everything of `sample`, as plain values for people and scripts."""
        sample = self.sample()
        return {
            "classes": [{name: getattr(row, name) for name in ClassSample.__slots__} for row in sample.classes],
            "engines": [{name: getattr(row, name) for name in EngineSample.__slots__} for row in sample.engines],
            "tenants_running": dict(sample.tenants_running),
            "client_connections": sample.client_connections,
            "ready": self._gateway.ready()[1],
        }

    def _running(self, pool: str, engine: str) -> int:
        state = self._gateway.scheduler.pools[pool].places.engines.get(engine)
        return state.limit.running if state else 0

    def _tenants_running(self) -> dict[str, int]:
        configured = {tenant.name for tenant in self._gateway.settings.tenants}
        running: dict[str, int] = {}
        for name, state in self._gateway.scheduler.tenants.items():
            label = name if name in configured else ANONYMOUS
            running[label] = running.get(label, 0) + state.running
        return running


def _oldest_wait_s(queue: ClassQueue, now: float) -> float:
    return max((now - next(iter(flow.waiting.values())).arrived_at for flow in queue.waiting_flows()), default=0.0)
