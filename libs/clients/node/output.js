// What the command prints: one JSON object a line, in the shapes of `eddyline watch -o json`.
"use strict";
const { once } = require("node:events");

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

// Waits for a reader that is slow, so nothing piles up here.
async function say(fields) {
  if (!process.stdout.write(JSON.stringify(fields) + "\n")) await once(process.stdout, "drain");
}

function tell(fields) {
  process.stderr.write(JSON.stringify(fields) + "\n");
}

// Bytes under their own name where they are text, else as base64; absent ones are left out.
function putBytes(fields, name, value) {
  if (value === null || value === undefined) return;
  try {
    fields[name] = utf8.decode(value);
  } catch {
    fields[`${name}_base64`] = value.toString("base64");
  }
}

function recordFields(record) {
  const fields = { seq: Number(record.seq), ts_ms: Number(record.ts_ms), op: String(record.op).replace("OP_", "") };
  putBytes(fields, "key", record.key);
  putBytes(fields, "data", record.data);
  if (record.tag !== null && record.tag !== undefined) fields.tag = record.tag;
  return fields;
}

function gapFields(gap) {
  const reason = String(gap.reason).replace("GAP_REASON_", "");
  const fields = { gap: reason, first_seq: Number(gap.first_seq), last_seq: Number(gap.last_seq) };
  if (gap.new_epoch !== "0") {
    Object.assign(fields, { old_epoch: Number(gap.old_epoch), new_epoch: Number(gap.new_epoch) });
  }
  return fields;
}

module.exports = { gapFields, recordFields, say, tell };
