package main

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	stampBytes = 16
	hexDigits  = "0123456789abcdef"
	printable  = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
)

var processStart = time.Now()

// now is the time of stamps: nanoseconds of the monotonic clock since this process started.
func now() int64 { return int64(time.Since(processStart)) }

// putStamp writes a stamp as 16 hexadecimal digits, which are valid in JSON too.
func putStamp(to []byte, stamp int64) {
	for i := stampBytes - 1; i >= 0; i-- {
		to[i] = hexDigits[stamp&15]
		stamp >>= 4
	}
}

func stampOf(from []byte) int64 {
	var stamp int64
	for _, digit := range from[:stampBytes] {
		if digit >= 'a' {
			digit -= 'a' - '0' - 10
		}
		stamp = stamp<<4 | int64(digit-'0')
	}
	return stamp
}

// payload is printable, and does not compress well.
func payload(size int) []byte {
	data := make([]byte, size)
	for i := range data {
		data[i] = printable[rand.IntN(len(printable))]
	}
	return data
}

// work is shared by all clients of a run: it ends at a time, or after a number of appends.
type work struct {
	until time.Time
	left  atomic.Int64
}

func workFor(seconds float64) *work { return newWork(seconds, 1<<40) }

func newWork(seconds float64, appends int) *work {
	w := &work{until: time.Now().Add(time.Duration(seconds * float64(time.Second)))}
	w.left.Store(int64(appends))
	return w
}

func (w *work) take() bool { return w.left.Add(-1) >= 0 && time.Now().Before(w.until) }

// drive appends while there is work, with at most `depth` appends under way, and returns the time of each until its
// acknowledgment, in ns.
func drive(a appender, depth int, w *work) ([]int64, error) {
	var waited []int64
	if depth <= 1 {
		for w.take() {
			sent := now()
			if err := a.send(sent); err != nil {
				return waited, err
			}
			if err := a.receive(); err != nil {
				return waited, err
			}
			waited = append(waited, now()-sent)
		}
		return waited, nil
	}
	sents := make(chan int64, depth-1) // receive waits for one more
	failed := make(chan error, 1)
	go func() {
		defer close(sents)
		for w.take() {
			sent := now()
			sents <- sent
			if err := a.send(sent); err != nil {
				failed <- err
				return
			}
		}
	}()
	for sent := range sents {
		if err := a.receive(); err != nil {
			return waited, err
		}
		waited = append(waited, now()-sent)
	}
	select {
	case err := <-failed:
		return waited, err
	default:
		return waited, nil
	}
}

// depthOf is how many appends each of a client's appenders has under way.
func depthOf(appenders []appender, inFlight int) int {
	if len(appenders) == 1 {
		return inFlight
	}
	return 1
}

// together runs `count` goroutines and returns all their times, and the first error.
func together(count int, run func(number int) ([]int64, error)) ([]int64, error) {
	var group sync.WaitGroup
	var lock sync.Mutex
	var all []int64
	var first error
	for number := range count {
		group.Go(func() {
			waited, err := run(number)
			lock.Lock()
			defer lock.Unlock()
			all = append(all, waited...)
			if first == nil {
				first = err
			}
		})
	}
	group.Wait()
	return all, first
}

// addLatencies puts the percentiles of times in ns into a result.
func (r *result) addLatencies(waited []int64) {
	if len(waited) == 0 {
		return
	}
	slices.Sort(waited)
	r.P50US = float64(waited[len(waited)/2]) / 1e3
	r.P99US = float64(waited[len(waited)*99/100]) / 1e3
}
