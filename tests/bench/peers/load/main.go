// Command peerload puts the same load on Eddyline and on its peers, and prints one JSON object with the figures of a run.
//
//	peerload append  -system eddyline-stream -address HOST:PORT -topic T -clients 16 -in-flight 1 -seconds 2
//	peerload fan-out -system nats            -address HOST:PORT -topic T -subscribers 100 -rate 50 -records 100
//	peerload fill    -system redis           -address HOST:PORT -topic T -keys 100000
//	peerload get     -system redis           -address HOST:PORT -topic T -keys 100000 -keys-per-get 100 -clients 16
//	peerload drop    -system redis           -address HOST:PORT -topic T
//
// Each client and each subscriber is a goroutine with a connection of its own.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"
)

// options are the words of a command. Sizes are bytes, times seconds.
type options struct {
	system, address, delivery, topic, durability, pids string
	size, batch, clients, inFlight, subscribers        int
	keys, keysPerGet, records, rate                    int
	seconds, limitSeconds                              float64
}

// result is the output of a run. A record is one appended, one delivered, or one entry that a get returned.
type result struct {
	Records int     `json:"records"`
	Seconds float64 `json:"seconds"`
	P50US   float64 `json:"p50_us"`
	P99US   float64 `json:"p99_us"`
	ServerS float64 `json:"server_s"`
	ClientS float64 `json:"client_s"`
	// BusiestThread is the share of a core that the busiest thread of a server used.
	BusiestThread float64 `json:"busiest_thread"`
}

var commands = map[string]func(*options, system) (*result, error){
	"append": runAppend, "fan-out": runFanOut, "fill": runFill, "get": runGet, "drop": runDrop,
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fail(errors.New("a command is missing: append, fan-out, fill, get or drop"))
	}
	o, err := parse(os.Args[1], os.Args[2:])
	if err != nil {
		fail(err)
	}
	// The one limit of every wait in a run. A deadline on each gRPC call would add a header, and work of the server.
	limit := time.Duration(o.limitSeconds * float64(time.Second))
	time.AfterFunc(limit, func() { fail(fmt.Errorf("%s %s: not done within %s", os.Args[1], o.system, limit)) })
	s, err := systemOf(o)
	if err != nil {
		fail(err)
	}
	figures, err := commands[os.Args[1]](o, s)
	if err != nil {
		fail(fmt.Errorf("%s %s: %w", os.Args[1], o.system, err))
	}
	_ = json.NewEncoder(os.Stdout).Encode(figures)
}

func parse(command string, words []string) (*options, error) {
	o := &options{}
	flags := flag.NewFlagSet(command, flag.ExitOnError)
	flags.StringVar(&o.system, "system", "", "server and the way to use it")
	flags.StringVar(&o.address, "address", "", "host:port of the server; of Eddyline's store")
	flags.StringVar(&o.delivery, "delivery", "", "host:port of Eddyline's delivery")
	flags.StringVar(&o.topic, "topic", "bench", "topic, stream, bucket or prefix of keys")
	flags.StringVar(&o.durability, "durability", "fsync", "of a topic of Eddyline or topics: fsync or disk")
	flags.StringVar(&o.pids, "pids", "", "servers whose processor time counts: process ids with commas")
	flags.IntVar(&o.size, "size", 100, "bytes of a record, at least 16")
	flags.IntVar(&o.batch, "batch", 1, "records of an append")
	flags.IntVar(&o.clients, "clients", 1, "clients of append and get")
	flags.IntVar(&o.inFlight, "in-flight", 1, "appends of a client that wait for their acknowledgment")
	flags.IntVar(&o.subscribers, "subscribers", 10, "subscribers of fan-out")
	flags.IntVar(&o.records, "records", 1000, "records that fan-out appends")
	flags.IntVar(&o.rate, "rate", 0, "appends a second of fan-out; 0 = as fast as they are acknowledged")
	flags.IntVar(&o.keys, "keys", 100_000, "keys of fill and get, in thousands")
	flags.IntVar(&o.keysPerGet, "keys-per-get", 1, "keys of one get")
	flags.Float64Var(&o.seconds, "seconds", 2, "length of append and get")
	flags.Float64Var(&o.limitSeconds, "limit", 120, "the run fails after this time")
	_ = flags.Parse(words)
	for _, number := range []int{o.batch, o.clients, o.inFlight, o.subscribers, o.records, o.keysPerGet} {
		if number < 1 {
			return nil, errors.New("a number is below 1")
		}
	}
	if o.size < stampBytes || o.rate < 0 || o.keys < fillBatch || o.keys%fillBatch != 0 || o.records%o.batch != 0 {
		return nil, errors.New("-size is below 16, -rate below 0, -keys no multiple of 1000, or -records none of -batch")
	}
	return o, nil
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "peerload:", err)
	os.Exit(1)
}
