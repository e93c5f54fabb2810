package main

import (
	"errors"
	"fmt"
)

// system is a server and a way to use it. A method that the server has no counterpart for returns errNone.
type system interface {
	// createTopic makes the topic or stream of a log, unless it exists.
	createTopic() error
	// openAppenders connects one client. It returns one appender that has up to `inFlight` appends under way, or as
	// many appenders as that, which share the client's connection and have one append under way each.
	openAppenders(client int) ([]appender, error)
	// watch is one subscriber from the topic's end on. It calls ready once it misses nothing, then received with the
	// records of each frame and the stamp of the first one, and returns only with an error.
	watch(ready func(), received func(records int, stamp int64)) error
	// fill puts all keys, and makes the bucket or topic for them.
	fill() error
	// openReader connects one client that reads keys.
	openReader() (reader, error)
	// dropTopic deletes the topic or stream.
	dropTopic() error
}

// appender sends appends of one batch. Where a protocol has only calls, send stamps the batch and receive makes the call.
type appender interface {
	send(stamp int64) error
	// receive waits for the acknowledgment of the oldest append.
	receive() error
	close()
}

// reader reads keys; each method returns how many entries of the right size came.
type reader interface {
	get(key string) (int, error)
	getMany(keys []string) (int, error)
	close()
}

var errNone = errors.New("this system has no such call")

func systemOf(o *options) (system, error) {
	switch o.system {
	case "eddyline-unary", "eddyline-stream", "eddyline-gather":
		return &eddyline{o}, nil
	case "jetstream", "nats-core":
		return &jetstream{o}, nil
	case "redis":
		return &redis{o}, nil
	case "etcd":
		return &etcd{o}, nil
	case "topics":
		return &topics{o}, nil
	}
	return nil, fmt.Errorf("no system %q", o.system)
}

// runDrop deletes the topic of earlier runs.
func runDrop(_ *options, s system) (*result, error) { return &result{}, s.dropTopic() }
