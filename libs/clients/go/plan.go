package main

import (
	pb "eddyline-first-client/gen/eddyline/v1"
)

// plan is where a watch stands: what to ask for at a (re)connect, and what each frame means. No calls, no time.
//
// What request asks for begins exactly behind the last frame that accept took, in every topic. The place is the newest
// cursor of a topic; one that has had none is at its start or, where there is a token, where the token says.
type plan struct {
	places      map[string]*place
	token       []byte
	hadToken    bool
	heartbeatMs uint32
	// moves counts how often a place moved on, or the first token came. Heartbeats and snapshots that begin anew move
	// nothing.
	moves int
}

// place is one topic's: a cursor, or nil and the point to start at.
type place struct {
	point      pb.StartPoint
	cursor     *pb.Cursor
	inSnapshot bool
}

func newPlan(places map[string]*place, heartbeatMs uint32) *plan {
	return &plan{places: places, heartbeatMs: heartbeatMs}
}

// finished tells that every topic was deleted.
func (p *plan) finished() bool { return len(p.places) == 0 }

func (p *plan) request() *pb.WatchTopicsRequest {
	request := &pb.WatchTopicsRequest{ResumeToken: p.token, HeartbeatMs: p.heartbeatMs, MessageBytesMax: messageBytesMax}
	for topic, at := range p.places {
		wanted := &pb.WatchTopic{Topic: topic}
		if at.cursor != nil {
			wanted.Start = &pb.WatchTopic_Cursor{Cursor: at.cursor}
		} else {
			wanted.Start = &pb.WatchTopic_Point{Point: at.point}
		}
		request.Topics = append(request.Topics, wanted)
	}
	return request
}

// accept takes a frame whole; gives what it says, one object a line. A kind of frame that is not known here moves the
// cursor like any other and says nothing.
func (p *plan) accept(frame *pb.WatchTopicsResponse) []object {
	if len(frame.ResumeToken) > 0 {
		p.token = frame.ResumeToken
		if !p.hadToken {
			p.hadToken = true
			p.moves++
		}
	}
	if frame.GetCaughtUp() != nil {
		return []object{{"event": "caught_up"}}
	}
	at := p.places[frame.Topic]
	if at == nil {
		return nil
	}
	if frame.GetTopicDeleted() != nil {
		return []object{p.gone(frame.Topic)}
	}
	said := p.saidOf(frame, at)
	// Within a snapshot there is no place: one that is broken off begins anew, with its own snapshot_begin.
	if frame.Cursor != nil && !at.inSnapshot {
		if at.cursor == nil || frame.Cursor.Epoch != at.cursor.Epoch || frame.Cursor.Seq != at.cursor.Seq {
			p.moves++
		}
		at.cursor = frame.Cursor
	}
	return said
}

// drop is for a resume that found a topic missing: it was deleted meanwhile. nil = it had never been there.
func (p *plan) drop(topic string) object {
	if topic == "" && len(p.places) == 1 {
		for topic = range p.places {
		}
	}
	if at := p.places[topic]; at == nil || at.cursor == nil {
		return nil
	}
	return p.gone(topic)
}

// dropToken is for a token that was refused: the cursors stand by themselves. False = there was none.
func (p *plan) dropToken() bool {
	had := len(p.token) > 0
	p.token = nil
	return had
}

func (p *plan) saidOf(frame *pb.WatchTopicsResponse, at *place) []object {
	switch kind := frame.Frame.(type) {
	case *pb.WatchTopicsResponse_Rows:
		said := make([]object, 0, len(kind.Rows.Records))
		for index, record := range kind.Rows.Records {
			fields := recordFields(record)
			fields["topic"], fields["epoch"], fields["in_snapshot"] = frame.Topic, frame.Cursor.GetEpoch(), at.inSnapshot
			// Whoever applies appends as a whole holds records back up to the one that has batch_end.
			if frame.BatchEnd && index == len(kind.Rows.Records)-1 {
				fields["batch_end"] = true
			}
			said = append(said, fields)
		}
		return said
	case *pb.WatchTopicsResponse_Progress:
		if !frame.BatchEnd {
			return nil
		}
		return []object{{"topic": frame.Topic, "event": "batch_end"}}
	case *pb.WatchTopicsResponse_Gap:
		fields := gapFields(kind.Gap)
		fields["topic"] = frame.Topic
		return []object{fields}
	case *pb.WatchTopicsResponse_SnapshotBegin:
		at.inSnapshot = true
		return []object{{"topic": frame.Topic, "event": "snapshot_begin", "fold_seq": kind.SnapshotBegin.FoldSeq}}
	case *pb.WatchTopicsResponse_SnapshotEnd:
		at.inSnapshot = false
		end := kind.SnapshotEnd
		return []object{{"topic": frame.Topic, "event": "snapshot_end", "fold_seq": end.FoldSeq, "count": end.Count}}
	default:
		return nil
	}
}

// gone takes a topic out. The token may have it too: it is good for the others.
func (p *plan) gone(topic string) object {
	delete(p.places, topic)
	p.moves++
	return object{"topic": topic, "event": "topic_deleted"}
}
