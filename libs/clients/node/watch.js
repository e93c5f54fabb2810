// A watch that goes on: it reconnects with backoff and jitter, to the next replica, and resumes behind the last frame.
"use strict";
const { Backoff, sleep } = require("./backoff");
const { Code, EddylineError, fromGrpc } = require("./errors");
const { say } = require("./output");
const { Plan } = require("./plan");

const SILENT_HEARTBEATS_MAX = 3;
const DEFECTS_MAX = 5;
// A stream that lived this long forgives the failures before it, though no place moved: its topics are quiet.
const QUIET_MS = 600_000;
const TOKEN_REFUSED = ["RESUME_TOKEN_INVALID", "RESUME_TOKEN_MISMATCH"];

// Ends when all topics were deleted; throws what another try cannot mend.
async function watch(service, { topics, start, heartbeatMs }) {
  const plan = new Plan(await starts(service, topics, start), heartbeatMs);
  const backoff = new Backoff();
  let defects = 0;
  let replica = 0;
  let broken = false;
  while (!plan.finished) {
    const [before, openedMs] = [plan.moves, Date.now()];
    // Only a place that moved is progress: a heartbeat may come first on each of a thousand streams that break.
    const settle = () => {
      if (plan.moves === before && Date.now() - openedMs < QUIET_MS) return false;
      defects = 0;
      backoff.reset();
      return true;
    };
    try {
      const delivery = service.deliveries[replica % service.deliveries.length];
      for await (const frame of framesOf(delivery, plan.request(), SILENT_HEARTBEATS_MAX * heartbeatMs)) {
        if (broken) await say({ event: "resumed" });
        broken = false;
        for (const fields of plan.accept(frame)) await say(fields);
        if (frame.frame === "going_away") break;
      }
      if (plan.finished) return;
      // Ended in order: resume at once, and only pause where no place moved.
      replica += 1;
      if (!settle()) await sleep(backoff.nextMs());
    } catch (raw) {
      const error = fromGrpc(raw);
      settle();
      if (error.reason === "TOPIC_NOT_FOUND") {
        const gone = plan.drop(error.metadata.topic);
        if (!gone) throw error;
        await say(gone);
        continue;
      }
      if (TOKEN_REFUSED.includes(error.reason)) {
        if (defects >= DEFECTS_MAX || !plan.dropToken()) throw error;
        defects += 1;
      } else if (error.code === Code.INTERNAL && error.ofRole && defects < DEFECTS_MAX) {
        defects += 1;
      } else if (!error.mendable) {
        throw error;
      }
      if (!broken) await say({ event: "reconnecting", reason: error.reason, message: error.message });
      broken = true;
      replica += 1;
      await sleep(backoff.nextMs(error.retryAfterMs));
    }
  }
}

// A tail is settled once, as a cursor at the head of now: the point TAIL would be a later one at each reconnect.
async function starts(service, topics, start) {
  const found = new Map();
  for (const name of topics) {
    if (start === "tail") {
      const { topic } = await service.call(service.topics, "GetTopic", { topic: name });
      found.set(name, { topic: name, epoch: topic.epoch, seq: topic.head_seq });
    } else {
      found.set(name, start);
    }
  }
  return found;
}

// The frames of one stream. A stream has no deadline; one that is silent for some heartbeats is given up instead,
// whether its server died, hangs, or is cut off. Time in which we do not read does not count.
async function* framesOf(delivery, request, silenceMs) {
  const stream = delivery.WatchTopics(request);
  const frames = stream[Symbol.asyncIterator]();
  let silent = false;
  try {
    for (;;) {
      const timer = setTimeout(() => {
        silent = true;
        stream.cancel();
      }, silenceMs);
      const { value, done } = await frames.next().finally(() => clearTimeout(timer));
      if (done) return;
      yield value;
    }
  } catch (error) {
    if (!silent) throw error;
    const message = `no message for ${silenceMs} ms`;
    throw new EddylineError({ code: Code.UNAVAILABLE, reason: "UNAVAILABLE", message });
  } finally {
    // A late error of a stream that is given up says nothing any more.
    stream.on("error", () => {});
    stream.cancel();
  }
}

module.exports = { watch };
