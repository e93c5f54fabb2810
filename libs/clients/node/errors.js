// Errors: a role's reason out of gRPC's status, and what to do about it.
//
// Every error of a role carries a google.rpc.Status in the trailer `grpc-status-details-bin`, in it one ErrorInfo of
// the domain `eddyline` (its reason is of errors.proto, its metadata what is dynamic in the message) and, where a
// retry makes sense at a known time, a RetryInfo. An error without ErrorInfo was not said by a role but by gRPC or
// the network.
"use strict";
const grpc = require("@grpc/grpc-js");
const protobuf = require("protobufjs");

// The three messages of google.rpc that are needed here, by their public field numbers.
const types = protobuf.Root.fromJSON({
  nested: {
    Any: { fields: { type_url: { type: "string", id: 1 }, value: { type: "bytes", id: 2 } } },
    Status: { fields: { details: { rule: "repeated", type: "Any", id: 3 } } },
    ErrorInfo: {
      fields: {
        reason: { type: "string", id: 1 },
        domain: { type: "string", id: 2 },
        metadata: { keyType: "string", type: "string", id: 3 },
      },
    },
    Duration: { fields: { seconds: { type: "int64", id: 1 }, nanos: { type: "int32", id: 2 } } },
    RetryInfo: { fields: { retry_delay: { type: "Duration", id: 1 } } },
  },
});
const DOMAIN = "eddyline";
const { status: Code } = grpc;
const MENDABLE = new Set([Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED, Code.DEADLINE_EXCEEDED]);
// What gRPC says where a connection broke under a call: a role's own INTERNAL always has an ErrorInfo.
const BROKEN_OFF = new Set([Code.CANCELLED, Code.INTERNAL, Code.UNKNOWN]);
const ADVICE = {
  [Code.INVALID_ARGUMENT]: "the request is wrong: change it, metadata.field names the place",
  [Code.NOT_FOUND]: "it is not there: create it first, or take it as absent",
  [Code.ALREADY_EXISTS]: "it exists already, with other content: use another name or key",
  [Code.ABORTED]: "somebody else was faster: read again, decide again, then send anew",
  [Code.FAILED_PRECONDITION]: "the state does not allow it: change the state first, a retry alone does not help",
  [Code.OUT_OF_RANGE]: "the place is outside of what there is: begin elsewhere, the metadata says from where",
  [Code.RESOURCE_EXHAUSTED]: "too much at once: repeat after retry_after_ms, with backoff",
  [Code.UNAVAILABLE]: "repeat with backoff, a write with the same idempotency key",
  [Code.DEADLINE_EXCEEDED]: "the outcome is unknown: repeat, a write with the same idempotency key",
  [Code.UNAUTHENTICATED]: "show a key that the cluster knows: EDDYLINE_KEY or EDDYLINE_KEY_FILE",
  [Code.PERMISSION_DENIED]: "the key does not cover this: the metadata says what is missing",
  [Code.DATA_LOSS]: "stored bytes are damaged: an operator must look",
};

class EddylineError extends Error {
  constructor({ code, reason, message, metadata = {}, retryAfterMs = 0, ofRole = false }) {
    super(message);
    Object.assign(this, { code, reason, metadata, retryAfterMs, ofRole });
  }

  // Whether the same again may succeed; only what cannot be done twice may be repeated.
  get mendable() {
    return MENDABLE.has(this.code) || (!this.ofRole && BROKEN_OFF.has(this.code));
  }

  fields() {
    return {
      error: this.reason,
      code: Code[this.code],
      message: this.message,
      metadata: this.metadata,
      retry_after_ms: this.retryAfterMs,
      advice: ADVICE[this.code] ?? "a defect: the id in the message is in the role's log too",
    };
  }
}

function details(error) {
  const found = { info: null, retryAfterMs: 0 };
  for (const bytes of error.metadata?.get("grpc-status-details-bin") ?? []) {
    for (const any of types.lookupType("Status").decode(bytes).details) {
      const name = any.type_url.split("/").pop();
      if (name === "google.rpc.ErrorInfo") {
        const info = types.lookupType("ErrorInfo").decode(any.value);
        if (info.domain === DOMAIN) found.info = info;
      } else if (name === "google.rpc.RetryInfo") {
        const delay = types.lookupType("RetryInfo").decode(any.value).retry_delay;
        found.retryAfterMs = delay ? Number(delay.seconds) * 1000 + delay.nanos / 1e6 : 0;
      }
    }
  }
  return found;
}

// Any error of a call as an EddylineError; what is no error of gRPC is thrown on.
function fromGrpc(error) {
  if (error instanceof EddylineError) return error;
  if (!Number.isInteger(error?.code) || !(error.code in Code)) throw error;
  const { info, retryAfterMs } = details(error);
  const message = error.details || error.message;
  if (!info) return new EddylineError({ code: error.code, reason: Code[error.code], message });
  return new EddylineError({
    code: error.code,
    reason: info.reason,
    message,
    metadata: { ...info.metadata },
    retryAfterMs,
    ofRole: true,
  });
}

module.exports = { Code, EddylineError, fromGrpc };
