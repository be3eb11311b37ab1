"""Yielding: whoever gives way does it for something, within the allowance, and loses nothing but time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.core.request import Request, Start
from fairlane.core.values import Engine, Outcome, PriorityClass, State, Tenant, Usage
from fairlane.policies.gmp import GuaranteedMinimum
from fairlane.policies.headroom import Headroom
from fairlane.policies.yielding import BURST_TOKENS, LOOKED_AT, TIMES_MAX, Allowance, Yield, Yielding
from tests.core.world import FOUR, make, request

T = Tenant("t")
NO_SHARES = tuple(replace(one, min_share=0) for one in FOUR)
LAST = len(FOUR) - 1


class Play:
    """A scheduler whose places the last class gives way on, as the gateway and the simulator drive it."""

    def __init__(
        self, engines: tuple[Engine, ...] = (Engine("e", 2),), classes: tuple[PriorityClass, ...] = NO_SHARES, policy: str = "gmp"
    ) -> None:
        self.scheduler = make(engines, classes, policy=policy)
        self.pool = self.scheduler.pools["main"]
        self.yielding = Yielding(self.pool, 0.1)
        self.made: dict[int, int | None] = {}  # 0 where nothing is told
        self.now = 0.0
        self.yields: list[Yield] = []
        self.served = 0
        self.cost = 0
        self.running: dict[int, Request] = {}

    def come(self, rank: int, *, prompt: int = 100, output: int = 50, tenant: Tenant = T) -> Request:
        r = request(tenant, rank, self.now, prompt=prompt, output=output)
        r.streams = False
        self.scheduler.submit(r, self.now)
        self.pump()
        return r

    def pump(self) -> None:
        """As `Admission.pump`; each yield must serve the head that it was for."""
        self.poll()
        while (chosen := self.yielding.choose(lambda r, _: self.made.get(r.id, 0), self.now)) is not None:
            r = chosen.request
            assert (r.rank, r.state) == (len(self.pool.queues) - 1, State.RUNNING)
            key, arrived_at, cost = r.key, r.arrived_at, r.cost
            self.yields.append(chosen)
            del self.running[r.id]
            self.scheduler.requeue(r)
            self.yielding.waits(r)
            started = self.poll()
            assert started, "it gave way for nothing"
            assert started[0].rank < r.rank
            assert (r.key, r.arrived_at, r.cost, r.state) == (key, arrived_at, cost, State.WAITING)

    def poll(self) -> list[Request]:
        started = [d.request for d in self.scheduler.poll(self.now) if isinstance(d, Start)]
        for r in started:
            self.running[r.id] = r
            self.yielding.started(r)
        return started

    def end(self, r: Request, produced: int = 0) -> None:
        usage = Usage(r.prompt_tokens, produced)
        del self.running[r.id]
        self.scheduler.settle(r, usage, Outcome.COMPLETED, self.now)
        self.scheduler.depart(r)
        self.yielding.over(r, usage.tokens)
        self.served += usage.tokens
        self.cost += self.scheduler.weights.cost(usage)
        self.pump()

    @property
    def gave_way(self) -> list[Request]:
        return [one.request for one in self.yields]


def test_the_newest_gives_its_place_to_a_more_urgent_one_and_goes_back_to_its_own() -> None:
    """It is the first to start again, before what came after it, and its cost is charged once."""
    play = Play()
    first, second, third = (play.come(LAST) for _ in range(3))
    urgent = play.come(0)
    assert play.gave_way == [second]
    assert play.yields[0].tokens == second.prompt_tokens
    assert (urgent.state, second.state, first.state) == (State.RUNNING, State.WAITING, State.RUNNING)
    play.end(urgent, 50)
    assert (second.state, third.state) == (State.RUNNING, State.WAITING)
    for r in (first, second, third):
        play.end(r, 50)
    assert sum(queue.served_cost for queue in play.pool.queues) == play.cost == 4 * 300


def test_nobody_gives_way_where_a_place_is_free_or_nobody_is_more_urgent() -> None:
    """A place that is there is taken, and the last class does not give way to itself."""
    play = Play()
    play.come(LAST)
    play.come(0)
    play.come(LAST)
    assert play.yields == []
    rest = Play()
    for _ in range(4):
        rest.come(2)
    rest.come(0)
    assert rest.yields == []


def test_who_has_made_a_tenth_or_cannot_be_stopped_is_let_run() -> None:
    """The next older one gives way in its place."""
    play = Play((Engine("e", 3),))
    first, second, third = (play.come(LAST, output=50) for _ in range(3))
    play.made = {first.id: 4, second.id: 5, third.id: None}
    play.come(0)
    assert play.gave_way == [first]
    assert play.yields[0].tokens == 104


def test_only_the_newest_are_looked_at() -> None:
    """Where they are all too far the older ones are not asked for."""
    play = Play((Engine("e", LOOKED_AT + 1),))
    running = [play.come(LAST) for _ in range(LOOKED_AT + 1)]
    play.made = {r.id: None for r in running[1:]}
    play.come(0)
    assert play.yields == []
    play.made[running[1].id] = 0
    play.pump()
    assert play.gave_way == [running[1]]


def test_one_place_for_a_head_and_two_yields_of_a_request_at_most() -> None:
    """A request that gave way twice is let run, however many more urgent ones come."""
    play = Play((Engine("e", 1),))
    batch = play.come(LAST)
    for _ in range(TIMES_MAX):
        urgent = play.come(0)
        assert urgent.state is State.RUNNING
        play.end(urgent, 50)
        assert batch.state is State.RUNNING
    late = play.come(0)
    assert (play.gave_way, late in play.running.values()) == ([batch] * TIMES_MAX, False)
    play.end(batch, 50)
    assert late in play.running.values()


def test_a_head_that_one_place_does_not_help_takes_none() -> None:
    """It needs more KV than any one of them has; a smaller one would fit."""
    play = Play((Engine("e", 4, kv_tokens=1000),))
    for _ in range(4):
        play.come(LAST, prompt=150, output=50)
    large = play.come(0, prompt=600)
    assert play.yields == []
    play.scheduler.cancel(large, 0.0)
    play.pump()
    small = play.come(0, prompt=150)
    assert len(play.yields) == 1
    assert small.state is State.RUNNING
    assert play.pool.places.engines["e"].limit.running == 4


def test_looking_for_room_leaves_the_limit_as_it_was() -> None:
    """Also where the request has shown progress, and where in the end nobody gives way."""
    play = Play((Engine("e", 3, kv_tokens=1000),))
    batches = [play.come(LAST, prompt=100, output=200) for _ in range(2)]
    play.scheduler.progress(batches[1], 10, 0.0)
    play.made[batches[1].id] = 10
    limit = play.pool.places.engines["e"].limit
    names = ("running", "tokens", "final", "prefilling", "short_running")
    before = {name: getattr(limit, name) for name in names}
    large = play.come(0, prompt=800)
    assert (large.state, play.yields) == (State.WAITING, [])
    assert {name: getattr(limit, name) for name in names} == before


def test_who_is_owed_keeps_its_place() -> None:
    """The last class has a guarantee of half, and got little: its requests are let run until it has had its part."""
    classes = (replace(FOUR[0], min_share=0), replace(FOUR[3], rank=1, min_share=5000))
    play = Play((Engine("e", 1),), classes)
    first = play.come(0)
    batch = play.come(1)
    second = play.come(0, output=250)
    play.end(first, 50)
    play.end(second, 250)
    assert batch.state is State.RUNNING
    play.come(0)
    assert play.pool.order.is_owed(1)
    assert play.yields == []


def test_who_is_owed_now_keeps_its_place_though_a_refund_would_settle_it() -> None:
    """A small request that its class had paid for before is in the balance with no more than its own cost."""
    classes = (replace(FOUR[0], min_share=0), replace(FOUR[3], rank=1, min_share=1000))
    play = Play((Engine("e", 3),), classes)
    paid = play.come(1, prompt=960, output=10)
    small = play.come(1, prompt=60, output=10)
    play.made[paid.id] = None
    play.come(0, prompt=8950, output=0)
    play.come(0)
    assert (play.pool.order.is_owed(1), play.pool.order.is_owed(1, small)) == (True, False)
    assert play.yields == []


def test_who_would_be_owed_without_its_start_keeps_its_place() -> None:
    """It would get the place back at once, and its work would be lost for nothing."""
    classes = (replace(FOUR[0], min_share=0), replace(FOUR[3], rank=1, min_share=1000))
    play = Play((Engine("e", 2),), classes)
    first, second = play.come(0), play.come(0)
    batch = play.come(1)
    play.come(0)
    play.end(first, 50)
    play.end(second, 50)
    assert (batch.state, batch.owed) == (State.RUNNING, True)
    waiting = play.come(0)
    assert (play.pool.order.is_owed(1), play.pool.order.is_owed(1, batch)) == (False, True)
    assert (waiting.state, play.yields) == (State.WAITING, [])


def test_a_head_that_is_kept_back_takes_no_place() -> None:
    """Room is kept for the most urgent class: one of the middle takes nobody's place then, one of the first does."""
    classes = (replace(NO_SHARES[0], ttft_slo_s=100.0), *NO_SHARES[1:])
    play = Play((Engine("e", 2),), classes)
    play.come(LAST)
    play.come(LAST)
    order = play.pool.order
    assert isinstance(order, Headroom)
    order.cap = 1.0
    play.come(1)
    assert play.yields == []
    urgent = play.come(0)
    assert (len(play.yields), urgent.state) == (1, State.RUNNING)


