package eddyline.first;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.protobuf.ByteString;
import eddyline.v1.Gap;
import eddyline.v1.Record;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;

/** What the command prints: one JSON object a line, in the shapes of `eddyline watch -o json`. */
final class Output {
  private static final Gson GSON = new GsonBuilder().disableHtmlEscaping().create();
  private static final OutputStream OUT = new FileOutputStream(FileDescriptor.out);

  private Output() {}

  /** Prints a line; a reader that went away is an error. */
  static void say(Map<String, Object> fields) throws IOException {
    OUT.write((GSON.toJson(fields) + "\n").getBytes(StandardCharsets.UTF_8));
  }

  static void tell(Map<String, Object> fields) {
    System.err.println(GSON.toJson(fields));
  }

  /** An object of names and values in turn. */
  static Map<String, Object> object(Object... pairs) {
    Map<String, Object> fields = new LinkedHashMap<>();
    for (int at = 0; at < pairs.length; at += 2) {
      fields.put((String) pairs[at], pairs[at + 1]);
    }
    return fields;
  }

  static void putRecord(Map<String, Object> fields, Record record) {
    fields.put("seq", record.getSeq());
    fields.put("ts_ms", record.getTsMs());
    fields.put("op", record.getOp().name().replace("OP_", ""));
    if (record.hasKey()) {
      putBytes(fields, "key", record.getKey());
    }
    if (record.hasData()) {
      putBytes(fields, "data", record.getData());
    }
    if (record.hasTag()) {
      fields.put("tag", record.getTag());
    }
  }

  static void putGap(Map<String, Object> fields, Gap gap) {
    fields.put("gap", gap.getReason().name().replace("GAP_REASON_", ""));
    fields.put("first_seq", gap.getFirstSeq());
    fields.put("last_seq", gap.getLastSeq());
    if (gap.getNewEpoch() != 0) {
      fields.put("old_epoch", gap.getOldEpoch());
      fields.put("new_epoch", gap.getNewEpoch());
    }
  }

  /** Bytes under their own name where they are text, else as base64. */
  private static void putBytes(Map<String, Object> fields, String name, ByteString value) {
    if (value.isValidUtf8()) {
      fields.put(name, value.toStringUtf8());
    } else {
      fields.put(name + "_base64", Base64.getEncoder().encodeToString(value.toByteArray()));
    }
  }
}
