package main

import (
	"bufio"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

func TestStampSurvivesItsText(t *testing.T) {
	for _, stamp := range []int64{0, 9, 10, 1 << 40, 1<<63 - 1} {
		text := payload(stampBytes)
		putStamp(text, stamp)
		if got := stampOf(text); got != stamp {
			t.Errorf("%d as %s is %d", stamp, text, got)
		}
	}
}

func TestReplyShowsEveryString(t *testing.T) {
	long := strings.Repeat("x", 40) // longer than the reader's buffer
	for reply, want := range map[string][]string{
		"$3\r\nabc\r\n": {"abc"}, "$-1\r\n": nil, "+OK\r\n": nil, ":7\r\n": nil, "*-1\r\n": nil,
		"*2\r\n$1\r\na\r\n*1\r\n$2\r\nbc\r\n": {"a", "bc"}, "$40\r\n" + long + "\r\n": {long},
	} {
		var seen []string
		from := bufio.NewReaderSize(strings.NewReader(reply), 16)
		err := readReply(from, func(text []byte) { seen = append(seen, string(text)) })
		if err != nil || !slices.Equal(seen, want) || from.Buffered() != 0 {
			t.Errorf("%q: %q, %v", reply, seen, err)
		}
	}
	if err := readReply(bufio.NewReader(strings.NewReader("-ERR no\r\n")), nil); err == nil || err.Error() != "ERR no" {
		t.Errorf("an error reply gives %v", err)
	}
}

func TestEntriesAreCountedByTheirIDs(t *testing.T) {
	data := payload(100)
	putStamp(data, 77)
	var seen entries
	for _, text := range []string{"topic", "1700000000000-0", "d", string(data), "1700000000000-1", "d", string(data)} {
		seen.see([]byte(text))
	}
	if seen.count != 2 || seen.stamp != 77 || string(seen.lastID) != "1700000000000-1" {
		t.Errorf("%+v", seen)
	}
}

func TestFrameIsCountedByItsMarks(t *testing.T) {
	data := payload(20)
	putStamp(data, 5)
	records, stamp := countRecords([]byte(`data: [{"$seq":1,"data":"` + string(data) + `"},{"$seq":2,"data":"x"}]`))
	if records != 2 || stamp != 5 {
		t.Errorf("%d records, stamp %d", records, stamp)
	}
}

// counter acknowledges in order and fails at its last append.
type counter struct {
	sent, received, most atomic.Int64
	failAt               int64
}

var errCounter = errors.New("counter")

func (c *counter) send(int64) error {
	if sent := c.sent.Add(1); sent == c.failAt {
		return errCounter
	}
	c.most.Store(max(c.most.Load(), c.sent.Load()-c.received.Load()))
	return nil
}

func (c *counter) receive() error { c.received.Add(1); return nil }
func (c *counter) close()         {}

func TestDriveKeepsItsDepth(t *testing.T) {
	for _, depth := range []int{1, 2, 8} {
		c := &counter{}
		waited, err := drive(c, depth, newWork(60, 100))
		if err != nil || len(waited) != 100 || c.sent.Load() != 100 || c.received.Load() != 100 {
			t.Errorf("depth %d: %d appends, %v", depth, len(waited), err)
		}
		if c.most.Load() > int64(depth) {
			t.Errorf("depth %d: %d under way", depth, c.most.Load())
		}
	}
}

func TestDriveReturnsTheFailureOfASend(t *testing.T) {
	for _, depth := range []int{1, 8} {
		if _, err := drive(&counter{failAt: 5}, depth, newWork(60, 100)); !errors.Is(err, errCounter) {
			t.Errorf("depth %d: %v", depth, err)
		}
	}
}

func TestNumbersOutOfBoundsAreRefused(t *testing.T) {
	for _, words := range [][]string{{"-size", "15"}, {"-clients", "0"}, {"-rate", "-1"}, {"-keys", "1500"}, {"-batch", "3"}} {
		if _, err := parse("append", words); err == nil {
			t.Errorf("%v is accepted", words)
		}
	}
}
