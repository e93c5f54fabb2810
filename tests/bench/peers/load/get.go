package main

import (
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	// fillBatch is the number of keys that one write of fill puts.
	fillBatch = 1000
	// keyStride separates the keys of one get, so that they are not neighbours; it is a prime.
	keyStride = 1993
)

// keyOf is a key of two tokens: NATS separates them by a dot.
func keyOf(number int) string { return fmt.Sprintf("%06d.%03d", number/fillBatch, number%fillBatch) }

// runFill puts every key once.
func runFill(o *options, s system) (*result, error) {
	started := time.Now()
	if err := s.fill(); err != nil {
		return nil, err
	}
	return &result{Records: o.keys, Seconds: time.Since(started).Seconds()}, nil
}

// runGet reads random keys in a closed loop.
func runGet(o *options, s system) (*result, error) {
	readers := make([]reader, o.clients)
	for client := range readers {
		r, err := s.openReader()
		if err != nil {
			return nil, err
		}
		defer r.close()
		if err := getOnce(r, o); err != nil {
			return nil, err
		}
		readers[client] = r
	}
	before, started := usageNow(o), time.Now()
	todo := workFor(o.seconds)
	waited, err := together(o.clients, func(client int) ([]int64, error) {
		var waited []int64
		for todo.take() {
			sent := now()
			if err := getOnce(readers[client], o); err != nil {
				return waited, err
			}
			waited = append(waited, now()-sent)
		}
		return waited, nil
	})
	if err != nil {
		return nil, err
	}
	figures := &result{Records: len(waited) * o.keysPerGet, Seconds: time.Since(started).Seconds()}
	figures.addUsage(before, usageNow(o))
	figures.addLatencies(waited)
	return figures, nil
}

// getOnce reads random keys that exist, each once.
func getOnce(r reader, o *options) error {
	first := rand.IntN(o.keys)
	var count int
	var err error
	if o.keysPerGet == 1 {
		count, err = r.get(keyOf(first))
	} else {
		keys := make([]string, o.keysPerGet)
		for i := range keys {
			keys[i] = keyOf((first + i*keyStride) % o.keys)
		}
		count, err = r.getMany(keys)
	}
	if err == nil && count != o.keysPerGet {
		err = fmt.Errorf("%d entries of %d keys", count, o.keysPerGet)
	}
	return err
}
