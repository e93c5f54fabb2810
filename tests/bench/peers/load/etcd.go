package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// etcdOps is the most operations of a transaction: the server's --max-txn-ops is set to 1 024.
const etcdOps = fillBatch

// etcd keeps each record of a topic under a key of its own, below a prefix; a batch is one transaction.
type etcd struct{ o *options }

func (e *etcd) connect() (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints: []string{e.o.address}, DialTimeout: apiTime,
		MaxCallRecvMsgSize: messageBytesMax, MaxCallSendMsgSize: messageBytesMax,
	})
}

func (e *etcd) createTopic() error { return nil }

func (e *etcd) dropTopic() error {
	client, err := e.connect()
	if err != nil {
		return err
	}
	defer client.Close()
	answer, err := client.Delete(context.Background(), e.o.topic+"/", clientv3.WithPrefix())
	if err != nil {
		return err
	}
	_, err = client.Compact(context.Background(), answer.Header.Revision)
	return err
}

func (e *etcd) openAppenders(number int) ([]appender, error) {
	client, err := e.connect()
	if err != nil {
		return nil, err
	}
	keys := &etcdKeys{prefix: fmt.Sprintf("%s/%x/%04d/", e.o.topic, time.Now().UnixNano(), number)}
	calls := make([]appender, e.o.inFlight)
	for i := range calls {
		calls[i] = &etcdAppender{e.o, client, keys, payload(e.o.size)}
	}
	return calls, nil
}

// etcdKeys gives the keys of one client, each once.
type etcdKeys struct {
	prefix string
	last   atomic.Int64
}

func (k *etcdKeys) next() string { return fmt.Sprintf("%s%010d", k.prefix, k.last.Add(1)) }

type etcdAppender struct {
	o      *options
	client *clientv3.Client
	keys   *etcdKeys
	data   []byte
}

func (a *etcdAppender) send(stamp int64) error {
	putStamp(a.data, stamp)
	return nil
}

func (a *etcdAppender) receive() error {
	if a.o.batch == 1 {
		_, err := a.client.Put(context.Background(), a.keys.next(), string(a.data))
		return err
	}
	puts := make([]clientv3.Op, a.o.batch)
	for i := range puts {
		puts[i] = clientv3.OpPut(a.keys.next(), string(a.data))
	}
	_, err := a.client.Txn(context.Background()).Then(puts...).Commit()
	return err
}

func (a *etcdAppender) close() { _ = a.client.Close() }

func (e *etcd) watch(ready func(), received func(records int, stamp int64)) error {
	client, err := e.connect()
	if err != nil {
		return err
	}
	defer client.Close()
	answers := client.Watch(context.Background(), e.o.topic+"/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	for answer := range answers {
		if err := answer.Err(); err != nil {
			return err
		}
		if answer.Created {
			ready()
		} else if len(answer.Events) > 0 {
			received(len(answer.Events), stampOf(answer.Events[0].Kv.Value))
		}
	}
	return errors.New("the watch ended")
}

func (e *etcd) fill() error {
	client, err := e.connect()
	if err != nil {
		return err
	}
	defer client.Close()
	for first := 0; first < e.o.keys; first += etcdOps {
		puts := make([]clientv3.Op, etcdOps)
		for i := range puts {
			puts[i] = clientv3.OpPut(e.o.topic+"/"+keyOf(first+i), string(payload(e.o.size)))
		}
		if _, err := client.Txn(context.Background()).Then(puts...).Commit(); err != nil {
			return err
		}
	}
	return nil
}

func (e *etcd) openReader() (reader, error) {
	client, err := e.connect()
	return &etcdReader{e.o, client}, err
}

type etcdReader struct {
	o      *options
	client *clientv3.Client
}

func (r *etcdReader) get(key string) (int, error) {
	answer, err := r.client.Get(context.Background(), r.o.topic+"/"+key)
	if err != nil {
		return 0, err
	}
	return len(answer.Kvs), nil
}

// getMany is one transaction, as etcd has no other read of several keys at one revision.
func (r *etcdReader) getMany(keys []string) (int, error) {
	gets := make([]clientv3.Op, len(keys))
	for i, key := range keys {
		gets[i] = clientv3.OpGet(r.o.topic + "/" + key)
	}
	answer, err := r.client.Txn(context.Background()).Then(gets...).Commit()
	if err != nil {
		return 0, err
	}
	count := 0
	for _, one := range answer.Responses {
		count += len(one.GetResponseRange().Kvs)
	}
	return count, nil
}

func (r *etcdReader) close() { _ = r.client.Close() }
