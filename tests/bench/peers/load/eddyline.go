package main

import (
	"context"
	"encoding/binary"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "eddyline-peer-load/gen/eddyline/v1"
)

const (
	messageBytesMax = 64 << 20
	heartbeatMS     = 60_000
)

func grpcDial(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageBytesMax), grpc.MaxCallSendMsgSize(messageBytesMax)))
}

// eddyline appends columns: by AppendRecords (eddyline-unary), or by one AppendStream a client with one append in each step
// (eddyline-stream) or all that wait (eddyline-gather).
type eddyline struct{ o *options }

func (e *eddyline) createTopic() error { return e.create(pb.TopicKind_TOPIC_KIND_LOG) }

func (e *eddyline) create(kind pb.TopicKind) error {
	connection, err := grpcDial(e.o.address)
	if err != nil {
		return err
	}
	defer connection.Close()
	config := &pb.TopicConfig{Durability: pb.Durability_DURABILITY_FSYNC}
	if e.o.durability == "disk" {
		config.Durability = pb.Durability_DURABILITY_DISK
	}
	topic := &pb.Topic{Name: e.o.topic, Kind: kind, Config: config}
	_, err = pb.NewTopicServiceClient(connection).CreateTopic(context.Background(), &pb.CreateTopicRequest{Topic: topic})
	if status.Code(err) == codes.AlreadyExists {
		return nil
	}
	return err
}

func (e *eddyline) dropTopic() error {
	connection, err := grpcDial(e.o.address)
	if err != nil {
		return err
	}
	defer connection.Close()
	request := &pb.DeleteTopicRequest{Topic: e.o.topic}
	_, err = pb.NewTopicServiceClient(connection).DeleteTopic(context.Background(), request)
	return err
}

// columnOf has cells of one size.
func columnOf(count, size int, values []byte) *pb.BinaryColumn {
	offsets := make([]byte, 0, 4*(count+1))
	for i := range count + 1 {
		offsets = binary.LittleEndian.AppendUint32(offsets, uint32(i*size))
	}
	return &pb.BinaryColumn{Offsets: offsets, Values: values}
}

func (e *eddyline) openAppenders(int) ([]appender, error) {
	connection, err := grpcDial(e.o.address)
	if err != nil {
		return nil, err
	}
	client := pb.NewLogServiceClient(connection)
	if e.o.system == "eddyline-unary" {
		calls := make([]appender, e.o.inFlight)
		for i := range calls {
			calls[i] = &eddylineCall{eddylineBatch: newEddylineBatch(e.o), connection: connection, client: client}
		}
		return calls, nil
	}
	if e.o.system == "eddyline-gather" {
		gather, err := newEddylineGather(e.o, connection, client)
		return []appender{gather}, err
	}
	stream, err := client.AppendStream(context.Background())
	if err != nil {
		return nil, err
	}
	start := &pb.AppendStreamRequest_Start{Start: &pb.AppendStart{Topic: e.o.topic}}
	if err := stream.Send(&pb.AppendStreamRequest{Step: start}); err != nil {
		return nil, err
	}
	return []appender{&eddylineStream{eddylineBatch: newEddylineBatch(e.o), connection: connection, stream: stream}}, nil
}

// eddylineBatch is the batch of all appends of one appender; each record's data begin with the stamp.
type eddylineBatch struct {
	o       *options
	columns *pb.ColumnarBatch
}

func newEddylineBatch(o *options) eddylineBatch {
	data := columnOf(o.batch, o.size, payload(o.batch*o.size))
	return eddylineBatch{o, &pb.ColumnarBatch{Count: uint32(o.batch), Data: data}}
}

func (b *eddylineBatch) putStamps(stamp int64) {
	for i := range b.o.batch {
		putStamp(b.columns.Data.Values[i*b.o.size:], stamp)
	}
}

type eddylineCall struct {
	eddylineBatch
	connection *grpc.ClientConn
	client     pb.LogServiceClient
}

func (c *eddylineCall) send(stamp int64) error {
	c.putStamps(stamp)
	return nil
}

func (c *eddylineCall) receive() error {
	batch := &pb.AppendRecordsRequest_Columns{Columns: c.columns}
	_, err := c.client.AppendRecords(context.Background(), &pb.AppendRecordsRequest{Topic: c.o.topic, Batch: batch})
	return err
}

