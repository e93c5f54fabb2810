package main

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// opensAtOnce bounds the connections that are opened at a time: a listener's backlog may be 128.
	opensAtOnce = 50
	// settleTime passes before the first append, so that the work of opening is not measured.
	settleTime = 300 * time.Millisecond
)

// runFanOut lets one client append `records`, at a rate or as fast as they are acknowledged, while every subscriber receives
// all of them. A latency is the time from before the append to a frame at a subscriber, by one clock.
func runFanOut(o *options, s system) (*result, error) {
	if err := s.createTopic(); err != nil {
		return nil, err
	}
	appenders, err := s.openAppenders(0)
	if err != nil {
		return nil, err
	}
	for _, a := range appenders {
		defer a.close()
		if err := a.send(now()); err != nil {
			return nil, err
		}
		if err := a.receive(); err != nil {
			return nil, err
		}
	}
	time.Sleep(settleTime)
	f := openSubscribers(o, s)
	if err := f.wait(&f.ready); err != nil {
		return nil, err
	}
	time.Sleep(settleTime)
	before, started := usageNow(o), now()
	go func() {
		if err := publish(o, appenders); err != nil {
			f.failed <- err
		}
	}()
	if err := f.wait(&f.done); err != nil {
		return nil, err
	}
	after := usageNow(o)
	figures := &result{Records: o.records * o.subscribers, Seconds: float64(f.last.Load()-started) / 1e9}
	figures.addUsage(before, after)
	var all []int64
	for _, waited := range f.waited {
		all = append(all, waited...)
	}
	figures.addLatencies(all)
	return figures, nil
}

// fanOut is the state of all subscribers of a run.
type fanOut struct {
	ready, done sync.WaitGroup
	failed      chan error
	last        atomic.Int64
	waited      [][]int64
}

func openSubscribers(o *options, s system) *fanOut {
	f := &fanOut{failed: make(chan error, o.subscribers+1), waited: make([][]int64, o.subscribers)}
	f.ready.Add(o.subscribers)
	f.done.Add(o.subscribers)
	opening := make(chan struct{}, opensAtOnce)
	for number := range o.subscribers {
		go func() {
			opening <- struct{}{}
			ready := sync.OnceFunc(func() { <-opening; f.ready.Done() })
			count := 0
			received := func(records int, stamp int64) {
				at := now()
				if count >= o.records {
					return
				}
				f.waited[number] = append(f.waited[number], at-stamp)
				if count += records; count >= o.records {
					f.last.Store(at)
					f.done.Done()
				}
			}
			if err := s.watch(ready, received); err != nil {
				f.failed <- err
			}
		}()
	}
	return f
}

// wait is for all subscribers, or the first failure; the run's limit ends it.
func (f *fanOut) wait(group *sync.WaitGroup) error {
	over := make(chan struct{})
	go func() { group.Wait(); close(over) }()
	select {
	case <-over:
		return nil
	case err := <-f.failed:
		return err
	}
}

// publish appends all records: one append a tick, or as many under way as the appenders have.
func publish(o *options, appenders []appender) error {
	appends := o.records / o.batch
	if o.rate == 0 {
		todo, depth := newWork(o.limitSeconds, appends), depthOf(appenders, o.inFlight)
		_, err := together(len(appenders), func(number int) ([]int64, error) { return drive(appenders[number], depth, todo) })
		return err
	}
	tick := time.NewTicker(time.Second / time.Duration(o.rate))
	defer tick.Stop()
	for range appends {
		<-tick.C
		if err := appenders[0].send(now()); err != nil {
			return err
		}
		if err := appenders[0].receive(); err != nil {
			return err
		}
	}
	return nil
}
