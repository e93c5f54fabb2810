"""The scheduler against a model that checks every topic at every tick, and its own promises."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.delivery.schedule.scheduler import (
    AGE_A_S,
    BANDS,
    QUANTUM_RECORDS,
    SLOWED,
    TICK_S,
    WEIGHTS,
    Scheduler,
    Turn,
    band_of,
    base_priority,
)

IN_B4_S = 10.0 + TICK_S
"""The longest wait below B4."""
TURN_MAX = 600


@dataclass
class Waiting:
    """A waiting topic in the model."""

    topic: int
    manual: int | None
    consumed_s: float
    since_s: float
    band: int
    entered_b4: tuple[float, int] = (math.inf, 0)
    """Time of its arrival in B4, and the records of the turns ahead of it there."""


@dataclass
class Model:
    """Bands as lists, all of them checked in each tick; turns by deficit round robin, round by round."""

    bands: list[list[Waiting]] = field(default_factory=lambda: [[] for _ in range(BANDS)])
    deficits: list[int] = field(default_factory=lambda: [0] * BANDS)
    tick: int = -1
    at: int = 0
    slows_b0: bool = False
    order: list[Waiting] = field(default_factory=list)

    def advance(self, now_s: float) -> None:
        tick = math.floor(now_s / TICK_S + 1e-6)
        while self.tick < tick:
            self.tick += 1
            tick_s = self.tick * TICK_S
            for one in [one for one in self.order if one.band < BANDS - 1]:
                age = min(1750.0, 175.0 * (tick_s - one.since_s))
                band = band_of(base_priority(one.manual, one.consumed_s, tick_s) + age)
                if band > one.band:
                    self.bands[one.band].remove(one)
                    one.band = band
                    self._enter(one, tick_s)

    def push(self, topic: int, now_s: float, manual: int | None, consumed_s: float) -> bool:
        if any(one.topic == topic for one in self.order):
            return False
        self.advance(now_s)
        one = Waiting(topic, manual, consumed_s, now_s, band_of(base_priority(manual, consumed_s, now_s)))
        self.order.append(one)
        self._enter(one, now_s)
        return True

    def _enter(self, one: Waiting, now_s: float) -> None:
        if one.band == BANDS - 1:
            one.entered_b4 = (now_s, len(self.bands[one.band]))
        self.bands[one.band].append(one)

    def pop(self, now_s: float) -> Waiting | None:
        self.advance(now_s)
        if not self.order:
            return None
        while not (self.bands[self.at] and self.deficits[self.at] > 0):
            if not self.bands[self.at]:
                self.deficits[self.at] = min(0, self.deficits[self.at])
            self.at = (self.at - 1) % BANDS
            quantum = WEIGHTS[self.at] * QUANTUM_RECORDS
            if self.at == 0 and self.slows_b0:
                quantum //= SLOWED
            self.deficits[self.at] += quantum
            if not self.bands[self.at]:
                self.deficits[self.at] = min(0, self.deficits[self.at])
        one = self.bands[self.at].pop(0)
        self.order.remove(one)
        return one


@dataclass
class Steps:
    """One sequence of calls, drawn by hypothesis: arrivals, passing time, costs of turns."""

    seed: int
    topics: int
    mean_step_s: float

    def play(self, count: int) -> list[Turn[int]]:
        """Run it on both; return the turns. Fails if they differ."""
        random = Random(self.seed)
        model, scheduler = Model(), Scheduler[int]()
        turns: list[Turn[int]] = []
        now_s = random.uniform(0, 100)
        for _ in range(count):
            now_s += random.choice((0.0, random.expovariate(1 / self.mean_step_s)))
            match random.randrange(8):
                case 0 | 1 | 2 | 3:
                    topic = random.randrange(self.topics)
                    manual = random.choice((None, None, random.randrange(-1500, 1500)))
                    consumed_s = now_s - random.choice((0.0, 20.0, 100.0, 299.0, 400.0))
                    pushed = scheduler.push(topic, now_s, manual=manual, consumed_s=consumed_s)
                    assert pushed == model.push(topic, now_s, manual, consumed_s)
                case 4:
                    model.slows_b0 = scheduler.slows_b0 = random.random() < 0.5
                case _:
                    turn, expected = scheduler.pop(now_s), model.pop(now_s)
                    assert (turn and turn[:2]) == (expected and (expected.topic, expected.band))
                    if turn is not None and expected is not None:
                        assert turn.waited_s == now_s - expected.since_s
                        cost = random.randrange(1, TURN_MAX)
                        scheduler.charge(turn.band, cost)
                        model.deficits[turn.band] -= cost
                        turns.append(turn)
            scheduler.advance(now_s)
            model.advance(now_s)
            assert scheduler.ready == tuple(map(len, model.bands))
            assert len(scheduler) == len(model.order)
            longest_s = now_s - model.order[0].since_s if model.order else 0.0
            assert scheduler.longest_wait_s(now_s) == longest_s
        return turns


steps = st.builds(
    Steps,
    seed=st.integers(0, 1 << 32),
    topics=st.integers(1, 40),
    mean_step_s=st.sampled_from((0.001, 0.02, 0.2, 2.0)),
)


@given(steps=steps)
def test_it_agrees_with_a_check_of_every_topic_at_every_tick(steps: Steps) -> None:
    steps.play(300)


@given(steps=steps)
def test_the_same_calls_give_the_same_turns(steps: Steps) -> None:
    assert steps.play(100) == steps.play(100)


BASE_OF_BAND = (-1000, 0, 250, 500, 1000)


def served(
    *, turn_sizes: tuple[int, ...], topics_a_band: int, slows_b0: bool = False, bands: tuple[int, ...] = (0, 1, 2, 3, 4)
) -> list[int]:
    """Return the records served per band, all of them backlogged and without passing time."""
    scheduler = Scheduler[tuple[int, int]]()
    scheduler.slows_b0 = slows_b0
    for band in bands:
        for number in range(topics_a_band):
            scheduler.push((band, number), 0.0, manual=BASE_OF_BAND[band], consumed_s=0.0)
    records = [0] * BANDS
    turns = 0
    while sum(records) < max(400 * max(turn_sizes), 40 * sum(WEIGHTS) * QUANTUM_RECORDS):
        turn = scheduler.pop(0.0)
        assert turn is not None
        size = turn_sizes[turns % len(turn_sizes)]
        turns += 1
        scheduler.charge(turn.band, size)
        assert turn.band == turn.topic[0]
        records[turn.band] += size
        scheduler.push(turn.topic, 0.0, manual=BASE_OF_BAND[turn.band], consumed_s=0.0)
    return records


@given(sizes=st.lists(st.integers(1, TURN_MAX), min_size=1, max_size=7), topics_a_band=st.integers(1, 5))
def test_backlogged_bands_share_records_by_their_weights(sizes: list[int], topics_a_band: int) -> None:
    records = served(turn_sizes=tuple(sizes), topics_a_band=topics_a_band)
    for band in range(BANDS):
        assert records[band] / sum(records) == pytest.approx(WEIGHTS[band] / sum(WEIGHTS), rel=0.1)


def test_slowed_b0_has_an_eighth_of_its_weight_and_every_turn_if_alone() -> None:
    records = served(turn_sizes=(100,), topics_a_band=2, slows_b0=True)
    assert records[0] / records[1] == pytest.approx(1 / SLOWED, rel=0.25)
    assert served(turn_sizes=(100,), topics_a_band=2, slows_b0=True, bands=(0,))[0] >= 40_000


def test_large_batches_pay_for_themselves() -> None:
    scheduler = Scheduler[str]()
    records = {"large": 0, "small": 0}
    for topic in records:
        scheduler.push(topic, 0.0, manual=0 if topic == "large" else -1, consumed_s=0.0)
    for _ in range(4_000):
        turn = scheduler.pop(0.0)
        assert turn is not None
        size = 600 if turn.topic == "large" else 1
        records[turn.topic] += size
        scheduler.charge(turn.band, size)
        scheduler.push(turn.topic, 0.0, manual=0 if turn.topic == "large" else -1, consumed_s=0.0)
    assert records["large"] == pytest.approx(records["small"], abs=600 + QUANTUM_RECORDS)


def test_a_band_that_is_empty_between_its_turns_keeps_its_debt_and_no_credit() -> None:
    scheduler = Scheduler[str]()
    scheduler.push("large", 0.0, manual=0, consumed_s=0.0)
    turn = scheduler.pop(0.0)
    assert turn is not None
    scheduler.charge(turn.band, 6 * QUANTUM_RECORDS)
    for name in ("large", "small"):
        scheduler.push(name, 0.0, manual=0 if name == "large" else -1, consumed_s=0.0)
    before = 0
    while True:
        turn = scheduler.pop(0.0)
        assert turn is not None
        if turn.topic == "large":
            break
        scheduler.charge(turn.band, QUANTUM_RECORDS)
        scheduler.push("small", 0.0, manual=-1, consumed_s=0.0)
        before += 1
    assert 4 <= before <= 6


@given(
    seed=st.integers(0, 1 << 32),
    load=st.sampled_from((0.5, 0.95, 1.5, 4.0)),
    topics=st.integers(2, 60),
    slows_b0=st.booleans(),
)
def test_no_topic_of_any_priority_waits_longer_than_the_bound(
    seed: int, load: float, topics: int, slows_b0: bool
) -> None:
    """A topic is in B4 within 10 s and a tick; then come all topics ahead of it in B4 and, meanwhile, as much of the
    others.
    """
    random = Random(seed)
    capacity = random.choice((200.0, 2_000.0))
    model, scheduler = Model(slows_b0=slows_b0), Scheduler[int]()
    scheduler.slows_b0 = slows_b0
    priorities = [random.choice((-1000, -1000, None, 0, 400, 1000)) for _ in range(topics)]
    consumed = [0.0] * topics
    now_s = 0.0
    for _ in range(300):
        for topic in range(topics):
            if random.random() < load / topics * 2:
                scheduler.push(topic, now_s, manual=priorities[topic], consumed_s=consumed[topic])
                model.push(topic, now_s, priorities[topic], consumed[topic])
        turn, expected = scheduler.pop(now_s), model.pop(now_s)
        if turn is None or expected is None:
            assert turn is None
            assert expected is None
            now_s += 0.03
            continue
        assert turn.topic == expected.topic
        entered_s, ahead = expected.entered_b4
        assert min(entered_s, now_s) - expected.since_s <= IN_B4_S + 1e-6
        assert all(one.band == BANDS - 1 for one in model.order if now_s - one.since_s > IN_B4_S + 1e-6)
        if entered_s < math.inf:
            # each round at least half of the served records are B4's; a turn overdraws each band once
            owed = (ahead + 1) * TURN_MAX * 2 + BANDS * (TURN_MAX + WEIGHTS[-1] * QUANTUM_RECORDS)
            assert now_s - entered_s <= owed / capacity + TICK_S
        cost = random.randrange(1, TURN_MAX)
        scheduler.charge(turn.band, cost)
        model.deficits[turn.band] -= cost
        now_s += cost / capacity
        consumed[turn.topic] = now_s


@given(manuals=st.lists(st.integers(250, 499), min_size=2, max_size=20))
def test_within_a_band_the_order_is_first_in_first_out(manuals: list[int]) -> None:
    scheduler = Scheduler[int]()
    for number, manual in enumerate(manuals):
        scheduler.push(number, 0.0, manual=manual, consumed_s=0.0)
    served = []
    while (turn := scheduler.pop(0.0)) is not None:
        scheduler.charge(turn.band, 100)
        served.append(turn.topic)
    assert served == list(range(len(manuals)))


def test_a_topic_is_queued_once_and_its_wait_restarts_only_after_service() -> None:
    scheduler = Scheduler[str]()
    assert scheduler.push("t", 1.0, manual=-1000, consumed_s=0.0)
    assert not scheduler.push("t", 5.0, manual=1000, consumed_s=5.0)
    assert scheduler.ready == (1, 0, 0, 0, 0)
    assert scheduler.longest_wait_s(6.0) == 5.0
    turn = scheduler.pop(6.0)
    assert turn == Turn("t", 0, 5.0)
    assert scheduler.push("t", 6.0, manual=-1000, consumed_s=0.0)
    assert scheduler.longest_wait_s(6.5) == 0.5


def test_a_topic_rises_from_band_to_band_while_it_waits() -> None:
    scheduler = Scheduler[str]()
    scheduler.push("t", 0.0, manual=-1000, consumed_s=0.0)
    when: dict[int, float] = {}
    for tick in range(1, 300):
        scheduler.advance(tick * TICK_S)
        when.setdefault(scheduler.ready.index(1), tick * TICK_S)
    for band, floor in ((1, 0), (2, 250), (3, 500), (4, 750)):
        exact_s = (floor + 1000) / AGE_A_S
        assert exact_s - 1e-9 <= when[band] <= exact_s + TICK_S
    assert when[4] <= 10.0 + 1e-9


def test_removed_topic_has_no_turn_and_leaves_nothing() -> None:
    scheduler = Scheduler[str]()
    scheduler.push("a", 0.0, manual=None, consumed_s=0.0)
    scheduler.push("b", 0.0, manual=None, consumed_s=0.0)
    scheduler.advance(0.1)
    scheduler.remove("a")
    scheduler.remove("unknown")
    turn = scheduler.pop(20.0)
    assert turn is not None
    assert turn.topic == "b"
    assert scheduler.pop(20.0) is None
    assert scheduler.ready == (0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("untouched_s", "expected"),
    [(0, 500), (30, 250), (60, 125), (299.999, 500 * 2 ** (-299.999 / 30)), (300, 0), (1e9, 0), (-5, 500)],
)
def test_priority_by_recency_halves_each_half_minute(untouched_s: float, expected: float) -> None:
    assert base_priority(None, 1000.0 - untouched_s, 1000.0) == pytest.approx(expected)


@pytest.mark.parametrize(("manual", "expected"), [(-5000, -1000), (-1000, -1000), (7, 7), (1000, 1000), (5000, 1000)])
def test_manual_priority_is_clamped(manual: int, expected: int) -> None:
    assert base_priority(manual, 0.0, 0.0) == expected


@pytest.mark.parametrize(
    ("priority", "band"),
    [(-1000, 0), (-0.1, 0), (0, 1), (249.9, 1), (250, 2), (499.9, 2), (500, 3), (749.9, 3), (750, 4), (2750, 4)],
)
def test_bands_begin_at_their_floors(priority: float, band: int) -> None:
    assert band_of(priority) == band


def test_checks_of_a_wait_are_few_and_none_within_the_first_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    look_at = Scheduler._schedule_check

    def counted(self: Scheduler[int], entry: object, now_s: float) -> None:
        nonlocal looks
        looks += 1
        look_at(self, entry, now_s)  # type: ignore[arg-type]

    monkeypatch.setattr(Scheduler, "_schedule_check", counted)
    scheduler = Scheduler[int]()
    for number in range(1000):
        scheduler.push(number, 0.0, manual=None if number % 2 else -1000, consumed_s=0.0)
        scheduler.pop(0.01)
        scheduler.charge(0, 1)
    assert looks == 0
    for number in range(1000):
        scheduler.push(number, 0.01, manual=None if number % 2 else -1000, consumed_s=-25.0)
    for tick in range(1, 400):
        scheduler.advance(tick * TICK_S)
    assert scheduler.ready == (0, 0, 0, 0, 1000)
    assert looks <= 12 * 1000
