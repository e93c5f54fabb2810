module eddyline-peer-load

go 1.26.0

require (
	github.com/nats-io/nats.go v1.55.0
	go.etcd.io/etcd/client/v3 v3.7.3
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
)
