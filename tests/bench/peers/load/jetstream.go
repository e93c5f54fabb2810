package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	apiTime    = 20 * time.Second
	acksMax    = 1 << 16
	fillWindow = 4096
	// errStreamExists is JetStream's err_code for a stream of this name.
	errStreamExists = 10058
)

// jetstream publishes to a stream on files, with an acknowledgment each. Subscribers are ordered consumers (jetstream) or
// core subscriptions (nats-core), which get messages before they are stored.
type jetstream struct{ o *options }

func (j *jetstream) connect() (*nats.Conn, error) {
	return nats.Connect("nats://"+j.o.address, nats.NoReconnect(), nats.Timeout(apiTime))
}

// call makes one call of the JetStream API, whose settings may be newer than the client library.
func (j *jetstream) call(subject string, request any) error {
	connection, err := j.connect()
	if err != nil {
		return err
	}
	defer connection.Close()
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	message, err := connection.Request("$JS.API."+subject, body, apiTime)
	if err != nil {
		return err
	}
	var answer struct {
		Error *struct {
			Code        int    `json:"err_code"`
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(message.Data, &answer); err != nil {
		return err
	}
	if answer.Error != nil && answer.Error.Code != errStreamExists {
		return fmt.Errorf("%s: %s", subject, answer.Error.Description)
	}
	return nil
}

func (j *jetstream) createTopic() error {
	return j.call("STREAM.CREATE."+j.o.topic, map[string]any{
		"name": j.o.topic, "subjects": []string{j.o.topic}, "storage": "file", "retention": "limits", "discard": "old",
		"max_msgs": -1, "max_bytes": -1, "max_consumers": -1, "num_replicas": 1,
	})
}

func (j *jetstream) dropTopic() error { return j.call("STREAM.DELETE."+j.o.topic, map[string]any{}) }

func (j *jetstream) openAppenders(int) ([]appender, error) {
	connection, err := j.connect()
	if err != nil {
		return nil, err
	}
	a := &jetstreamAppender{o: j.o, connection: connection, data: payload(j.o.size), inbox: nats.NewInbox()}
	// One connection carries publishes and acknowledgments, so they have the same order.
	a.acks = make(chan *nats.Msg, acksMax)
	if _, err := connection.ChanSubscribe(a.inbox, a.acks); err != nil {
		return nil, err
	}
	return []appender{a}, connection.Flush()
}

type jetstreamAppender struct {
	o          *options
	connection *nats.Conn
	data       []byte
	inbox      string
	acks       chan *nats.Msg
}

func (a *jetstreamAppender) send(stamp int64) error {
	putStamp(a.data, stamp)
	for range a.o.batch {
		if err := a.connection.PublishRequest(a.o.topic, a.inbox, a.data); err != nil {
			return err
		}
	}
	return nil
}

func (a *jetstreamAppender) receive() error {
	for range a.o.batch {
		if err := checkAck(<-a.acks); err != nil {
			return err
		}
	}
	return nil
}

func checkAck(ack *nats.Msg) error {
	if ack == nil {
		return errors.New("the connection ended")
	}
	if status := ack.Header.Get("Status"); status != "" || bytes.Contains(ack.Data, []byte(`"error":`)) {
		return fmt.Errorf("%s %s", status, ack.Data)
	}
	return nil
}

func (a *jetstreamAppender) close() { a.connection.Close() }

func (j *jetstream) watch(ready func(), received func(records int, stamp int64)) error {
	connection, err := j.connect()
	if err != nil {
		return err
	}
	defer connection.Close()
	failed := make(chan error, 1)
	connection.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		select {
		case failed <- err:
		default: // the first one ends the watch
		}
	})
	take := func(message *nats.Msg) { received(1, stampOf(message.Data)) }
	var subscription *nats.Subscription
	if j.o.system == "nats-core" {
		subscription, err = connection.Subscribe(j.o.topic, take)
	} else {
		var context nats.JetStreamContext
		if context, err = connection.JetStream(nats.MaxWait(apiTime)); err != nil {
			return err
		}
		subscription, err = context.Subscribe(j.o.topic, take, nats.OrderedConsumer(), nats.DeliverNew())
	}
	if err != nil {
		return err
	}
	if err := subscription.SetPendingLimits(-1, -1); err != nil { // the run's records bound it
		return err
	}
	if err := connection.Flush(); err != nil {
		return err
	}
	ready()
	return <-failed
}

func (j *jetstream) fill() error {
	connection, err := j.connect()
	if err != nil {
		return err
	}
	defer connection.Close()
	context, err := connection.JetStream(nats.MaxWait(apiTime))
	if err != nil {
		return err
	}
	config := &nats.KeyValueConfig{Bucket: j.o.topic, History: 1, Storage: nats.FileStorage}
	if _, err := context.CreateKeyValue(config); err != nil {
		return err
	}
	inbox, acks := nats.NewInbox(), make(chan *nats.Msg, acksMax)
	if _, err := connection.ChanSubscribe(inbox, acks); err != nil {
		return err
	}
	for number := range j.o.keys + fillWindow {
		if number >= fillWindow {
			if err := checkAck(<-acks); err != nil {
				return err
			}
		}
		if number >= j.o.keys {
			continue
		}
		subject := "$KV." + j.o.topic + "." + keyOf(number)
		if err := connection.PublishRequest(subject, inbox, payload(j.o.size)); err != nil {
			return err
		}
	}
	return nil
}

func (j *jetstream) openReader() (reader, error) {
	connection, err := j.connect()
	if err != nil {
		return nil, err
	}
	context, err := connection.JetStream(nats.MaxWait(apiTime))
	if err != nil {
		return nil, err
	}
	bucket, err := context.KeyValue(j.o.topic)
	if err != nil {
		return nil, err
	}
	inbox, answers := nats.NewInbox(), make(chan *nats.Msg, acksMax)
	if _, err := connection.ChanSubscribe(inbox, answers); err != nil {
		return nil, err
	}
	return &jetstreamReader{j.o, connection, bucket, inbox, answers}, nil
}

type jetstreamReader struct {
	o          *options
	connection *nats.Conn
	bucket     nats.KeyValue
	inbox      string
	answers    chan *nats.Msg
}

func (r *jetstreamReader) get(key string) (int, error) {
	entry, err := r.bucket.Get(key)
	if err != nil || len(entry.Value()) != r.o.size {
		return 0, err
	}
	return 1, nil
}

// getMany is the server's batched direct get: the newest message of each subject, then an empty one with status 204.
func (r *jetstreamReader) getMany(keys []string) (int, error) {
	subjects := make([]string, len(keys))
	for i, key := range keys {
		subjects[i] = "$KV." + r.o.topic + "." + key
	}
	body, err := json.Marshal(map[string]any{"multi_last": subjects})
	if err != nil {
		return 0, err
	}
	if err := r.connection.PublishRequest("$JS.API.DIRECT.GET.KV_"+r.o.topic, r.inbox, body); err != nil {
		return 0, err
	}
	for count := 0; ; count++ {
		message := <-r.answers
		if message == nil {
			return count, errors.New("the connection ended")
		}
		switch status := message.Header.Get("Status"); status {
		case "":
		case "204":
			return count, nil
		default:
			return count, fmt.Errorf("%s %s", status, message.Header.Get("Description"))
		}
	}
}

func (r *jetstreamReader) close() { r.connection.Close() }
