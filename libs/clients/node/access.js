// How the client gets in: an access key and TLS, from the variables that the Python client takes.
"use strict";
const fs = require("node:fs");
const grpc = require("@grpc/grpc-js");

class AccessError extends Error {}

const YES = ["1", "true", "yes", "on"];

// Credentials of a channel, and the interceptors of its calls. TLS is used where EDDYLINE_TLS_CA names the authority, or
// with EDDYLINE_TLS=true, which goes by those that Node comes with.
function accessOf(environment) {
  const { EDDYLINE_KEY, EDDYLINE_KEY_FILE, EDDYLINE_TLS_CA, EDDYLINE_TLS = "" } = environment;
  const ca = EDDYLINE_TLS_CA ? contentOf("EDDYLINE_TLS_CA", EDDYLINE_TLS_CA) : null;
  const secret = EDDYLINE_KEY || (EDDYLINE_KEY_FILE ? String(contentOf("EDDYLINE_KEY_FILE", EDDYLINE_KEY_FILE)) : "");
  const encrypted = ca || YES.includes(EDDYLINE_TLS.toLowerCase());
  return {
    credentials: encrypted ? grpc.credentials.createSsl(ca) : grpc.credentials.createInsecure(),
    interceptors: secret ? [showing(secret.trim())] : [],
  };
}

function contentOf(name, file) {
  try {
    return fs.readFileSync(file);
  } catch (error) {
    throw new AccessError(`${name} cannot be used: ${error.message}`);
  }
}

// gRPC's own call credentials refuse a connection without TLS, which a cluster on loopback is.
function showing(secret) {
  const start = (metadata, listener, next) => {
    metadata.set("authorization", `Bearer ${secret}`);
    next(metadata, listener);
  };
  return (options, nextCall) => new grpc.InterceptingCall(nextCall(options), { start });
}

module.exports = { AccessError, accessOf };
