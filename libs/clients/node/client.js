#!/usr/bin/env node
// The command: append, get, watch. What it knows of Eddyline it has from the proto files.
"use strict";
const crypto = require("node:crypto");
const path = require("node:path");
const readline = require("node:readline");
const { parseArgs } = require("node:util");
const { AccessError, accessOf } = require("./access");
const { EddylineError } = require("./errors");
const { recordFields, say, tell } = require("./output");
const { Service } = require("./service");
const { watch } = require("./watch");

const USAGE = `Usage: client [options] append TOPIC [KEY=VALUE ...]   one batch; no pairs: one a line from stdin
       client [options] get TOPIC KEY                the live value of a key (KV topics)
       client [options] watch TOPIC ...              records, gaps and events, across restarts, until Ctrl-C

  --store ADDRESS              the store (default 127.0.0.1:7701)
  --delivery ADDRESS[,...]     delivery's replicas (default 127.0.0.1:7703)
  --kind kv|log                append: makes the topic first if it is missing
  --idempotency-key KEY        append: the same key and records again append nothing (default: a new one)
  --start snapshot|tail|earliest   watch: where to begin (default earliest)
  --heartbeat-ms N             watch: most time without a frame, 100 to 60000 (default 5000)
  --proto DIR                  the proto files (default: those of this repository)

In the environment, where the cluster asks for them: EDDYLINE_KEY (the secret of a key) or EDDYLINE_KEY_FILE (a file with
it); EDDYLINE_TLS_CA (the authority of its certificates, PEM) or EDDYLINE_TLS=true (those of the system).

Prints one JSON object a line. Errors go to standard error, with what to do about them; exit status 1, of usage 2.
Example: client append orders --kind kv 17=paid && client get orders 17 && client watch orders`;

const OPTIONS = {
  store: { type: "string", default: "127.0.0.1:7701" },
  delivery: { type: "string", default: "127.0.0.1:7703" },
  kind: { type: "string" },
  "idempotency-key": { type: "string" },
  start: { type: "string", default: "earliest" },
  "heartbeat-ms": { type: "string", default: "5000" },
  proto: { type: "string", default: path.join(__dirname, "../../../proto") },
  help: { type: "boolean", short: "h" },
};
const KINDS = { kv: "TOPIC_KIND_KV", log: "TOPIC_KIND_LOG" };

class UsageError extends Error {}

function parsed(argv) {
  try {
    return parseArgs({ args: argv, options: OPTIONS, allowPositionals: true });
  } catch (error) {
    throw new UsageError(error.message);
  }
}

function recordFrom(pair) {
  const at = pair.indexOf("=");
  if (at < 0) throw new UsageError(`${JSON.stringify(pair)} is not KEY=VALUE (=VALUE has no key)`);
  const record = { data: Buffer.from(pair.slice(at + 1)) };
  return at === 0 ? record : { ...record, key: Buffer.from(pair.slice(0, at)) };
}

async function pairsOf(given) {
  if (given.length > 0) return given;
  const lines = [];
  for await (const line of readline.createInterface({ input: process.stdin })) if (line) lines.push(line);
  return lines;
}

async function append(service, values, [topic, ...given]) {
  if (!topic) throw new UsageError("append takes a topic");
  if (values.kind && !KINDS[values.kind]) throw new UsageError("--kind is kv or log");
  const records = (await pairsOf(given)).map(recordFrom);
  // One key for all tries: whether or not an answer got lost, the batch is there once.
  const idempotencyKey = values["idempotency-key"] ?? crypto.randomUUID();
  const request = { topic, rows: { records }, idempotency_key: idempotencyKey };
  if (values.kind) request.create = { kind: KINDS[values.kind] };
  const answer = await service.call(service.log, "AppendRecords", request);
  await say({
    topic,
    first_seq: Number(answer.first_seq),
    last_seq: Number(answer.last_seq),
    epoch: Number(answer.epoch),
    deduplicated: answer.deduplicated,
    idempotency_key: idempotencyKey,
  });
}

async function get(service, values, positionals) {
  if (positionals.length !== 2) throw new UsageError("get takes a topic and a key");
  const [topic, key] = positionals;
  const answer = await service.call(service.fold, "GetEntry", { topic, key: Buffer.from(key) });
  const state = { epoch: Number(answer.state.epoch), fold_seq: Number(answer.state.fold_seq) };
  await say({ topic, ...recordFields(answer.entry), ...state });
}

async function watchTopics(service, values, topics) {
  if (topics.length === 0) throw new UsageError("watch takes topics");
  if (!["snapshot", "tail", "earliest"].includes(values.start)) {
    throw new UsageError("--start is snapshot, tail or earliest");
  }
  const heartbeatMs = Number(values["heartbeat-ms"]);
  if (!(heartbeatMs >= 100 && heartbeatMs <= 60_000)) throw new UsageError("--heartbeat-ms is 100 to 60000");
  await watch(service, { topics: [...new Set(topics)], start: values.start, heartbeatMs });
}

const COMMANDS = { append, get, watch: watchTopics };

async function main(argv) {
  const { values, positionals } = parsed(argv);
  if (values.help) return console.log(USAGE);
  const [command, ...rest] = positionals;
  if (!Object.hasOwn(COMMANDS, command ?? "")) throw new UsageError("the command is append, get or watch");
  const service = new Service(values.proto, values.store, values.delivery.split(","), accessOf(process.env));
  try {
    await COMMANDS[command](service, values, rest);
  } finally {
    service.close();
  }
}

// A reader that went away (a closed pipe) ends the command, as a signal does.
process.stdout.on("error", () => process.exit(1));
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => process.exit(0));
main(process.argv.slice(2)).catch((error) => {
  const wrongUse = error instanceof UsageError || error instanceof AccessError;
  process.exitCode = wrongUse ? 2 : 1;
  if (wrongUse) tell({ error: "USAGE", message: `${error.message}; see --help` });
  else if (error instanceof EddylineError) tell(error.fields());
  else throw error;
});
