// A client in JavaScript that knows nothing of Eddyline but its proto files.
//
//   node client.js PROTO_DIR STORE DELIVERY TOPIC COUNT
//
// Makes a KV topic, appends COUNT records (one after the other, with idempotency keys, so that every retry is safe), reads them
// back, and watches them from the earliest on: it breaks its own stream half-way, resumes at its cursor, and does the same
// whenever the server goes away. Prints one JSON line a step; exits 0 when every seq was seen once, in order.
"use strict";
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [protoDir, storeAddress, deliveryAddress, topic, countText] = process.argv.slice(2);
const count = Number(countText);
const options = { includeDirs: [protoDir], longs: Number, enums: String, oneofs: true, defaults: true };
const load = (file) => grpc.loadPackageDefinition(loader.loadSync(`eddyline/v1/${file}.proto`, options)).eddyline.v1;
const insecure = grpc.credentials.createInsecure();
const topics = new (load("topic").TopicService)(storeAddress, insecure);
const log = new (load("log").LogService)(storeAddress, insecure);
const delivery = new (load("delivery").DeliveryService)(deliveryAddress, insecure);
const ATTEMPTS_MAX = 200;
const PAUSE_MS = 100;

const say = (step, rest) => console.log(JSON.stringify({ step, ...rest }));
const pause = () => new Promise((resolve) => setTimeout(resolve, PAUSE_MS));

async function call(client, method, request) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await new Promise((resolve, reject) =>
        client[method](request, { deadline: Date.now() + 10_000 }, (error, answer) => (error ? reject(error) : resolve(answer))),
      );
    } catch (error) {
      const again = error.code === grpc.status.UNAVAILABLE || error.code === grpc.status.DEADLINE_EXCEEDED;
      if (!again || attempt === ATTEMPTS_MAX) throw error;
      await pause();
    }
  }
}

async function append() {
  for (let i = 1; i <= count; i++) {
    const record = { op: "OP_PUT", key: Buffer.from(`k${i % 10}`), data: Buffer.from(String(i)) };
    await call(log, "AppendRecords", { topic, rows: { records: [record] }, idempotencyKey: `node-${i}` });
  }
  say("appended", { count });
}

async function read() {
  const seen = [];
  for (let after = 0, level = false; !level; ) {
    const answer = await call(log, "ReadRecords", { topic, afterSeq: after, limit: 64 });
    for (const item of answer.items) for (const record of item.rows.records) seen.push(Number(record.data.toString()));
    after = answer.nextAfterSeq;
    level = answer.caughtUp;
  }
  if (seen.length !== count || seen.some((value, i) => value !== i + 1)) throw new Error(`read ${seen.length} of ${count}`);
  say("read", { count: seen.length });
}

function watchFrom(start, onRecord, until) {
  return new Promise((resolve, reject) => {
    const stream = delivery.WatchTopics({ topics: [{ topic, ...start }], heartbeatMs: 1000 });
    stream.on("data", (frame) => {
      if (frame.frame === "gap") return reject(new Error(`gap ${JSON.stringify(frame.gap)}`));
      if (frame.frame === "rows") for (const record of frame.rows.records) onRecord(record, frame.cursor.epoch);
      if (until()) stream.cancel();
    });
    stream.on("end", resolve);
    stream.on("error", (error) =>
      [grpc.status.CANCELLED, grpc.status.UNAVAILABLE].includes(error.code) ? resolve() : reject(error),
    );
  });
}

async function watch() {
  const cursor = { topic, epoch: 0, seq: 0 };
  let seen = 0;
  let streams = 0;
  const onRecord = (record, epoch) => {
    if (record.seq <= cursor.seq) return; // the rest of a frame whose first part was already taken before the break
    if (record.seq !== cursor.seq + 1) throw new Error(`seq ${record.seq} after ${cursor.seq}`);
    if (Number(record.data.toString()) !== record.seq) throw new Error(`seq ${record.seq} holds ${record.data}`);
    cursor.seq = record.seq;
    cursor.epoch = epoch;
    seen += 1;
  };
  for (; seen < count && streams < ATTEMPTS_MAX; streams++) {
    const stopAt = streams === 0 ? count / 2 : count;
    await watchFrom(cursor.seq === 0 ? { point: "START_POINT_EARLIEST" } : { cursor }, onRecord, () => seen >= stopAt);
    say("stream ended", { seen, cursor: cursor.seq });
    if (seen < count) await pause();
  }
  if (seen !== count || streams < 2) throw new Error(`saw ${seen} of ${count} in ${streams} streams`);
  say("watched", { count: seen, streams });
}

async function main() {
  await call(topics, "CreateTopic", { topic: { name: topic, kind: "TOPIC_KIND_KV" } });
  const refused = await call(topics, "CreateTopic", { topic: { name: topic, kind: "TOPIC_KIND_KV" } }).catch((error) => error);
  if (refused.code !== grpc.status.ALREADY_EXISTS) throw new Error(`second create: ${refused}`);
  await append();
  await read();
  await watch();
  say("done", {});
  process.exit(0);
}

main().catch((error) => {
  say("failed", { error: String(error && error.stack ? error.stack : error) });
  process.exit(1);
});
