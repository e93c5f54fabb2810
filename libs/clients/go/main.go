// Command client: append, get, watch. What it knows of Eddyline it has from the proto files.
package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	pb "eddyline-first-client/gen/eddyline/v1"
)

//go:generate go run ./generate ../../../proto gen

const usage = `Usage: client [options] append TOPIC [KEY=VALUE ...]   one batch; no pairs: one a line from stdin
       client [options] get TOPIC KEY                the live value of a key (KV topics)
       client [options] watch TOPIC ...              records, gaps and events, across restarts, until Ctrl-C

  --store ADDRESS              the store (default 127.0.0.1:7701)
  --delivery ADDRESS[,...]     delivery's replicas (default 127.0.0.1:7703)
  --kind kv|log                append: makes the topic first if it is missing
  --idempotency-key KEY        append: the same key and records again append nothing (default: a new one)
  --start snapshot|tail|earliest   watch: where to begin (default earliest)
  --heartbeat-ms N             watch: most time without a frame, 100 to 60000 (default 5000)

In the environment, where the cluster asks for them: EDDYLINE_KEY (the secret of a key) or EDDYLINE_KEY_FILE (a file with
it); EDDYLINE_TLS_CA (the authority of its certificates, PEM) or EDDYLINE_TLS=true (those of the system).

Prints one JSON object a line. Errors go to standard error, with what to do about them; exit status 1, of usage 2.
Example: client --kind kv append orders 17=paid && client get orders 17 && client watch orders
`

var kinds = map[string]pb.TopicKind{"kv": pb.TopicKind_TOPIC_KIND_KV, "log": pb.TopicKind_TOPIC_KIND_LOG}

type options struct {
	store, delivery, kind, idempotencyKey, start string
	heartbeatMs                                  uint
}

type usageError struct{ message string }

func (e usageError) Error() string { return e.message }

func main() {
	// The first signal ends what runs, in order; a second one the process.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(exitStatus(ctx, run(ctx, os.Args[1:])))
}

func exitStatus(ctx context.Context, err error) int {
	var wrongUse usageError
	var said *Error
	switch {
	case err == nil || ctx.Err() != nil:
		return 0
	case errors.Is(err, flag.ErrHelp):
		fmt.Print(usage)
		return 0
	case errors.As(err, &wrongUse):
		tell(object{"error": "USAGE", "message": wrongUse.message + "; see --help"})
		return 2
	case errors.As(err, &said):
		tell(said.fields())
		return 1
	default:
		tell(object{"error": "CLIENT", "message": err.Error()})
		return 1
	}
}

func run(ctx context.Context, arguments []string) error {
	given, words, err := parsed(arguments)
	if err != nil {
		return err
	}
	if len(words) == 0 || !slices.Contains([]string{"append", "get", "watch"}, words[0]) {
		return usageError{"the command is append, get or watch"}
	}
	access, err := accessOf(os.Getenv)
	if err != nil {
		return err
	}
	service, err := open(given.store, strings.Split(given.delivery, ","), access)
	if err != nil {
		return err
	}
	defer service.close()
	switch words[0] {
	case "append":
		return appendBatch(ctx, service, given, words[1:])
	case "get":
		return get(ctx, service, words[1:])
	default:
		return watchTopics(ctx, service, given, words[1:])
	}
}

// parsed takes options before, between and after the words.
func parsed(arguments []string) (options, []string, error) {
	var given options
	flags := flag.NewFlagSet("client", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&given.store, "store", "127.0.0.1:7701", "")
	flags.StringVar(&given.delivery, "delivery", "127.0.0.1:7703", "")
	flags.StringVar(&given.kind, "kind", "", "")
	flags.StringVar(&given.idempotencyKey, "idempotency-key", "", "")
	flags.StringVar(&given.start, "start", "earliest", "")
	flags.UintVar(&given.heartbeatMs, "heartbeat-ms", 5000, "")
	var words []string
	for len(arguments) > 0 {
		if err := flags.Parse(arguments); errors.Is(err, flag.ErrHelp) {
			return given, nil, err
		} else if err != nil {
			return given, nil, usageError{err.Error()}
		}
		if arguments = flags.Args(); len(arguments) > 0 {
			words, arguments = append(words, arguments[0]), arguments[1:]
		}
	}
	return given, words, nil
}

func appendBatch(ctx context.Context, service *service, given options, words []string) error {
	if len(words) == 0 {
		return usageError{"append takes a topic"}
	}
	records, err := recordsOf(words[1:])
	if err != nil {
		return err
	}
	// One key for all tries: whether or not an answer got lost, the batch is there once.
	key := given.idempotencyKey
	if key == "" {
		key = rand.Text()
	}
	request := &pb.AppendRecordsRequest{
		Topic:          words[0],
		Batch:          &pb.AppendRecordsRequest_Rows{Rows: &pb.RecordBatch{Records: records}},
		IdempotencyKey: key,
	}
	if kind, known := kinds[given.kind]; known {
		request.Create = &pb.CreateIfMissing{Kind: kind}
	} else if given.kind != "" {
		return usageError{"--kind is kv or log"}
	}
	answer, err := call(ctx, service.log.AppendRecords, request)
	if err != nil {
		return err
	}
	return say(object{
		"topic":           words[0],
		"first_seq":       answer.FirstSeq,
		"last_seq":        answer.LastSeq,
		"epoch":           answer.Epoch,
		"deduplicated":    answer.Deduplicated,
		"idempotency_key": key,
	})
}

func recordsOf(pairs []string) ([]*pb.Record, error) {
	if len(pairs) == 0 {
		lines := bufio.NewScanner(os.Stdin)
		lines.Buffer(nil, 1<<21) // a record's data has 1 MiB at most
		for lines.Scan() {
			if lines.Text() != "" {
				pairs = append(pairs, lines.Text())
			}
		}
		if err := lines.Err(); err != nil {
			return nil, err
		}
	}
	var records []*pb.Record
	for _, pair := range pairs {
		key, value, found := strings.Cut(pair, "=")
		if !found {
			return nil, usageError{fmt.Sprintf("%q is not KEY=VALUE (=VALUE has no key)", pair)}
		}
		record := &pb.Record{Data: []byte(value)}
		if key != "" {
			record.Key = []byte(key)
		}
		records = append(records, record)
	}
	return records, nil
}

func get(ctx context.Context, service *service, words []string) error {
	if len(words) != 2 {
		return usageError{"get takes a topic and a key"}
	}
	answer, err := call(ctx, service.fold.GetEntry, &pb.GetEntryRequest{Topic: words[0], Key: []byte(words[1])})
	if err != nil {
		return err
	}
	fields := recordFields(answer.Entry)
	fields["topic"], fields["epoch"], fields["fold_seq"] = words[0], answer.State.Epoch, answer.State.FoldSeq
	return say(fields)
}

func watchTopics(ctx context.Context, service *service, given options, topics []string) error {
	if len(topics) == 0 {
		return usageError{"watch takes topics"}
	}
	if !slices.Contains([]string{"snapshot", "tail", "earliest"}, given.start) {
		return usageError{"--start is snapshot, tail or earliest"}
	}
	if given.heartbeatMs < 100 || given.heartbeatMs > 60_000 {
		return usageError{"--heartbeat-ms is 100 to 60000"}
	}
	slices.Sort(topics)
	starts, err := startsOf(ctx, service, slices.Compact(topics), given.start)
	if err != nil {
		return err
	}
	heartbeat := time.Duration(given.heartbeatMs) * time.Millisecond
	return watch(ctx, service, newPlan(starts, uint32(given.heartbeatMs)), heartbeat)
}
