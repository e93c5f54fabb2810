// Pins the etcd that build.sh builds. It is a module of its own, since etcd's own go.mod cannot be installed by version.
module eddyline-peer-etcd

go 1.26.0

tool go.etcd.io/etcd/server/v3

require go.etcd.io/etcd/server/v3 v3.7.3