def test_who_waited_long_or_was_promoted_is_let_run() -> None:
    """After half of its longest wait a request could be shed before its turn comes again; a promoted one would come first."""
    for last, after in ((replace(NO_SHARES[3], max_wait_s=60.0), 31.0), (replace(NO_SHARES[3], promote_after_s=10.0), 11.0)):
        play = Play((Engine("e", 1),), (*NO_SHARES[:3], last))
        play.come(LAST)
        play.now = after
        play.come(0)
        assert play.yields == []
        early = Play((Engine("e", 1),), (*NO_SHARES[:3], last))
        early.come(LAST)
        early.now = after - 2.0
        early.come(0)
        assert len(early.yields) == 1


def test_a_full_backlog_takes_nobody_back() -> None:
    """Else another would have to leave it."""
    for last in (replace(NO_SHARES[3], max_queued=1), replace(NO_SHARES[3], max_queued_cost=350)):
        play = Play((Engine("e", 1),), (*NO_SHARES[:3], last))
        play.come(LAST)
        waiting = play.come(LAST)
        play.come(0)
        assert play.yields == []
        play.scheduler.cancel(waiting, 0.0)
        play.pump()
        assert len(play.yields) == 1


def test_what_gave_way_is_the_last_to_be_displaced() -> None:
    """In a full class the newest entries give way to a newcomer's, not the one that had started before all of them."""
    last = replace(NO_SHARES[3], max_queued=3)
    play = Play((Engine("e", 1),), (*NO_SHARES[:3], last))
    ran = play.come(LAST)
    others = [play.come(LAST) for _ in range(2)]
    play.come(0)
    assert play.gave_way == [ran]
    play.come(LAST, tenant=Tenant("newcomer"))
    assert [ran.state, *(r.state for r in others)] == [State.WAITING, State.WAITING, State.ENDED]


