"""Flow control against a model of the client: no byte over a window, none lost, and nothing waits that could be sent."""

from __future__ import annotations

from collections import Counter, defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from eddyline.wire.http2 import frames
from eddyline.wire.http2.hpack import STATUS_200, encode_field
from eddyline.wire.http2.limits import Limits
from tests.support.wire.frames import Frame, data, headers, request_block, window_update
from tests.support.wire.frames import settings as settings_frame
from tests.support.wire.peer import Peer

STREAMS = (1, 3, 5)
IDS = st.sampled_from(STREAMS)
SIZES = st.one_of(st.integers(1, 300), st.integers(1, 40_000))
INCREMENTS = st.one_of(st.integers(1, 20), st.integers(1, 100_000))
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), IDS, SIZES),
        st.tuples(st.just("window"), st.sampled_from((0, *STREAMS)), INCREMENTS),
        st.tuples(st.just("initial"), st.just(0), st.one_of(st.integers(0, 50), st.integers(0, 200_000))),
        st.tuples(st.just("pause"), st.just(0), st.just(0)),
        st.tuples(st.just("resume"), st.just(0), st.just(0)),
        st.tuples(st.just("frame"), st.just(0), st.integers(16_384, 60_000)),
        st.tuples(st.just("end"), IDS, st.just(0)),
    ),
    max_size=40,
)
END = encode_field(b"grpc-status", b"0")


class Reader:
    """The client: what it has given and got, from the frames alone."""

    def __init__(self) -> None:
        limits = Limits(queue_bytes_max=1 << 30, control_frames_max=1 << 30)
        self.peer = Peer(limits)
        self.peer.send(*(headers(stream_id, request_block()) for stream_id in STREAMS))
        for stream_id in STREAMS:
            self.peer.stream(stream_id).open(STATUS_200)
        self.peer.sent()
        self.initial = self.window = frames.INITIAL_WINDOW
        self.windows = dict.fromkeys(STREAMS, frames.INITIAL_WINDOW)
        self.frame_bytes_max = frames.FRAME_BYTES_MIN
        self.got: dict[int, bytearray] = defaultdict(bytearray)
        self.expected: dict[int, bytearray] = defaultdict(bytearray)
        self.ended: set[int] = set()
        self.asked_to_end: set[int] = set()
        self.is_paused = False
        self._next = 0

    def take(self, sent: list[Frame]) -> None:
        for frame in sent:
            if frame.kind == frames.DATA:
                self.window -= len(frame.payload)
                self.windows[frame.stream_id] -= len(frame.payload)
                self.got[frame.stream_id] += frame.payload
                assert self.window >= 0 and self.windows[frame.stream_id] >= 0, "a byte over the window"
                assert len(frame.payload) <= self.frame_bytes_max
                assert frame.stream_id not in self.ended
            elif frame.kind == frames.HEADERS:
                self.ended.add(frame.stream_id)
        for stream_id in STREAMS:
            assert self.expected[stream_id].startswith(self.got[stream_id])
            waits = len(self.expected[stream_id]) - len(self.got[stream_id])
            if waits and not self.is_paused:
                assert self.window <= 0 or self.windows[stream_id] <= 0, "something waits that could be sent"
            if not waits and stream_id in self.asked_to_end:
                assert stream_id in self.ended

    def do(self, name: str, stream_id: int, number: int) -> None:
        connection = self.peer.connection
        if name == "send":
            if stream_id not in self.asked_to_end:
                body = (self._next.to_bytes(4, "big") * (number // 4 + 1))[:number]
                self._next += 1
                self.expected[stream_id] += body
                self.peer.stream(stream_id).send(body)
        elif name == "window":
            self.give(stream_id, number)
        elif name == "initial":
            for one in STREAMS:
                self.windows[one] += number - self.initial
            self.initial = number
            self.take(self.peer.send(settings_frame({frames.INITIAL_WINDOW_SIZE: number})))
        elif name == "frame":
            self.frame_bytes_max = number
            self.take(self.peer.send(settings_frame({frames.MAX_FRAME_SIZE: number})))
        elif name == "pause":
            self.is_paused = True
            connection.pause()
        elif name == "resume":
            self.is_paused = False
            connection.resume()
        else:
            self.asked_to_end.add(stream_id)
            self.peer.stream(stream_id).end(END)
        self.take(self.peer.sent())

    def give(self, stream_id: int, increment: int) -> None:
        if stream_id:
            self.windows[stream_id] += increment
        else:
            self.window += increment
        self.take(self.peer.send(window_update(stream_id, increment)))


@settings(max_examples=150)
@given(OPERATIONS)
def test_sending_keeps_every_window_loses_nothing_and_never_stops(operations: list[tuple[str, int, int]]) -> None:
    reader = Reader()
    for name, stream_id, number in operations:
        reader.do(name, stream_id, number)
    reader.do("resume", 0, 0)
    reader.give(0, 1 << 28)
    for stream_id in STREAMS:
        reader.do("end", stream_id, 0)
        reader.give(stream_id, 1 << 28)
    assert reader.got == reader.expected
    assert reader.ended == set(STREAMS)
    assert reader.peer.failure is None
    assert not reader.peer.connection.ready


PROGRESS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 30_000)),
        st.tuples(st.just("credit"), st.one_of(st.integers(1, 100), st.integers(1, 40_000))),
        st.tuples(st.just("wait"), st.integers(1, 9)),
    ),
    max_size=40,
)


