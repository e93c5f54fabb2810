package eddyline.first;

import eddyline.v1.DeliveryServiceGrpc.DeliveryServiceBlockingStub;
import eddyline.v1.DeliveryServiceGrpc;
import eddyline.v1.FoldServiceGrpc.FoldServiceBlockingStub;
import eddyline.v1.FoldServiceGrpc;
import eddyline.v1.LogServiceGrpc.LogServiceBlockingStub;
import eddyline.v1.LogServiceGrpc;
import eddyline.v1.TopicServiceGrpc.TopicServiceBlockingStub;
import eddyline.v1.TopicServiceGrpc;
import io.grpc.Grpc;
import io.grpc.ManagedChannel;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.AbstractBlockingStub;
import io.grpc.stub.MetadataUtils;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;

/** A cluster's channels, with the right options, and calls that are safe to repeat. Dials at the first call. */
final class Service implements AutoCloseable {
  /** A record may have 8 MiB, more than gRPC takes by default. */
  static final int MESSAGE_BYTES_MAX = 64 << 20;

  private static final long TRY_MS = 10_000;
  private static final long CALL_MS = 30_000;

  private final ManagedChannel store;
  private final List<ManagedChannel> deliveries = new ArrayList<>();

  Service(String storeAddress, List<String> deliveryAddresses, Access access) {
    store = channel(storeAddress, access);
    deliveryAddresses.forEach(address -> deliveries.add(channel(address, access)));
  }

  TopicServiceBlockingStub topics() {
    return TopicServiceGrpc.newBlockingStub(store);
  }

  LogServiceBlockingStub log() {
    return LogServiceGrpc.newBlockingStub(store);
  }

  FoldServiceBlockingStub fold() {
    return FoldServiceGrpc.newBlockingStub(store);
  }

  /** Delivery number `replica`, counted round and round. */
  DeliveryServiceBlockingStub delivery(int replica) {
    ManagedChannel channel = deliveries.get(Math.floorMod(replica, deliveries.size()));
    // gRPC dials a peer that was away again after up to 120 s, and has no option for it.
    channel.resetConnectBackoff();
    return DeliveryServiceGrpc.newBlockingStub(channel);
  }

  /**
   * One call, repeated while another try may mend it and 30 s are not over. Only for reads, and for writes with an
   * idempotency key: an answer may get lost after the write was done.
   */
  <S extends AbstractBlockingStub<S>, A> A call(S stub, Function<S, A> method)
      throws EddylineException, InterruptedException {
    long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(CALL_MS);
    Backoff backoff = new Backoff();
    while (true) {
      long leftMs = TimeUnit.NANOSECONDS.toMillis(end - System.nanoTime());
      try {
        store.resetConnectBackoff();
        return method.apply(stub.withDeadlineAfter(Math.min(leftMs, TRY_MS), TimeUnit.MILLISECONDS));
      } catch (StatusRuntimeException raw) {
        EddylineException error = EddylineException.of(raw);
        long pauseMs = backoff.nextMs(error.retryAfterMs);
        if (!error.mendable() || System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(pauseMs) >= end) {
          throw error;
        }
        Thread.sleep(pauseMs);
      }
    }
  }

  @Override
  public void close() {
    store.shutdownNow();
    deliveries.forEach(ManagedChannel::shutdownNow);
  }

  private static ManagedChannel channel(String address, Access access) {
    return Grpc.newChannelBuilder(address, access.credentials())
        .intercept(MetadataUtils.newAttachHeadersInterceptor(access.headers()))
        .disableRetry()
        .maxInboundMessageSize(MESSAGE_BYTES_MAX)
        // A server answers pings that come each 10 s or less often.
        .keepAliveTime(20, TimeUnit.SECONDS)
        .keepAliveTimeout(10, TimeUnit.SECONDS)
        .keepAliveWithoutCalls(true)
        .proxyDetector(target -> null)
        .build();
  }
}
