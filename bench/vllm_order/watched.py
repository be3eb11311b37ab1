"""Schedulers for vLLM's process that write down when each request came to the engine and when it joined the batch.

They decide nothing: `Stock` is what vLLM uses by default, `Plugin` is Fairlane's. Each start is one line in the file that
`FAIRLANE_BENCH_STARTS` names: the request's id, its arrival in the scheduler and its start, both in Unix time.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.request import Request

from fairlane.vllm_plugin import FairlaneScheduler

STARTS = "FAIRLANE_BENCH_STARTS"


class Stock(AsyncScheduler):  # type: ignore[misc] # untyped where vLLM is not installed
    """vLLM's scheduler, and a record of what it starts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - vLLM's own arguments
        super().__init__(*args, **kwargs)
        self._came: dict[str, float] = {}
        self._file = Path(os.environ[STARTS]).open("a", buffering=1, encoding="utf-8")  # noqa: SIM115 - as long as the process

    def add_request(self, request: Request) -> None:
        """Notes when it came."""
        self._came[request.request_id] = time.time()
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - vLLM's own arguments
        """Writes down what joins the batch for the first time."""
        output = super().schedule(*args, **kwargs)
        now = time.time()
        for new in output.scheduled_new_reqs:
            self._file.write(f"{new.req_id} {self._came.pop(new.req_id)} {now}\n")
        return output


class Plugin(Stock, FairlaneScheduler):  # type: ignore[misc]
    """Fairlane's scheduler, and the same record."""