def test_a_held_engine_is_left_to_its_hold() -> None:
    """What ends there makes room for whom it is held for."""
    play = Play((Engine("e", 1),))
    batch = play.come(LAST)
    play.made[batch.id] = None
    head = play.come(0)
    play.pool.places.hold(head)
    play.made[batch.id] = 0
    play.pump()
    assert play.yields == []
    play.pool.places.release_hold()
    play.pump()
    assert play.gave_way == [batch]


def test_a_head_whose_place_another_took_gets_no_second_one() -> None:
    """The tenant that gave way had a request of the same class parked, whose turn was before the head's."""
    play = Play((Engine("e", 3),))
    narrow, other = Tenant("narrow", max_running=1), Tenant("other")
    play.come(0)
    old, new = play.come(LAST, tenant=other), play.come(LAST, tenant=narrow)
    play.made[old.id] = None
    parked = play.come(0, tenant=narrow)
    head = play.come(0)
    assert (play.gave_way, parked in play.running.values(), head in play.running.values()) == ([new], True, False)
    play.made[old.id] = 0
    play.pump()
    assert play.gave_way == [new]
    play.end(parked)
    assert head in play.running.values()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40_000)), max_size=60), st.sampled_from([0.01, 0.1, 0.5]))
def test_the_allowance_holds_over_any_time(events: list[tuple[bool, int]], part: float) -> None:
    """In any stretch of it, what is wasted is at most the part of what is served then, and a burst besides."""
    allowance = Allowance(part)
    told: list[tuple[int, int]] = []
    for serves, tokens in events:
        if serves:
            allowance.served(tokens)
            told.append((tokens, 0))
        elif tokens <= allowance.tokens:
            allowance.wasted(tokens)
            told.append((0, tokens))
        for begin in range(len(told)):
            served, wasted = (sum(one[i] for one in told[begin:]) for i in (0, 1))
            assert wasted <= part * served + BURST_TOKENS + 1e-6


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["come", "come", "come", "end", "cancel", "leave", "time", "cap"]),
        st.integers(0, LAST),
        st.integers(1, 3000),
        st.integers(0, 400),
    ),
    max_size=60,
)
TENANTS = (T, Tenant("other", weight=3.0), Tenant("narrow", max_running=2))


