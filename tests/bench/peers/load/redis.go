package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
)

const (
	redisBufferBytes = 256 << 10
	readCount        = "1000"
)

// redis keeps a topic as a stream. A batch is a pipeline of XADD; there are as many replies as records.
type redis struct{ o *options }

// appendCommand adds one command in Redis's protocol.
func appendCommand(to []byte, words ...[]byte) []byte {
	to = fmt.Appendf(to, "*%d\r\n", len(words))
	for _, word := range words {
		to = fmt.Appendf(to, "$%d\r\n", len(word))
		to = append(append(to, word...), "\r\n"...)
	}
	return to
}

// command has words of text.
func command(words ...string) []byte {
	parts := make([][]byte, len(words))
	for i, word := range words {
		parts[i] = []byte(word)
	}
	return appendCommand(nil, parts...)
}

// redisConnection sends commands and reads replies.
type redisConnection struct {
	net.Conn
	replies *bufio.Reader
}

func (r *redis) connect() (*redisConnection, error) {
	connection, err := net.Dial("tcp", r.o.address)
	if err != nil {
		return nil, err
	}
	return &redisConnection{connection, bufio.NewReaderSize(connection, redisBufferBytes)}, nil
}

// ask sends one command and passes each string of its reply to see.
func (c *redisConnection) ask(request []byte, see func([]byte)) error {
	if _, err := c.Write(request); err != nil {
		return err
	}
	return readReply(c.replies, see)
}

// readReply reads one reply and passes each bulk string in it to see, unless see is nil.
func readReply(from *bufio.Reader, see func([]byte)) error {
	line, err := from.ReadSlice('\n')
	if err != nil {
		return err
	}
	line = bytes.TrimRight(line, "\r\n")
	if len(line) == 0 {
		return errors.New("an empty reply")
	}
	switch line[0] {
	case '-':
		return errors.New(string(line[1:]))
	case '$':
		length, err := strconv.Atoi(string(line[1:]))
		if err != nil || length < 0 {
			return err
		}
		return readString(from, length, see)
	case '*':
		count, err := strconv.Atoi(string(line[1:]))
		if err != nil {
			return err
		}
		for range count {
			if err := readReply(from, see); err != nil {
				return err
			}
		}
	}
	return nil
}

func readString(from *bufio.Reader, length int, see func([]byte)) error {
	if see == nil {
		_, err := from.Discard(length + 2)
		return err
	}
	if text, err := from.Peek(length + 2); err == nil {
		see(text[:length])
		_, err = from.Discard(length + 2)
		return err
	}
	text := make([]byte, length+2)
	if _, err := io.ReadFull(from, text); err != nil {
		return err
	}
	see(text[:length])
	return nil
}

func (r *redis) createTopic() error { return nil }

func (r *redis) dropTopic() error {
	connection, err := r.connect()
	if err != nil {
		return err
	}
	defer connection.Close()
	return connection.ask(command("DEL", r.o.topic), nil)
}

func (r *redis) openAppenders(int) ([]appender, error) {
	connection, err := r.connect()
	if err != nil {
		return nil, err
	}
	a := &redisAppender{connection: connection}
	for range r.o.batch {
		a.request = appendCommand(a.request, []byte("XADD"), []byte(r.o.topic), []byte("*"), []byte("d"), payload(r.o.size))
		a.stamps = append(a.stamps, len(a.request)-len("\r\n")-r.o.size)
	}
	return []appender{a}, nil
}

type redisAppender struct {
	connection *redisConnection
	request    []byte
	stamps     []int
}

func (a *redisAppender) send(stamp int64) error {
	for _, at := range a.stamps {
		putStamp(a.request[at:], stamp)
	}
	_, err := a.connection.Write(a.request)
	return err
}

func (a *redisAppender) receive() error {
	for range a.stamps {
		if err := readReply(a.connection.replies, nil); err != nil {
			return err
		}
	}
	return nil
}

func (a *redisAppender) close() { _ = a.connection.Close() }

// entries counts the entries of an XREAD reply: an entry begins with its id, milliseconds and a number with a dash between.
type entries struct {
	count  int
	lastID []byte
	stamp  int64
}

func (e *entries) see(text []byte) {
	switch {
	case len(text) > 12 && len(text) < 30 && bytes.IndexByte(text, '-') >= 13:
		e.count++
		e.lastID = append(e.lastID[:0], text...)
	case e.count > 0 && e.stamp == 0 && len(text) >= stampBytes:
		e.stamp = stampOf(text)
	}
}

// watch reads by XREAD BLOCK from the stream's newest entry on.
func (r *redis) watch(ready func(), received func(records int, stamp int64)) error {
	connection, err := r.connect()
	if err != nil {
		return err
	}
	defer connection.Close()
	newest := entries{lastID: []byte("0-0")}
	if err := connection.ask(command("XREVRANGE", r.o.topic, "+", "-", "COUNT", "1"), newest.see); err != nil {
		return err
	}
	ready()
	id := string(newest.lastID)
	for {
		var seen entries
		request := command("XREAD", "COUNT", readCount, "BLOCK", "0", "STREAMS", r.o.topic, id)
		if err := connection.ask(request, seen.see); err != nil {
			return err
		}
		if seen.count > 0 {
			id = string(seen.lastID)
			received(seen.count, seen.stamp)
		}
	}
}

func (r *redis) fill() error {
	connection, err := r.connect()
	if err != nil {
		return err
	}
	defer connection.Close()
	for first := 0; first < r.o.keys; first += fillBatch {
		words := [][]byte{[]byte("MSET")}
		for number := range fillBatch {
			words = append(words, []byte(keyOf(first+number)), payload(r.o.size))
		}
		if err := connection.ask(appendCommand(nil, words...), nil); err != nil {
			return err
		}
	}
	return nil
}

func (r *redis) openReader() (reader, error) {
	connection, err := r.connect()
	return &redisReader{r.o, connection}, err
}

type redisReader struct {
	o          *options
	connection *redisConnection
}

func (r *redisReader) get(key string) (int, error) { return r.count(command("GET", key)) }

func (r *redisReader) getMany(keys []string) (int, error) {
	return r.count(command(append([]string{"MGET"}, keys...)...))
}

func (r *redisReader) count(request []byte) (int, error) {
	count := 0
	err := r.connection.ask(request, func(text []byte) {
		if len(text) == r.o.size {
			count++
		}
	})
	return count, err
}

func (r *redisReader) close() { _ = r.connection.Close() }
