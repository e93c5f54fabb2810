"""Advice for operators by error reason: the command prints it, programs read it as `EddylineError.advice`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOOK: Final = "check the cluster with `eddyline status`"
_WHAT_TO_DO: Final = {
    "NOT_READY": f"the role is starting, recovering or stopping: try again in a moment; {_LOOK}",
    "DEADLINE": f"try again in a moment; {_LOOK}",
    "STORE_UNREACHABLE": f"{_LOOK}; `eddyline up` keeps the logs of its stores in its folder, under logs",
    "NATS_UNREACHABLE": f"check that NATS runs at EDDYLINE_INGEST_NATS_URL; {_LOOK}",
    "TOPIC_NOT_FOUND": "list topics with `eddyline topic list`, create one with `eddyline topic create NAME` (add "
    "`--kind kv` for a KV topic)",
    "SOURCE_NOT_FOUND": "list sources with `eddyline source list`",
    "TOPIC_EXISTS": "use it if its kind and durability fit, or delete it with `eddyline topic delete NAME`",
    "SOURCE_EXISTS": "check it with `eddyline source get NAME`; `eddyline source update NAME` changes it",
    "NOT_KV": "only topics created with `--kind kv` have keys; read this one with `eddyline read`",
    "INVALID_OP": "a LOG topic takes APPEND only; PUT, DELETE and PURGE need a KV topic: `eddyline topic create NAME "
    "--kind kv`",
    "BATCH_TOO_LARGE": "append in several calls; each line of standard input is an append of its own",
    "KEY_REQUIRED": 'give one with --key, or "key" in JSON lines',
    "TOPIC_HAS_SOURCE": "write to its bucket instead",
    "TOPIC_NOT_EMPTY": "use a new topic for a source or an import; without --if-empty a delete removes the records too",
    "CURSOR_AHEAD": "use a smaller seq; `eddyline topic get TOPIC` prints the head",
    "HISTORY_GONE": "use a later point; retention or deletes removed the older records",
    "TIME_NOT_REACHED": "use a time in the past by the store's clock",
    "TOPIC_FULL": "raise the cap with `eddyline topic update`, delete records, or give it --discard old",
    "EPOCH_MISMATCH": "the topic was deleted and created again; check it with `eddyline topic get TOPIC`",
    "FOLD_LOST": "`eddyline fold import TOPIC` restores it, `eddyline settle-fold TOPIC` accepts the remaining entries",
    "ARTIFACT_NOT_FOUND": "list artifacts with `eddyline fold list TOPIC`, make one with `eddyline fold export TOPIC`",
    "ARTIFACT_INVALID": "import another one (--artifact NAME), or export the fold again",
    "ARTIFACT_MISMATCH": "import it into a topic without a source, or with the artifact's source",
    "ARTIFACTS_UNREACHABLE": "check the location in EDDYLINE_STORE_ARTIFACTS, then try again",
    "DISK_FLOOR": "free space on the store's disk; reads and deletes still work",
    "MEMORY_FULL": "try again in a moment",
    "TOO_MANY_SCANS": "try again when other scans have ended",
    "BUCKET_NOT_FOUND": "create the bucket with `nats kv add NAME --history 64`, or delete its source with "
    "`eddyline source delete`",
    "READ_ONLY": "check the disk, then restart the store",
    "COMMIT_UNKNOWN": "repeat it with the same --idempotency-key within the topic's idempotency window",
    "KEY_INVALID": "use a key that NATS allows; existing keys are copied without this check",
    "KEY_EXISTS": "change it with `eddyline kv update`, or overwrite it with `eddyline kv put`",
    "REVISION_MISMATCH": "another client wrote the key; read it again, then give its current revision",
    "FOREIGN_SUBJECTS": "copy it as a stream (`eddyline source create NAME --stream KV_BUCKET`), which takes every "
    "subject, or remove those messages from it",
    "BUCKET_NOT_COPIED": "copy the key with `eddyline source create`, or leave out --wait-applied",
    "BUCKET_FULL": "raise the bucket's limits, or delete keys",
    "WRITE_UNKNOWN": "the write may have happened: read the key before a retry",
    "APPLY_PENDING": "the write is done: do not repeat it; check `eddyline source list`",
    "UNAUTHENTICATED": "give a key: --key-file FILE, EDDYLINE_KEY_FILE or EDDYLINE_KEY; `eddyline key new` makes one",
    "PERMISSION_DENIED": "use another key, or give this one the scope or the prefix in the cluster's keys file",
    "QUOTA_REQUESTS": "try again in a moment, with fewer calls at once",
    "QUOTA_WATCHES": "end other watches of this key, or use another delivery replica",
    "QUOTA_BYTES": "delete records or topics, or give topics a cap or a TTL",
    "QUOTA_TOPICS": "delete unused topics, or raise EDDYLINE_STORE_TOPICS_MAX",
    "DATA_CORRUPT": "keep the file, and restore the data directory from a copy",
}
_BY_METADATA: Final = {
    "NOT_READY": {
        "shardIndex": f"topics of other stores are served; {_LOOK}",
        "unresolvedName": "run it where that name resolves, or set the addresses that the roles return to clients: "
        "EDDYLINE_COMMON_STORE_ADVERTISED_ADDRESSES, EDDYLINE_COMMON_INGEST_ADVERTISED_ADDRESSES, "
        "EDDYLINE_COMMON_DELIVERY_ADVERTISED_ADDRESSES",
        "nameGiven": "check the name, and that this machine can resolve it",
        "addressGiven": "check that a role listens at this address, and that this machine can reach it",
        "folderGiven": "start the cluster with `eddyline up` and the same --data, or give --cluster HOST:PORT",
        "notGrpc": "give the address of an Eddyline role",
        "roleAway": f"the other roles still serve; {_LOOK}",
        "noTls": "if the cluster uses TLS, give --tls-ca FILE (EDDYLINE_TLS_CA), and --tls-cert and --tls-key if it needs "
        f"a client certificate; otherwise {_LOOK}",
        "noCertificate": "if the cluster needs a client certificate, give --tls-cert FILE --tls-key FILE "
        f"(EDDYLINE_TLS_CERT, EDDYLINE_TLS_KEY); otherwise {_LOOK}",
        "certificateRefused": "the certificate of --tls-cert must be of an authority that the cluster trusts, and not "
        f"expired; if it is valid, {_LOOK}",
        "untrusted": "--tls-ca FILE (EDDYLINE_TLS_CA) must have the authority that signed the cluster's certificate, which "
        "must be for this name or address, and not expired",
        "noTlsThere": "it uses no TLS: leave out --tls-ca, --tls-cert, --tls-key, and unset EDDYLINE_TLS and EDDYLINE_TLS_*",
        "refusedBy": "nothing listens at {refusedBy}: start the cluster or correct the address",
    },
    "TOPIC_NOT_FOUND": {
        "kvWanted": "list topics with `eddyline topic list`, create one with `eddyline topic create NAME --kind kv`",
    },
    "BUCKET_NOT_FOUND": {
        "stream": "create the stream with `nats stream add NAME`, or delete its source with `eddyline source delete`",
    },
    "NATS_UNREACHABLE": {
        "credentials": "correct the file of EDDYLINE_INGEST_NATS_CREDS_FILE (read at each attempt), or the user in "
        "EDDYLINE_INGEST_NATS_URL",
        "deniedSubject": "allow it for ingest's NATS user; services/ingest/README.md lists all permissions",
        "deniedInbox": "allow ingest's NATS user to subscribe to it, or set an inbox prefix that it may use",
    },
    "NOT_KV": {
        "source": "a stream's topic is a log: read it with `eddyline read`; `eddyline source get` prints its progress"
    },
    "SOURCE_EXISTS": {
        "isSettled": "an update cannot change it: delete the source, then create it with a new topic (--topic)"
    },
    "RECORD_TOO_LARGE": {
        "capRecords": "raise the cap with `eddyline topic update TOPIC --cap-bytes` or `--cap-records`, or append less",
        "limitBytes": "the limit is the same for every topic: split the record, or append a reference to the data",
    },
}
"""Advice for an error with several causes, by the metadata key that names the cause. `{key}` = that key's value."""

NOT_GRPC: Final = "does not speak gRPC"
"""In the message of a call to a port of another protocol, e.g. NATS's."""
_REFUSED: Final = re.compile(r"ipv[46]:(\S+): .*Connection refused")
"""gRPC's text for a port at which no process listens."""


def advice_of(reason: str, metadata: Mapping[str, str], *, unanswered: str = "") -> str:
    """Return the advice for an error; empty = none. `unanswered` = gRPC's message of a call without an answer."""
    causes = {**metadata, **_causes_of_grpc(unanswered)}
    for metadata_key, advice in _BY_METADATA.get(reason, {}).items():
        if metadata_key in causes:
            return advice.replace(f"{{{metadata_key}}}", causes[metadata_key])
    return _WHAT_TO_DO.get(reason, "")


def _causes_of_grpc(message: str) -> dict[str, str]:
    if NOT_GRPC in message:
        return {"notGrpc": "1"}
    refused = _REFUSED.search(message)
    return {"refusedBy": refused[1].replace("%5B", "[").replace("%5D", "]")} if refused else {}
