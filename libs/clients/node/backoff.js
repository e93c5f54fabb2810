// How long to wait before the next try: full jitter, so that clients that lost one server do not come back together.
"use strict";

const BASE_MS = 100;
const CAP_MS = 2000;

class Backoff {
  #failures = 0;

  // What the server asked for, and 0 to a ceiling that doubles up to a cap.
  nextMs(atLeastMs = 0) {
    const ceiling = Math.min(CAP_MS, BASE_MS * 2 ** Math.min(this.#failures, 10));
    this.#failures += 1;
    return atLeastMs + Math.random() * ceiling;
  }

  reset() {
    this.#failures = 0;
  }
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

module.exports = { Backoff, sleep };
