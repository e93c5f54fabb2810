// Where a watch stands: what to ask for at a (re)connect, and what each frame means. No calls, no time.
//
// What `request` asks for begins exactly behind the last frame that `accept` took, in every topic. The place is the
// newest cursor of a topic; one that has had none is at its start or, where there is a token, where the token says.
"use strict";
const { MESSAGE_BYTES_MAX } = require("./service");
const { gapFields, recordFields } = require("./output");

const POINTS = { snapshot: "START_POINT_SNAPSHOT", earliest: "START_POINT_EARLIEST" };

class Plan {
  #places = new Map();
  #token = Buffer.alloc(0);
  #hadToken = false;
  #heartbeatMs;
  // How often a place moved on, or the first token came. Heartbeats and snapshots that begin anew move nothing.
  moves = 0;

  // `starts`: by topic "snapshot", "earliest", or a cursor { topic, epoch, seq }.
  constructor(starts, heartbeatMs) {
    for (const [topic, start] of starts) {
      const cursor = typeof start === "string" ? null : start;
      this.#places.set(topic, { start, cursor, inSnapshot: false });
    }
    this.#heartbeatMs = heartbeatMs;
  }

  // True = every topic was deleted.
  get finished() {
    return this.#places.size === 0;
  }

  request() {
    const topics = [];
    for (const [topic, { start, cursor }] of this.#places) {
      topics.push(cursor ? { topic, cursor } : { topic, point: POINTS[start] });
    }
    return {
      topics,
      resume_token: this.#token,
      heartbeat_ms: this.#heartbeatMs,
      message_bytes_max: MESSAGE_BYTES_MAX,
    };
  }

  // Takes a frame whole; gives what it says, one object a line. A kind of frame that is not known here moves the cursor
  // like any other and says nothing.
  accept(frame) {
    if (frame.resume_token.length > 0) {
      this.#token = frame.resume_token;
      if (!this.#hadToken) this.moves += 1;
      this.#hadToken = true;
    }
    if (frame.frame === "caught_up") return [{ event: "caught_up" }];
    const topic = frame.topic;
    const place = this.#places.get(topic);
    if (!place) return [];
    const said = this.#saidOf(frame, topic, place);
    if (frame.frame === "topic_deleted") return [this.#gone(topic)];
    // Within a snapshot there is no place: one that is broken off begins anew, with its own snapshot_begin.
    if (frame.cursor && !place.inSnapshot) {
      const { epoch, seq } = frame.cursor;
      if (epoch !== place.cursor?.epoch || seq !== place.cursor?.seq) this.moves += 1;
      place.cursor = { ...frame.cursor, topic };
    }
    return said;
  }

  // A resume found a topic missing: it was deleted meanwhile. null = it had never been there.
  drop(name) {
    const topic = name || (this.#places.size === 1 ? [...this.#places.keys()][0] : "");
    return this.#places.get(topic)?.cursor ? this.#gone(topic) : null;
  }

  // The token was refused: the cursors stand by themselves. False = there was none.
  dropToken() {
    const had = this.#token.length > 0;
    this.#token = Buffer.alloc(0);
    return had;
  }

  #saidOf(frame, topic, place) {
    switch (frame.frame) {
      case "rows":
        // Whoever applies appends as a whole holds records back up to the one that has batch_end.
        return frame.rows.records.map((record, index, all) => ({
          topic,
          ...recordFields(record),
          epoch: Number(frame.cursor?.epoch ?? 0),
          in_snapshot: place.inSnapshot,
          ...(frame.batch_end && index === all.length - 1 ? { batch_end: true } : {}),
        }));
      case "progress":
        return frame.batch_end ? [{ topic, event: "batch_end" }] : [];
      case "gap":
        return [{ topic, ...gapFields(frame.gap) }];
      case "snapshot_begin":
        place.inSnapshot = true;
        return [{ topic, event: "snapshot_begin", fold_seq: Number(frame.snapshot_begin.fold_seq) }];
      case "snapshot_end": {
        place.inSnapshot = false;
        const { fold_seq: foldSeq, count } = frame.snapshot_end;
        return [{ topic, event: "snapshot_end", fold_seq: Number(foldSeq), count: Number(count) }];
      }
      default:
        return [];
    }
  }

  // The token may have this topic too: it is good for the others.
  #gone(topic) {
    this.#places.delete(topic);
    this.moves += 1;
    return { topic, event: "topic_deleted" };
  }
}

module.exports = { Plan };
