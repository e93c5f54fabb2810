package eddyline.first;

import java.util.concurrent.ThreadLocalRandom;

/**
 * How long to wait before the next try: full jitter, so that clients that lost one server do not come back together.
 */
final class Backoff {
  private static final long BASE_MS = 100;
  private static final long CAP_MS = 2_000;

  private int failures;

  /** What the server asked for, and 0 to a ceiling that doubles up to a cap. */
  long nextMs(long atLeastMs) {
    long ceiling = Math.min(CAP_MS, BASE_MS << Math.min(failures, 10));
    failures++;
    return atLeastMs + ThreadLocalRandom.current().nextLong(ceiling);
  }

  void reset() {
    failures = 0;
  }
}