@given(EVENTS, st.sampled_from(["gmp", "strict"]), st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_history_keeps_all_promises(events: list[tuple[str, int, int, int]], policy: str, shares: bool, kv: bool) -> None:
    """Nobody gives way for nothing, too often or beyond the allowance, and in the end what was charged is what was used."""
    classes = tuple(replace(c, ttft_slo_s=200.0 if c.rank == 0 else None, max_wait_s=500.0) for c in (FOUR if shares else NO_SHARES))
    engines = (Engine("a", 2, kv_tokens=6000 if kv else None, prefill_tokens=4000), Engine("b", 1, context=9000))
    play = Play(engines, classes, policy)
    waiting: dict[int, Request] = {}
    for what, rank, prompt, output in events:
        if what == "come":
            r = play.come(rank, prompt=prompt, output=output, tenant=TENANTS[prompt % 3])
            play.made[r.id] = (0, 3, None)[output % 3]
            waiting[r.id] = r
        elif what == "time":
            play.now += output / 4
            play.pump()
        elif what == "cap" and isinstance(play.pool.order, Headroom):
            play.pool.order.cap = 1.0 + rank
        elif what == "cancel" and (left := [r for r in waiting.values() if r.state is State.WAITING]):
            one = left[output % len(left)]
            play.scheduler.cancel(one, play.now)
            play.yielding.over(one)
            play.pump()
        elif play.running:
            play.end([*play.running.values()][output % len(play.running)], output if what == "end" else 0)
    assert sum(one.tokens for one in play.yields) <= 0.1 * play.served + BURST_TOKENS
    assert max(Counter(r.id for r in play.gave_way).values(), default=0) <= TIMES_MAX
    while play.running:
        play.end(next(iter(play.running.values())), 7)
    assert play.pool.places.running == play.pool.queued == 0
    assert sum(queue.served_cost for queue in play.pool.queues) == play.cost
    order = play.pool.order.inner if isinstance(play.pool.order, Headroom) else play.pool.order
    if isinstance(order, GuaranteedMinimum):
        assert order.total == play.cost


def test_what_a_refund_would_leave_is_what_it_leaves() -> None:
    """Asking whether a class would be owed without a request tells what is so after it was put back."""
    dice = Random(7)
    play = Play((Engine("e", 3),), FOUR)
    seen: Counter[bool] = Counter()
    for _ in range(500):
        size = dice.randint(1, 900), dice.randint(0, 90)
        play.scheduler.submit(request(T, dice.randrange(4), 0.0, prompt=size[0], output=size[1]), 0.0)
        play.poll()
        victim = dice.choice([*play.running.values()])
        said = play.pool.order.is_owed(victim.rank, victim)
        del play.running[victim.id]
        play.scheduler.requeue(victim)
        assert play.pool.order.is_owed(victim.rank) == said
        seen[said] += 1
        play.poll()
        if len(play.running) > 2:
            ended = play.running.pop(dice.choice([*play.running]))
            play.scheduler.settle(ended, Usage(5, dice.randint(0, 90)), Outcome.COMPLETED, 0.0)
            play.scheduler.depart(ended)
    assert min(seen[True], seen[False]) > 20
