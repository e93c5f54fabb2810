package eddyline.first;

import eddyline.v1.Cursor;
import eddyline.v1.GetTopicRequest;
import eddyline.v1.StartPoint;
import eddyline.v1.Topic;
import eddyline.v1.WatchTopicsResponse;
import io.grpc.Context;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.io.IOException;
import java.util.Iterator;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;

/** A watch that goes on: it reconnects with backoff and jitter, to the next replica, behind the last frame. */
final class Watch {
  private static final int SILENT_HEARTBEATS_MAX = 3;
  private static final int DEFECTS_MAX = 5;
  /** A stream that lived this long forgives the failures before it, though no place moved: its topics are quiet. */
  private static final long QUIET_NANOS = TimeUnit.MINUTES.toNanos(10);

  private final Service service;
  private final Plan plan;
  private final long silenceMs;
  private final Backoff backoff = new Backoff();
  private final ScheduledThreadPoolExecutor timers = new ScheduledThreadPoolExecutor(1);
  private int replica;
  private int defects;
  private boolean broken;

  Watch(Service service, Set<String> topics, String start, int heartbeatMs)
      throws EddylineException, InterruptedException {
    this.service = service;
    plan = new Plan(heartbeatMs);
    silenceMs = (long) SILENT_HEARTBEATS_MAX * heartbeatMs;
    timers.setRemoveOnCancelPolicy(true);
    for (String topic : topics) {
      switch (start) {
        case "tail" -> plan.startAt(head(topic));
        case "snapshot" -> plan.startAt(topic, StartPoint.START_POINT_SNAPSHOT);
        default -> plan.startAt(topic, StartPoint.START_POINT_EARLIEST);
      }
    }
  }

  /** A tail is settled once, as a cursor at the head of now: the point TAIL would be a later one at each reconnect. */
  private Cursor head(String name) throws EddylineException, InterruptedException {
    var request = GetTopicRequest.newBuilder().setTopic(name).build();
    Topic topic = service.call(service.topics(), stub -> stub.getTopic(request)).getTopic();
    return Cursor.newBuilder().setTopic(name).setEpoch(topic.getEpoch()).setSeq(topic.getHeadSeq()).build();
  }

  /** Ends when all topics were deleted, or throws what another try cannot mend. */
  void run() throws EddylineException, IOException, InterruptedException {
    try {
      while (!plan.finished()) {
        long pauseMs = 0;
        long before = plan.moves();
        long openedNanos = System.nanoTime();
        try {
          stream();
          if (!settle(before, openedNanos)) {
            // Ended in order, but no place moved. One that moved one is resumed at once.
            pauseMs = backoff.nextMs(0);
          }
        } catch (EddylineException error) {
          settle(before, openedNanos);
          pauseMs = recover(error);
        }
        replica++;
        Thread.sleep(pauseMs);
      }
    } finally {
      timers.shutdownNow();
    }
  }

  /** Only a place that moved is progress: a heartbeat may come first on each of a thousand streams that break. */
  private boolean settle(long movesBefore, long openedNanos) {
    if (plan.moves() == movesBefore && System.nanoTime() - openedNanos < QUIET_NANOS) {
      return false;
    }
    defects = 0;
    backoff.reset();
    return true;
  }

  /**
   * Takes one stream to its end. It has no deadline; one that is silent for some heartbeats is given up instead,
   * whether its server died, hangs, or is cut off. Time in which we do not read does not count.
   */
  private void stream() throws EddylineException, IOException {
    AtomicBoolean silent = new AtomicBoolean();
    try (Context.CancellableContext context = Context.current().withCancellation()) {
      Context before = context.attach();
      try {
        Iterator<WatchTopicsResponse> stream = service.delivery(replica).watchTopics(plan.request());
        while (hasNext(stream, context, silent)) {
          WatchTopicsResponse frame = stream.next();
          take(frame);
          // By name, so that this compiles with protos that do not have the frame yet.
          if (frame.getFrameCase().name().equals("GOING_AWAY")) {
            return;
          }
        }
      } finally {
        context.detach(before);
      }
    } catch (StatusRuntimeException error) {
      if (silent.get()) {
        throw new EddylineException(Status.Code.UNAVAILABLE, "no message for " + silenceMs + " ms");
      }
      throw EddylineException.of(error);
    }
  }

  private boolean hasNext(
      Iterator<WatchTopicsResponse> stream, Context.CancellableContext context, AtomicBoolean silent) {
    var timer =
        timers.schedule(
            () -> {
              silent.set(true);
              context.cancel(null);
            },
            silenceMs,
            TimeUnit.MILLISECONDS);
    try {
      return stream.hasNext();
    } finally {
      timer.cancel(false);
    }
  }

  private void take(WatchTopicsResponse frame) throws IOException {
    if (broken) {
      broken = false;
      Output.say(Output.object("event", "resumed"));
    }
    for (Map<String, Object> fields : plan.accept(frame)) {
      Output.say(fields);
    }
  }

  /** What to do about a broken stream: a pause, or the error, if no other try can mend it. */
  private long recover(EddylineException error) throws EddylineException, IOException {
    switch (error.reason) {
      case "TOPIC_NOT_FOUND" -> {
        Map<String, Object> gone = plan.drop(error.metadata.getOrDefault("topic", ""));
        if (gone == null) {
          throw error;
        }
        Output.say(gone);
        return 0;
      }
      case "RESUME_TOKEN_INVALID", "RESUME_TOKEN_MISMATCH" -> {
        if (defects++ >= DEFECTS_MAX || !plan.dropToken()) {
          throw error;
        }
      }
      default -> {
        boolean defect = error.code == Status.Code.INTERNAL && error.ofRole && defects++ < DEFECTS_MAX;
        if (!defect && !error.mendable()) {
          throw error;
        }
      }
    }
    if (!broken) {
      broken = true;
      Output.say(Output.object("event", "reconnecting", "reason", error.reason, "message", error.getMessage()));
    }
    return backoff.nextMs(error.retryAfterMs);
  }
}
