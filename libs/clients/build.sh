#!/usr/bin/env bash
# Builds the example clients into build/clients/LANGUAGE, each with a command `client` there:
#
#   libs/clients/build.sh [node] [go] [java]        (none named = all)
#
# Sources are copied first, so nothing is made beside them; what was built from the same sources and proto files is
# left as it is. Exit status: 0 = built; 77 = the toolchain or its packages cannot be had here (said on standard
# error), the others are built; 1 = a build failed.
set -euo pipefail
cd "$(dirname "$0")/../.."
OUT=build/clients
NOT_HERE=77

without() { echo "clients: $1 is left out: $2" >&2; return $NOT_HERE; }

needs() { # needs LANGUAGE TOOL...
  local language=$1 tool
  shift
  for tool; do
    command -v "$tool" >/dev/null || without "$language" "no $tool on this machine" || return
  done
}

build_node() { # protos are loaded at run time
  needs node node npm || return
  node -e 'process.exit(+(parseInt(process.versions.node) < 18))' \
    || without node "it needs Node 18.3, not $(node --version)" || return
  (cd "$OUT/node" && npm install --no-package-lock --no-audit --no-fund --silent --fetch-retries 1) \
    || without node "its packages cannot be had here" || return
  ln -sf client.js "$OUT/node/client" && chmod +x "$OUT/node/client.js"
}

build_go() {
  needs go go || return
  local there
  there=$(go env GOVERSION)
  (cd "$OUT/go" && GOFLAGS=-mod=mod GOTOOLCHAIN=local go mod tidy >log 2>&1) \
    || {
      tail -n 3 "$OUT/go/log" >&2
      without go "its modules cannot be had here, or need a newer one than $there"
    } || return
  (cd "$OUT/go" && export GOFLAGS=-mod=mod GOTOOLCHAIN=local && go generate . && go build -buildvcs=false -o client .)
}

build_java() {
  needs java java javac mvn || return
  javac --release 17 -version >/dev/null 2>&1 || without java "it needs a JDK of 17 or newer" || return
  # A build this short is over before the second compiler pays.
  export MAVEN_OPTS="${MAVEN_OPTS:--XX:+UseSerialGC -XX:TieredStopAtLevel=1}"
  if ! (cd "$OUT/java" && mvn --batch-mode --quiet package >log 2>&1); then
    tail -n 20 "$OUT/java/log" >&2
    grep -qE 'Could not (transfer|resolve|find)|Unknown host|Connection (refused|timed out)' "$OUT/java/log" || return 1
    without java "its packages cannot be had here" || return
  fi
  cat >"$OUT/java/client" <<'END'
#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)
# Arguments are text in the locale's encoding. The flags are for a short start.
LC_ALL=C.UTF-8 exec java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
  -cp "$here/target/client.jar:$here/target/lib/*" eddyline.first.Main "$@"
END
  chmod +x "$OUT/java/client"
}

build() { # build LANGUAGE, if anything it is made of has changed
  local language=$1 stamp status=0
  stamp=$(find "libs/clients/$language" libs/clients/build.sh proto -type f \
    -not -name '*.md' -not -path '*/node_modules/*' -print0 | sort -z | xargs -0 cksum)
  [ -x "$OUT/$language/client" ] && [ "$stamp" = "$(cat "$OUT/$language/stamp" 2>/dev/null)" ] && return
  rm -rf "${OUT:?}/$language" && mkdir -p "$OUT" && cp -r "libs/clients/$language" "$OUT/$language"
  "build_$language" || status=$?
  [ $status -ne 0 ] || { echo "$stamp" >"$OUT/$language/stamp"; echo "clients: $OUT/$language/client" >&2; }
  return $status
}

worst=0
for language in ${@:-node go java}; do
  status=0
  build "$language" || status=$?
  if [ $status -eq $NOT_HERE ]; then
    [ $worst -ne 0 ] || worst=$NOT_HERE
  elif [ $status -ne 0 ]; then
    echo "clients: $language does not build" >&2
    worst=1
  fi
done
exit $worst
