package main

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"

	pb "eddyline-peer-load/gen/eddyline/v1"
)

// stepsUnderWay is how many steps of a gathering stream wait for their answers: one is at the server while the next one is
// on its way. Appends that come meanwhile gather for the step after it.
const stepsUnderWay = 2

// eddylineGather is an AppendStream whose steps have all appends that wait, up to the server's `appends_max`.
type eddylineGather struct {
	o          *options
	connection *grpc.ClientConn
	stream     grpc.BidiStreamingClient[pb.AppendStreamRequest, pb.AppendStreamResponse]
	waiting    chan int64
	slots      chan struct{}
	failed     chan error
	appendsMax atomic.Int64
	answered   int
}

func newEddylineGather(o *options, connection *grpc.ClientConn, client pb.LogServiceClient) (*eddylineGather, error) {
	stream, err := client.AppendStream(context.Background())
	if err != nil {
		return nil, err
	}
	start := &pb.AppendStreamRequest_Start{Start: &pb.AppendStart{Topic: o.topic}}
	if err := stream.Send(&pb.AppendStreamRequest{Step: start}); err != nil {
		return nil, err
	}
	g := &eddylineGather{
		o: o, connection: connection, stream: stream, waiting: make(chan int64, o.inFlight),
		slots: make(chan struct{}, stepsUnderWay), failed: make(chan error, 1),
	}
	g.appendsMax.Store(1)
	go g.run()
	return g, nil
}

func (g *eddylineGather) send(stamp int64) error {
	select {
	case err := <-g.failed:
		return err
	case g.waiting <- stamp:
		return nil
	}
}

// run sends a step whenever fewer than stepsUnderWay wait for their answers.
func (g *eddylineGather) run() {
	for stamp := range g.waiting {
		g.slots <- struct{}{}
		appends := []*pb.AppendBatch{g.batch(stamp)}
		for more := true; more && len(appends) < int(g.appendsMax.Load()); {
			select {
			case stamp, more = <-g.waiting:
				if more {
					appends = append(appends, g.batch(stamp))
				}
			default:
				more = false
			}
		}
		step := &pb.AppendStreamRequest{Step: &pb.AppendStreamRequest_Append{Append: appends[0]}}
		if len(appends) > 1 {
			step.Step = &pb.AppendStreamRequest_Appends{Appends: &pb.AppendBatches{Appends: appends}}
		}
		if err := g.stream.Send(step); err != nil {
			g.failed <- err
			return
		}
	}
	_ = g.stream.CloseSend()
}

func (g *eddylineGather) batch(stamp int64) *pb.AppendBatch {
	batch := newEddylineBatch(g.o)
	batch.putStamps(stamp)
	return &pb.AppendBatch{Batch: &pb.AppendBatch_Columns{Columns: batch.columns}}
}

func (g *eddylineGather) receive() error {
	if g.answered > 0 {
		g.answered--
		return nil
	}
	answer, err := g.stream.Recv()
	if err != nil {
		return err
	}
	<-g.slots
	if answer.AppendsMax > 0 {
		g.appendsMax.Store(int64(answer.AppendsMax))
	}
	g.answered = max(len(answer.Outcomes), 1) - 1
	return nil
}

func (g *eddylineGather) close() {
	close(g.waiting)
	for {
		if _, err := g.stream.Recv(); err != nil {
			break
		}
	}
	_ = g.connection.Close()
}
