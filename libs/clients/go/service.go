package main

import (
	"context"
	"slices"
	"time"

	pb "eddyline-first-client/gen/eddyline/v1"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"
)

const (
	// A record may have 8 MiB, more than gRPC takes by default.
	messageBytesMax = 64 << 20
	tryTime         = 10 * time.Second
	callTime        = 30 * time.Second
)

// service holds the stubs of a cluster.
type service struct {
	topics      pb.TopicServiceClient
	log         pb.LogServiceClient
	fold        pb.FoldServiceClient
	deliveries  []pb.DeliveryServiceClient
	connections []*grpc.ClientConn
	access      []grpc.DialOption
}

// open dials nobody yet: the first call does. access is what accessOf gives.
func open(storeAddress string, deliveryAddresses []string, access []grpc.DialOption) (*service, error) {
	opened := &service{access: access}
	store, err := opened.connect(storeAddress)
	if err != nil {
		return nil, err
	}
	opened.topics = pb.NewTopicServiceClient(store)
	opened.log = pb.NewLogServiceClient(store)
	opened.fold = pb.NewFoldServiceClient(store)
	for _, address := range deliveryAddresses {
		delivery, err := opened.connect(address)
		if err != nil {
			opened.close()
			return nil, err
		}
		opened.deliveries = append(opened.deliveries, pb.NewDeliveryServiceClient(delivery))
	}
	return opened, nil
}

func (s *service) close() {
	for _, connection := range s.connections {
		connection.Close()
	}
}

func (s *service) connect(address string) (*grpc.ClientConn, error) {
	// By default a peer that was away is dialled again after up to 120 s.
	redial := grpcbackoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}
	options := append(
		slices.Clone(s.access),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageBytesMax)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: redial, MinConnectTimeout: 2 * time.Second}),
		// A server answers pings that come each 10 s or less often.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 20 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true,
		}),
		grpc.WithDisableRetry(),
		grpc.WithNoProxy(),
	)
	connection, err := grpc.NewClient(address, options...)
	if err == nil {
		s.connections = append(s.connections, connection)
	}
	return connection, err
}

// call makes one call, repeated while another try may mend it and 30 s are not over. Only for reads, and for writes
// with an idempotency key: an answer may get lost after the write was done.
func call[Request, Answer any](
	ctx context.Context, method func(context.Context, Request, ...grpc.CallOption) (Answer, error), request Request,
) (Answer, error) {
	end := time.Now().Add(callTime)
	var pauses backoff
	for {
		deadline := time.Now().Add(tryTime)
		if end.Before(deadline) {
			deadline = end
		}
		tryContext, cancel := context.WithDeadline(ctx, deadline)
		answer, err := method(tryContext, request)
		cancel()
		if err == nil {
			return answer, nil
		}
		said := errorOf(err)
		pause := pauses.next(said.RetryAfter)
		if ctx.Err() != nil || !said.mendable() || time.Now().Add(pause).After(end) {
			return answer, said
		}
		if err := sleep(ctx, pause); err != nil {
			return answer, err
		}
	}
}
