"""A scripted upstream: an OpenAI-compatible server in the test process that records, waits and misbehaves on demand.

`Stub` is the server, `Plan` is what it does with one request, `Seen` is what it noticed about one request.
"""

from tests.stub.plan import Fault, Plan, Usage, sse
from tests.stub.seen import Seen
from tests.stub.server import Stub

__all__ = ["Fault", "Plan", "Seen", "Stub", "Usage", "sse"]