@settings(max_examples=150)
@given(PROGRESS)
def test_age_of_untaken_bytes_grows_while_a_reader_stands_still_and_is_never_too_large(
    progress: list[tuple[str, int]],
) -> None:
    reader = Reader()
    reader.peer.now_s = 1.0
    stream = reader.peer.stream(1)
    sent: list[tuple[int, float]] = []
    credited, quiet_since_s = 0, 0.0
    for name, number in progress:
        untaken = sum(size for size, _ in sent) - credited
        if name == "wait":
            reader.peer.now_s += number
        elif name == "send":
            before = len(reader.got[1])
            reader.do("send", 1, number)
            sent.append((len(reader.got[1]) - before, reader.peer.now_s))
            if untaken <= 0:
                quiet_since_s = reader.peer.now_s
        else:
            before = len(reader.got[1])
            reader.do("window", 1, number)
            credited += number
            sent.append((len(reader.got[1]) - before, reader.peer.now_s))
            quiet_since_s = reader.peer.now_s
        total = sum(size for size, _ in sent)
        assert stream.uncredited_bytes == max(total - credited, 0)
        if total <= credited:
            continue
        position = 0
        for size, sent_s in sent:
            position += size
            if position > credited:
                assert quiet_since_s >= stream.uncredited_since_s >= sent_s
                break


def test_streams_share_the_connections_window_in_turn() -> None:
    reader = Reader()
    for stream_id in STREAMS:
        reader.do("window", stream_id, 1 << 20)
        reader.do("send", stream_id, 200_000)
    before = {stream_id: len(reader.got[stream_id]) for stream_id in STREAMS}
    reader.give(0, 3 * 16_384)
    assert [len(reader.got[stream_id]) - before[stream_id] for stream_id in STREAMS] == [16_384] * 3


def test_a_negative_window_waits_and_goes_on() -> None:
    reader = Reader()
    reader.do("initial", 0, 1_000)
    reader.do("send", 1, 3_000)
    assert len(reader.got[1]) == 1_000
    reader.do("initial", 0, 0)
    reader.give(1, 900)
    assert reader.peer.stream(1).send_window == -100
    assert len(reader.got[1]) == 1_000
    reader.give(1, 101)
    assert len(reader.got[1]) == 1_001
    reader.do("initial", 0, 5_000)
    assert reader.got[1] == reader.expected[1]


def test_a_turn_sends_its_mark_at_most_and_the_rest_follows() -> None:
    reader = Reader()
    reader.do("window", 0, 1 << 20)
    reader.do("window", 1, 1 << 20)
    stream = reader.peer.stream(1)
    stream.send(bytes(1 << 20))
    mark = Limits().output_bytes_mark
    assert len(reader.peer.connection.take_output()) < mark + 16_384 + 9


class Writer:
    """A client that sends as much as its windows allow; the handler consumes what a test says."""

    def __init__(self, limits: Limits) -> None:
        self.peer = Peer(limits, consumes=False)
        self.window = limits.connection_window_bytes
        self.windows = dict.fromkeys(STREAMS, limits.stream_window_bytes)
        self.unread = Counter[int]()
        for stream_id in STREAMS:
            self._take(self.peer.send(headers(stream_id, request_block())))

    def send(self, stream_id: int, size: int) -> int:
        size = max(min(size, self.window, self.windows[stream_id], 16_384), 0)
        self.window -= size
        self.windows[stream_id] -= size
        self.unread[stream_id] += size
        if size:
            self._take(self.peer.send(data(stream_id, bytes(size))))
        return size

    def consume(self, stream_id: int, size: int) -> None:
        size = min(size, self.unread[stream_id])
        self.unread[stream_id] -= size
        self.peer.stream(stream_id).consume(size)
        self._take(self.peer.sent())

    def _take(self, sent: list[Frame]) -> None:
        for frame in sent:
            if frame.kind == frames.WINDOW_UPDATE:
                credit = int.from_bytes(frame.payload, "big")
                if frame.stream_id:
                    self.windows[frame.stream_id] += credit
                else:
                    self.window += credit


RECEIVE = st.lists(
    st.tuples(st.sampled_from(["send", "consume"]), IDS, st.one_of(st.integers(1, 500), st.integers(1, 70_000))),
    max_size=60,
)


@given(RECEIVE)
def test_receiving_holds_a_window_a_stream_and_credit_returns_as_it_is_consumed(
    operations: list[tuple[str, int, int]],
) -> None:
    limits = Limits(stream_window_bytes=70_000, connection_window_bytes=80_000, unread_bytes_max=100_000)
    writer = Writer(limits)
    for name, stream_id, size in operations:
        if name == "send":
            writer.send(stream_id, size)
        else:
            writer.consume(stream_id, size)
        connection = writer.peer.connection
        assert writer.peer.failure is None
        assert connection.unread == sum(writer.unread.values()) <= 180_000
        assert all(stream.unread <= limits.stream_window_bytes for stream in connection.streams.values())
        assert all(stream.receive_window == writer.windows[stream.id] for stream in connection.streams.values())
    for stream_id in STREAMS:
        writer.consume(stream_id, 1 << 30)
        assert writer.windows[stream_id] * 2 > limits.stream_window_bytes
    assert writer.window * 2 > limits.connection_window_bytes


def test_a_stream_that_is_not_read_does_not_stop_the_others() -> None:
    limits = Limits(stream_window_bytes=70_000, connection_window_bytes=80_000, unread_bytes_max=100_000)
    writer = Writer(limits)
    while writer.send(1, 16_384):
        pass
    total = 0
    for _ in range(100):
        total += writer.send(3, 16_384)
        writer.consume(3, 16_384)
    assert total == 100 * 16_384
