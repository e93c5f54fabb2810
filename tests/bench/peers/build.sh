#!/usr/bin/env bash
# Builds the load client and etcd, build/peers/peerload and build/peers/etcd:
#
#   tests/bench/peers/build.sh [load] [etcd]        (none named = both)
#
# Sources are copied first, so nothing is made beside them; what was built from the same sources and proto files is
# left as it is. Exit status: 0 = built; 77 = Go or its modules cannot be had here (said on standard error), the other
# is built; 1 = a build failed.
set -euo pipefail
cd "$(dirname "$0")/../../.."
HERE=tests/bench/peers
OUT=build/peers
NOT_HERE=77
export GOFLAGS=-mod=mod GOTOOLCHAIN=local

without() { echo "peers: $1 is left out: $2" >&2; return $NOT_HERE; }

resolve() { # resolve FOLDER PATTERN...: fetch the modules of these packages
  local folder=$1
  shift
  (cd "$OUT/$folder" && go list -deps "$@" >log 2>&1) \
    || {
      tail -n 3 "$OUT/$folder/log" >&2
      without "$folder" "its modules cannot be had here, or need a newer Go than $(go env GOVERSION)"
    }
}

build_load() { # the Go client's command makes Go of the proto files
  mkdir -p "$OUT/generate" \
    && cp -r libs/clients/go/go.mod libs/clients/go/generate "$OUT/generate" && cp -r "$HERE/load" "$OUT/load" || return 1
  resolve generate ./generate tool || return
  (cd "$OUT/generate" && go run ./generate ../../../proto ../load/gen) || return 1
  resolve load . || return
  (cd "$OUT/load" && go vet . && go test . >/dev/null && go build -buildvcs=false -o ../peerload .) || return 1
}

build_etcd() {
  cp -r "$HERE/etcd" "$OUT/etcd-module" || return 1
  resolve etcd-module tool || return
  (cd "$OUT/etcd-module" && go build -buildvcs=false -o ../etcd go.etcd.io/etcd/server/v3) || return 1
}

build() { # build NAME BINARY SOURCES..., if a source has changed
  local name=$1 binary=$OUT/$2 stamp status=0
  shift 2
  stamp=$(find "$@" "$HERE/build.sh" -type f -print0 | sort -z | xargs -0 cksum)
  [ -x "$binary" ] && [ "$stamp" = "$(cat "$OUT/$name.stamp" 2>/dev/null)" ] && return
  rm -rf "$binary" "${OUT:?}/$name" "$OUT/$name-module" "$OUT/$name.stamp" && mkdir -p "$OUT"
  command -v go >/dev/null || without "$name" "no go on this machine" || return
  "build_$name" || status=$?
  [ $status -ne 0 ] || echo "$stamp" >"$OUT/$name.stamp"
  return $status
}

worst=0
for name in ${@:-load etcd}; do
  status=0
  case $name in
    load) build load peerload "$HERE/load" libs/clients/go/generate libs/clients/go/go.mod proto || status=$? ;;
    etcd) build etcd etcd "$HERE/etcd" || status=$? ;;
    *) echo "peers: no $name; there are load and etcd" >&2 && exit 1 ;;
  esac
  if [ $status -eq $NOT_HERE ]; then
    [ $worst -ne 0 ] || worst=$NOT_HERE
  elif [ $status -ne 0 ]; then
    echo "peers: $name does not build" >&2
    worst=1
  fi
done
exit $worst
