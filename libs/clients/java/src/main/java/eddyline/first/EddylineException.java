package eddyline.first;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.util.Map;

/**
 * What a call ended with. A role says a reason of errors.proto in one google.rpc.ErrorInfo of the domain eddyline,
 * and where a retry makes sense at a known time a RetryInfo; without ErrorInfo gRPC or the network said it, and the
 * reason is the code's name.
 */
final class EddylineException extends Exception {
  private static final long serialVersionUID = 1L;
  private static final String DOMAIN = "eddyline";
  private static final Map<Status.Code, String> ADVICE =
      Map.ofEntries(
          Map.entry(Status.Code.INVALID_ARGUMENT, "the request is wrong: change it, metadata.field names the place"),
          Map.entry(Status.Code.NOT_FOUND, "it is not there: create it first, or take it as absent"),
          Map.entry(Status.Code.ALREADY_EXISTS, "it exists already, with other content: use another name or key"),
          Map.entry(Status.Code.ABORTED, "somebody else was faster: read again, decide again, then send anew"),
          Map.entry(
              Status.Code.FAILED_PRECONDITION,
              "the state does not allow it: change the state first, a retry alone does not help"),
          Map.entry(
              Status.Code.OUT_OF_RANGE,
              "the place is outside of what there is: begin elsewhere, the metadata says from where"),
          Map.entry(Status.Code.RESOURCE_EXHAUSTED, "too much at once: repeat after retry_after_ms, with backoff"),
          Map.entry(Status.Code.UNAVAILABLE, "repeat with backoff, a write with the same idempotency key"),
          Map.entry(
              Status.Code.DEADLINE_EXCEEDED,
              "the outcome is unknown: repeat, a write with the same idempotency key"),
          Map.entry(
              Status.Code.UNAUTHENTICATED, "show a key that the cluster knows: EDDYLINE_KEY or EDDYLINE_KEY_FILE"),
          Map.entry(
              Status.Code.PERMISSION_DENIED, "the key does not cover this: the metadata says what is missing"),
          Map.entry(Status.Code.DATA_LOSS, "stored bytes are damaged: an operator must look"));

  final Status.Code code;
  final String reason;
  final boolean ofRole;
  final long retryAfterMs;
  final transient Map<String, String> metadata;

  /** An error that no role said. */
  EddylineException(Status.Code code, String message) {
    this(code, message, ErrorInfo.getDefaultInstance(), 0);
  }

  private EddylineException(Status.Code code, String message, ErrorInfo info, long retryAfterMs) {
    super(message);
    this.code = code;
    this.ofRole = !info.getReason().isEmpty();
    this.reason = ofRole ? info.getReason() : code.name();
    this.metadata = info.getMetadataMap();
    this.retryAfterMs = retryAfterMs;
  }

  static EddylineException of(StatusRuntimeException error) {
    ErrorInfo info = ErrorInfo.getDefaultInstance();
    long retryAfterMs = 0;
    com.google.rpc.Status status = StatusProto.fromThrowable(error);
    try {
      for (Any detail : status == null ? java.util.List.<Any>of() : status.getDetailsList()) {
        if (detail.is(ErrorInfo.class) && detail.unpack(ErrorInfo.class).getDomain().equals(DOMAIN)) {
          info = detail.unpack(ErrorInfo.class);
        } else if (detail.is(RetryInfo.class)) {
          var delay = detail.unpack(RetryInfo.class).getRetryDelay();
          retryAfterMs = delay.getSeconds() * 1000 + delay.getNanos() / 1_000_000;
        }
      }
    } catch (InvalidProtocolBufferException damaged) {
      info = ErrorInfo.getDefaultInstance();
    }
    Status said = error.getStatus();
    String message = said.getDescription() == null ? said.getCode().name() : said.getDescription();
    return new EddylineException(said.getCode(), message, info, retryAfterMs);
  }

  /**
   * Whether the same again may succeed; only what cannot be done twice may be repeated. A role's own INTERNAL always
   * has an ErrorInfo; without one the connection broke under the call.
   */
  boolean mendable() {
    return switch (code) {
      case UNAVAILABLE, RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED -> true;
      case CANCELLED, INTERNAL, UNKNOWN -> !ofRole;
      default -> false;
    };
  }

  Map<String, Object> fields() {
    return Output.object(
        "error", reason,
        "code", code.name(),
        "message", getMessage(),
        "metadata", metadata,
        "retry_after_ms", retryAfterMs,
        "advice", ADVICE.getOrDefault(code, "a defect: the id in the message is in the role's log too"));
  }
}
