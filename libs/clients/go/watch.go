package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	pb "eddyline-first-client/gen/eddyline/v1"

	"google.golang.org/grpc/codes"
)

const (
	silentHeartbeatsMax = 3
	defectsMax          = 5
	// A stream that lived this long forgives the failures before it, though no place moved: its topics are quiet.
	quiet = 10 * time.Minute
)

// startsOf settles where each topic begins. A tail is settled once, as a cursor at the head of now: the point TAIL
// would be a later one at each reconnect.
func startsOf(ctx context.Context, service *service, topics []string, start string) (map[string]*place, error) {
	found := map[string]*place{}
	for _, topic := range topics {
		switch start {
		case "tail":
			answer, err := call(ctx, service.topics.GetTopic, &pb.GetTopicRequest{Topic: topic})
			if err != nil {
				return nil, err
			}
			found[topic] = &place{cursor: &pb.Cursor{Topic: topic, Epoch: answer.Topic.Epoch, Seq: answer.Topic.HeadSeq}}
		case "snapshot":
			found[topic] = &place{point: pb.StartPoint_START_POINT_SNAPSHOT}
		default:
			found[topic] = &place{point: pb.StartPoint_START_POINT_EARLIEST}
		}
	}
	return found, nil
}

// watcher is a watch that goes on: it reconnects with backoff and jitter, to the next replica, and resumes behind the
// last frame.
type watcher struct {
	service *service
	plan    *plan
	silence time.Duration
	pauses  backoff
	defects int
	replica int
	broken  bool
}

// watch ends when all topics were deleted, or with what another try cannot mend.
func watch(ctx context.Context, service *service, plan *plan, heartbeat time.Duration) error {
	w := &watcher{service: service, plan: plan, silence: silentHeartbeatsMax * heartbeat}
	for !plan.finished() {
		before, opened := plan.moves, time.Now()
		err := w.stream(ctx)
		if ctx.Err() != nil {
			return nil
		}
		// Only a place that moved is progress: a heartbeat may come first on each of a thousand streams that break.
		progress := plan.moves != before || time.Since(opened) >= quiet
		if progress {
			w.defects = 0
			w.pauses.reset()
		}
		var broke *Error
		var pause time.Duration
		switch {
		case errors.As(err, &broke):
			if pause, err = w.recover(broke); err != nil {
				return err
			}
		case err != nil:
			return err
		case !progress:
			// Ended in order, but no place moved. One that moved one is resumed at once.
			pause = w.pauses.next(0)
		}
		w.replica++
		if err := sleep(ctx, pause); err != nil {
			return nil
		}
	}
	return nil
}

// stream takes one stream to its end. It has no deadline; one that is silent for some heartbeats is given up instead,
// whether its server died, hangs, or is cut off. Time in which we do not read does not count.
func (w *watcher) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := time.AfterFunc(w.silence, cancel)
	defer timer.Stop()
	delivery := w.service.deliveries[w.replica%len(w.service.deliveries)]
	stream, err := delivery.WatchTopics(ctx, w.plan.request())
	if err != nil {
		return w.broke(err, !timer.Stop())
	}
	for {
		timer.Reset(w.silence)
		frame, err := stream.Recv()
		fired := !timer.Stop()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return w.broke(err, fired)
		}
		goingAway, err := w.take(frame)
		if err != nil || goingAway {
			return err
		}
	}
}

func (w *watcher) broke(err error, silent bool) error {
	if silent {
		message := fmt.Sprintf("no message for %d ms", w.silence.Milliseconds())
		return &Error{Code: codes.Unavailable, Reason: "UNAVAILABLE", Message: message}
	}
	return errorOf(err)
}

// take says what a frame says; true = the replica ends the stream, which goes on elsewhere at once.
func (w *watcher) take(frame *pb.WatchTopicsResponse) (bool, error) {
	if w.broken {
		w.broken = false
		if err := say(object{"event": "resumed"}); err != nil {
			return false, err
		}
	}
	for _, fields := range w.plan.accept(frame) {
		if err := say(fields); err != nil {
			return false, err
		}
	}
	return isGoingAway(frame), nil
}

// isGoingAway asks by name, so that this compiles with protos that do not have the frame yet.
func isGoingAway(frame *pb.WatchTopicsResponse) bool {
	message := frame.ProtoReflect()
	kind := message.WhichOneof(message.Descriptor().Oneofs().ByName("frame"))
	return kind != nil && kind.Name() == "going_away"
}

// recover says what to do about a broken stream: a pause, or the error, if no other try can mend it.
func (w *watcher) recover(broke *Error) (time.Duration, error) {
	switch {
	case broke.Reason == "TOPIC_NOT_FOUND":
		gone := w.plan.drop(broke.Metadata["topic"])
		if gone == nil {
			return 0, broke
		}
		return 0, say(gone)
	case broke.Reason == "RESUME_TOKEN_INVALID" || broke.Reason == "RESUME_TOKEN_MISMATCH":
		if w.defects >= defectsMax || !w.plan.dropToken() {
			return 0, broke
		}
		w.defects++
	case broke.Code == codes.Internal && broke.OfRole && w.defects < defectsMax:
		w.defects++
	case !broke.mendable():
		return 0, broke
	}
	if !w.broken {
		w.broken = true
		if err := say(object{"event": "reconnecting", "reason": broke.Reason, "message": broke.Message}); err != nil {
			return 0, err
		}
	}
	return w.pauses.next(broke.RetryAfter), nil
}
