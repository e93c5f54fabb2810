package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// topics is slopus/topics: JSON over HTTP/1.1. Frames are counted by marks and not parsed, so this client is cheaper than
// any real one.
type topics struct{ o *options }

func (t *topics) url(path string) string { return "http://" + t.o.address + "/v0/" + path }

func newHTTPClient() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1, DisableCompression: true}}
}

func request(client *http.Client, method, url string, body []byte) ([]byte, error) {
	message, err := http.NewRequest(method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	message.Header.Set("content-type", "application/json")
	answer, err := client.Do(message)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode >= http.StatusMultipleChoices {
		err = fmt.Errorf("%s: %s", answer.Status, text)
	}
	return text, err
}

func (t *topics) createTopic() error {
	body, err := json.Marshal(map[string]string{"durability": t.o.durability})
	if err != nil {
		return err
	}
	_, err = request(newHTTPClient(), http.MethodPut, t.url("topics/"+t.o.topic), body)
	return err
}

func (t *topics) dropTopic() error {
	_, err := request(newHTTPClient(), http.MethodDelete, t.url("topics/"+t.o.topic), nil)
	return err
}

func (t *topics) openAppenders(int) ([]appender, error) {
	a := &topicsAppender{client: newHTTPClient(), url: t.url("topics/" + t.o.topic + "?return_seqs=false")}
	a.body = append(a.body, `{"records":[`...)
	for i := range t.o.batch {
		if i > 0 {
			a.body = append(a.body, ',')
		}
		a.body = append(a.body, `{"data":"`...)
		a.stamps = append(a.stamps, len(a.body))
		a.body = append(append(a.body, payload(t.o.size)...), `"}`...)
	}
	a.body = append(a.body, `]}`...)
	if t.o.inFlight > 1 {
		return nil, errNone // HTTP/1.1 has one request under way on a connection
	}
	return []appender{a}, nil
}

type topicsAppender struct {
	client *http.Client
	url    string
	body   []byte
	stamps []int
}

func (a *topicsAppender) send(stamp int64) error {
	for _, at := range a.stamps {
		putStamp(a.body[at:], stamp)
	}
	return nil
}

func (a *topicsAppender) receive() error {
	_, err := request(a.client, http.MethodPost, a.url, a.body)
	return err
}

func (a *topicsAppender) close() { a.client.CloseIdleConnections() }

var (
	seqMark  = []byte(`"$seq":`)
	dataMark = []byte(`"data":"`)
)

// countRecords returns the records of a frame, and the stamp of the first one.
func countRecords(frame []byte) (int, int64) {
	records, at := bytes.Count(frame, seqMark), bytes.Index(frame, dataMark)
	if records == 0 || at < 0 || len(frame) < at+len(dataMark)+stampBytes {
		return records, 0
	}
	return records, stampOf(frame[at+len(dataMark):])
}

// watch reads server-sent events.
func (t *topics) watch(ready func(), received func(records int, stamp int64)) error {
	client := newHTTPClient()
	body := fmt.Sprintf(`{"topics":{"%s":{"tail":true}},"limit":1000,"include_meta":false}`, t.o.topic)
	text, err := request(client, http.MethodPost, t.url("watch"), []byte(body))
	if err != nil {
		return err
	}
	var watch struct {
		StreamURL string `json:"stream_url"`
	}
	if err := json.Unmarshal(text, &watch); err != nil {
		return err
	}
	message, err := http.NewRequest(http.MethodGet, "http://"+t.o.address+watch.StreamURL, nil)
	if err != nil {
		return err
	}
	message.Header.Set("accept", "text/event-stream")
	answer, err := client.Do(message)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("watch: %s", answer.Status)
	}
	ready()
	lines := bufio.NewReaderSize(answer.Body, redisBufferBytes)
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil && err != bufio.ErrBufferFull {
			return err
		}
		if records, stamp := countRecords(line); records > 0 {
			received(records, stamp)
		}
	}
}

func (t *topics) fill() error { return errNone }

func (t *topics) openReader() (reader, error) { return nil, errNone }