func (c *eddylineCall) close() { _ = c.connection.Close() }

type eddylineStream struct {
	eddylineBatch
	connection *grpc.ClientConn
	stream     grpc.BidiStreamingClient[pb.AppendStreamRequest, pb.AppendStreamResponse]
}

func (s *eddylineStream) send(stamp int64) error {
	s.putStamps(stamp)
	batch := &pb.AppendBatch{Batch: &pb.AppendBatch_Columns{Columns: s.columns}}
	return s.stream.Send(&pb.AppendStreamRequest{Step: &pb.AppendStreamRequest_Append{Append: batch}})
}

func (s *eddylineStream) receive() error {
	_, err := s.stream.Recv()
	return err
}

func (s *eddylineStream) close() {
	_ = s.stream.CloseSend()
	for {
		if _, err := s.stream.Recv(); err != nil {
			break
		}
	}
	_ = s.connection.Close()
}

// watch reads a WatchTopics of columns at delivery.
func (e *eddyline) watch(ready func(), received func(records int, stamp int64)) error {
	connection, err := grpcDial(e.o.delivery)
	if err != nil {
		return err
	}
	defer connection.Close()
	topic := &pb.WatchTopic{Topic: e.o.topic, Start: &pb.WatchTopic_Point{Point: pb.StartPoint_START_POINT_TAIL}}
	stream, err := pb.NewDeliveryServiceClient(connection).WatchTopics(context.Background(), &pb.WatchTopicsRequest{
		Topics: []*pb.WatchTopic{topic}, Format: pb.BatchFormat_BATCH_FORMAT_COLUMNS, HeartbeatMs: heartbeatMS,
	})
	if err != nil {
		return err
	}
	for {
		frame, err := stream.Recv()
		if err == io.EOF {
			return io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		if frame.GetCaughtUp() != nil {
			ready()
		}
		if columns := frame.GetColumns(); columns.GetCount() > 0 {
			received(int(columns.Count), stampOf(columns.Data.Values))
		}
	}
}

func (e *eddyline) fill() error {
	if err := e.create(pb.TopicKind_TOPIC_KIND_KV); err != nil {
		return err
	}
	connection, err := grpcDial(e.o.address)
	if err != nil {
		return err
	}
	defer connection.Close()
	client := pb.NewLogServiceClient(connection)
	for first := 0; first < e.o.keys; first += fillBatch {
		var keys []byte
		for number := range fillBatch {
			keys = append(keys, keyOf(first+number)...)
		}
		columns := &pb.ColumnarBatch{
			Count: fillBatch,
			Key:   columnOf(fillBatch, len(keys)/fillBatch, keys),
			Data:  columnOf(fillBatch, e.o.size, payload(fillBatch*e.o.size)),
		}
		request := &pb.AppendRecordsRequest{Topic: e.o.topic, Batch: &pb.AppendRecordsRequest_Columns{Columns: columns}}
		if _, err := client.AppendRecords(context.Background(), request); err != nil {
			return err
		}
	}
	return nil
}

func (e *eddyline) openReader() (reader, error) {
	connection, err := grpcDial(e.o.address)
	if err != nil {
		return nil, err
	}
	return &eddylineReader{e.o, connection, pb.NewFoldServiceClient(connection)}, nil
}

type eddylineReader struct {
	o          *options
	connection *grpc.ClientConn
	client     pb.FoldServiceClient
}

func (r *eddylineReader) get(key string) (int, error) {
	answer, err := r.client.GetEntry(context.Background(), &pb.GetEntryRequest{Topic: r.o.topic, Key: []byte(key)})
	if err != nil || len(answer.GetEntry().GetData()) != r.o.size {
		return 0, err
	}
	return 1, nil
}

func (r *eddylineReader) getMany(keys []string) (int, error) {
	request := &pb.BatchGetEntriesRequest{Topic: r.o.topic}
	for _, key := range keys {
		request.Keys = append(request.Keys, []byte(key))
	}
	answer, err := r.client.BatchGetEntries(context.Background(), request)
	count := 0
	for _, maybe := range answer.GetEntries() {
		if len(maybe.GetEntry().GetData()) == r.o.size {
			count++
		}
	}
	return count, err
}

func (r *eddylineReader) close() { _ = r.connection.Close() }
