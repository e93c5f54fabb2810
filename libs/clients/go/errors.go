package main

import (
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const domain = "eddyline"

var advice = map[codes.Code]string{
	codes.InvalidArgument:    "the request is wrong: change it, metadata.field names the place",
	codes.NotFound:           "it is not there: create it first, or take it as absent",
	codes.AlreadyExists:      "it exists already, with other content: use another name or key",
	codes.Aborted:            "somebody else was faster: read again, decide again, then send anew",
	codes.FailedPrecondition: "the state does not allow it: change the state first, a retry alone does not help",
	codes.OutOfRange:         "the place is outside of what there is: begin elsewhere, the metadata says from where",
	codes.ResourceExhausted:  "too much at once: repeat after retry_after_ms, with backoff",
	codes.Unavailable:        "repeat with backoff, a write with the same idempotency key",
	codes.DeadlineExceeded:   "the outcome is unknown: repeat, a write with the same idempotency key",
	codes.Unauthenticated:    "show a key that the cluster knows: EDDYLINE_KEY or EDDYLINE_KEY_FILE",
	codes.PermissionDenied:   "the key does not cover this: the metadata says what is missing",
	codes.DataLoss:           "stored bytes are damaged: an operator must look",
}

var codeNames = map[codes.Code]string{
	codes.Canceled: "CANCELLED", codes.Unknown: "UNKNOWN", codes.InvalidArgument: "INVALID_ARGUMENT",
	codes.DeadlineExceeded: "DEADLINE_EXCEEDED", codes.NotFound: "NOT_FOUND", codes.AlreadyExists: "ALREADY_EXISTS",
	codes.PermissionDenied: "PERMISSION_DENIED", codes.ResourceExhausted: "RESOURCE_EXHAUSTED",
	codes.FailedPrecondition: "FAILED_PRECONDITION", codes.Aborted: "ABORTED", codes.OutOfRange: "OUT_OF_RANGE",
	codes.Unimplemented: "UNIMPLEMENTED", codes.Internal: "INTERNAL", codes.Unavailable: "UNAVAILABLE",
	codes.DataLoss: "DATA_LOSS", codes.Unauthenticated: "UNAUTHENTICATED",
}

// Error is what a call ended with. A role says a reason of errors.proto in one google.rpc.ErrorInfo of the domain
// eddyline, and where a retry makes sense at a known time a RetryInfo; without ErrorInfo gRPC or the network said it,
// and the reason is the code's name.
type Error struct {
	Code       codes.Code
	Reason     string
	Message    string
	Metadata   map[string]string
	RetryAfter time.Duration
	OfRole     bool
}

func (e *Error) Error() string { return e.Reason + ": " + e.Message }

// errorOf gives any error of a call.
func errorOf(err error) *Error {
	said := status.Convert(err)
	found := &Error{Code: said.Code(), Reason: codeNames[said.Code()], Message: said.Message()}
	found.Metadata = map[string]string{}
	for _, detail := range said.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			if detail.Domain == domain {
				found.Reason, found.OfRole = detail.Reason, true
				if detail.Metadata != nil {
					found.Metadata = detail.Metadata
				}
			}
		case *errdetails.RetryInfo:
			found.RetryAfter = detail.RetryDelay.AsDuration()
		}
	}
	return found
}

// mendable tells whether the same again may succeed; only what cannot be done twice may be repeated. A role's own
// INTERNAL always has an ErrorInfo; without one the connection broke under the call.
func (e *Error) mendable() bool {
	switch e.Code {
	case codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded:
		return true
	case codes.Canceled, codes.Internal, codes.Unknown:
		return !e.OfRole
	default:
		return false
	}
}

func (e *Error) fields() object {
	what, known := advice[e.Code]
	if !known {
		what = "a defect: the id in the message is in the role's log too"
	}
	return object{
		"error":          e.Reason,
		"code":           codeNames[e.Code],
		"message":        e.Message,
		"metadata":       e.Metadata,
		"retry_after_ms": e.RetryAfter.Milliseconds(),
		"advice":         what,
	}
}
