"""Advice for operators by error reason: the command prints it, programs read it as `EddylineError.advice`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOOK: Final = "look at it with `eddyline status`"
_WHAT_TO_DO: Final = {
    "NOT_READY": f"it starts, recovers or stops: try again in a moment; {_LOOK}",
    "DEADLINE": f"try again in a moment; {_LOOK}",
    "STORE_UNREACHABLE": f"{_LOOK}; stores of `eddyline up` log into its folder, below logs",
    "NATS_UNREACHABLE": f"is NATS up, where EDDYLINE_INGEST_NATS_URL says? {_LOOK}",
    "TOPIC_NOT_FOUND": "list them with `eddyline topic list`, make it with `eddyline topic create NAME`",
    "SOURCE_NOT_FOUND": "list them with `eddyline source list`",
    "TOPIC_EXISTS": "use it, or delete it with `eddyline topic delete NAME`",
    "SOURCE_EXISTS": "look at it with `eddyline source get NAME`; `eddyline source update NAME` changes that",
    "NOT_KV": "only topics made with `--kind kv` have keys; read this one with `eddyline read`",
    "BATCH_TOO_LARGE": "append it in several calls; lines of standard input are an append each",
    "KEY_REQUIRED": 'give one with --key, or "key" in JSON lines',
    "TOPIC_HAS_SOURCE": "write to its bucket instead",
    "TOPIC_NOT_EMPTY": "give a source or an import a new topic; without --if-empty a topic is deleted with all it has",
    "CURSOR_AHEAD": "ask for a smaller seq; `eddyline topic get TOPIC` has the head",
    "HISTORY_GONE": "ask for a later point; retention or deletes took what was before",
    "TIME_NOT_REACHED": "ask for a time that is past by the store's clock",
    "TOPIC_FULL": "raise the cap with `eddyline topic update`, delete records, or give it --discard old",
    "EPOCH_MISMATCH": "it was deleted and made again; look at it with `eddyline topic get TOPIC`",
    "FOLD_LOST": "`eddyline fold import TOPIC` restores it, `eddyline settle-fold TOPIC` takes what is left",
    "ARTIFACT_NOT_FOUND": "list them with `eddyline fold list TOPIC`, make one with `eddyline fold export TOPIC`",
    "ARTIFACT_INVALID": "import another one (--artifact NAME), or export the fold anew",
    "ARTIFACT_MISMATCH": "import it into a topic without a source, or with the artifact's own",
    "ARTIFACTS_UNREACHABLE": "look at the place that EDDYLINE_STORE_ARTIFACTS names, and try again",
    "DISK_FLOOR": "make room on the store's disk; reads and deletes still work",
    "MEMORY_FULL": "try again in a moment",
    "TOO_MANY_SCANS": "try again when others are done",
    "BUCKET_NOT_FOUND": "create the bucket; a source of it is deleted with `eddyline source delete`",
    "READ_ONLY": "look at the disk, then restart the store",
    "COMMIT_UNKNOWN": "repeat it with the same --idempotency-key to settle it",
    "KEY_INVALID": "what others wrote is copied whatever it is called; only keys we write follow NATS's rule",
    "KEY_EXISTS": "change it with `eddyline kv update`, or `eddyline kv put` whatever it has",
    "REVISION_MISMATCH": "somebody else wrote it; read it again, then give the revision it has now",
    "FOREIGN_SUBJECTS": "copy it as a stream (`eddyline source create NAME --stream KV_BUCKET`), which takes every "
    "subject, or remove those messages from it",
    "BUCKET_NOT_COPIED": "copy it with `eddyline source create` that takes the key, or leave out --wait-applied",
    "BUCKET_FULL": "raise the bucket's limits, or delete keys",
    "WRITE_UNKNOWN": "it may be written: read the key before it is written again",
    "APPLY_PENDING": "it is written: do not repeat it; look at `eddyline source list`",
    "UNAUTHENTICATED": "show a key: --key-file FILE, EDDYLINE_KEY_FILE or EDDYLINE_KEY; `eddyline key new` makes one",
    "PERMISSION_DENIED": "use another key, or give this one the scope or the prefix in the cluster's keys file",
    "QUOTA_REQUESTS": "try again in a moment, with fewer calls at once",
    "QUOTA_WATCHES": "end other watches of this key, or ask another delivery replica",
    "QUOTA_BYTES": "delete records or topics, or give topics a cap or a TTL",
    "QUOTA_TOPICS": "delete topics that nobody needs",
    "DATA_CORRUPT": "keep the file, and restore the data directory from a copy",
}
_BY_METADATA: Final = {
    "NOT_READY": {
        "shardIndex": f"topics of other stores are served; {_LOOK}",
        "unresolvedName": "run it where that name resolves, or have the roles tell clients another address: "
        "EDDYLINE_COMMON_STORE_ADVERTISED_ADDRESSES, EDDYLINE_COMMON_INGEST_ADVERTISED_ADDRESSES, "
        "EDDYLINE_COMMON_DELIVERY_ADVERTISED_ADDRESSES",
        "nameGiven": "is the name right, and is this machine in the network where it is known?",
        "addressGiven": "is it the address of a role, and is that up and reached from here?",
        "folderGiven": "start it with `eddyline up` and the same --data, or give --cluster HOST:PORT",
        "roleAway": f"the other roles serve what they can; {_LOOK}",
        "noTls": "where the cluster uses TLS: --tls-ca FILE (EDDYLINE_TLS_CA), with --tls-cert and --tls-key where it asks "
        f"for a certificate; where it does not, is it up? {_LOOK}",
        "noCertificate": "where the cluster asks for a certificate: --tls-cert FILE --tls-key FILE (EDDYLINE_TLS_CERT, "
        f"EDDYLINE_TLS_KEY); where it does not, is it up? {_LOOK}",
        "certificateRefused": "the certificate of --tls-cert must be of an authority that the cluster takes, and not over; "
        f"if it is, is the cluster up? {_LOOK}",
        "untrusted": "--tls-ca FILE (EDDYLINE_TLS_CA) must have the authority that signed the cluster's certificate, which "
        "must be for this name or address, and not over",
        "noTlsThere": "it uses no TLS: leave out --tls-ca, --tls-cert and --tls-key, and EDDYLINE_TLS and what begins so",
    },
    "NATS_UNREACHABLE": {
        "credentials": "put right what EDDYLINE_INGEST_NATS_CREDS_FILE names, which is read at each try, or the user in "
        "EDDYLINE_INGEST_NATS_URL",
        "deniedSubject": "permit it to ingest's user; services/ingest/README.md lists all that it needs",
        "deniedInbox": "permit ingest's user to subscribe there, or set the prefix that it may subscribe to",
    },
    "NOT_KV": {
        "source": "a stream's topic is its history: read it with `eddyline read`; `eddyline source get` says how far it is"
    },
    "SOURCE_EXISTS": {
        "isSettled": "no update changes that: delete the source, and create it anew with a topic of its own (--topic)"
    },
    "RECORD_TOO_LARGE": {
        "capRecords": "raise it with `eddyline topic update TOPIC --cap-bytes` or `--cap-records`, or append less at once",
        "limitBytes": "the bound is every topic's: split the record, or keep the data elsewhere and append where it is",
    },
}
"""Advice for an error with several causes, by the metadata key that names the cause."""


def advice_of(reason: str, metadata: Mapping[str, str]) -> str:
    """Return the advice for an error; empty = none."""
    for metadata_key, advice in _BY_METADATA.get(reason, {}).items():
        if metadata_key in metadata:
            return advice
    return _WHAT_TO_DO.get(reason, "")
