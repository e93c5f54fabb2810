// The services, from the proto files at run time: channels with the right options, and calls that are safe to repeat.
"use strict";
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");
const { Backoff, sleep } = require("./backoff");
const { fromGrpc } = require("./errors");

const LOADING = { longs: String, enums: String, oneofs: true, defaults: true, keepCase: true };
const MESSAGE_BYTES_MAX = 64 << 20;
const CHANNEL = {
  // A record may have 8 MiB, more than gRPC takes by default; a server answers pings that come each 10 s or less often.
  "grpc.max_receive_message_length": MESSAGE_BYTES_MAX,
  "grpc.keepalive_time_ms": 20_000,
  "grpc.keepalive_timeout_ms": 10_000,
  "grpc.keepalive_permit_without_calls": 1,
  // By default a peer that was away is dialled again after up to 120 s.
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 1_000,
};
const TRY_MS = 10_000;
const CALL_MS = 30_000;

class Service {
  // `access` = what `accessOf` gives.
  constructor(protoDir, storeAddress, deliveryAddresses, { credentials, interceptors }) {
    const client = (file, name, address) => {
      const definition = loader.loadSync(`eddyline/v1/${file}.proto`, { ...LOADING, includeDirs: [protoDir] });
      const Client = grpc.loadPackageDefinition(definition).eddyline.v1[name];
      return new Client(address, credentials, { ...CHANNEL, interceptors });
    };
    this.topics = client("topic", "TopicService", storeAddress);
    this.log = client("log", "LogService", storeAddress);
    this.fold = client("fold", "FoldService", storeAddress);
    this.deliveries = deliveryAddresses.map((address) => client("delivery", "DeliveryService", address));
  }

  // One call, repeated while another try may mend it and 30 s are not over. Only for reads, and for writes with an
  // idempotency key: an answer may get lost after the write was done.
  async call(client, method, request) {
    const end = Date.now() + CALL_MS;
    const backoff = new Backoff();
    for (;;) {
      try {
        return await this.#once(client, method, request, Math.min(end, Date.now() + TRY_MS));
      } catch (raw) {
        const error = fromGrpc(raw);
        const pause = backoff.nextMs(error.retryAfterMs);
        if (!error.mendable || Date.now() + pause >= end) throw error;
        await sleep(pause);
      }
    }
  }

  close() {
    for (const client of [this.topics, this.log, this.fold, ...this.deliveries]) client.close();
  }

  #once(client, method, request, deadline) {
    return new Promise((resolve, reject) =>
      client[method](request, { deadline }, (error, answer) => (error ? reject(error) : resolve(answer))),
    );
  }
}

module.exports = { MESSAGE_BYTES_MAX, Service };
