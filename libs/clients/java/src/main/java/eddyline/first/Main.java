package eddyline.first;

import com.google.protobuf.ByteString;
import eddyline.v1.AppendRecordsRequest;
import eddyline.v1.CreateIfMissing;
import eddyline.v1.GetEntryRequest;
import eddyline.v1.Record;
import eddyline.v1.RecordBatch;
import eddyline.v1.TopicKind;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;

/** The command: append, get, watch. What it knows of Eddyline it has from the proto files. */
public final class Main {
  private static final String USAGE =
      """
      Usage: client [options] append TOPIC [KEY=VALUE ...]   one batch; no pairs: one a line from stdin
             client [options] get TOPIC KEY                the live value of a key (KV topics)
             client [options] watch TOPIC ...              records, gaps and events, across restarts, until Ctrl-C

        --store ADDRESS              the store (default 127.0.0.1:7701)
        --delivery ADDRESS[,...]     delivery's replicas (default 127.0.0.1:7703)
        --kind kv|log                append: makes the topic first if it is missing
        --idempotency-key KEY        append: the same key and records again append nothing (default: a new one)
        --start snapshot|tail|earliest   watch: where to begin (default earliest)
        --heartbeat-ms N             watch: most time without a frame, 100 to 60000 (default 5000)

      In the environment, where the cluster asks for them: EDDYLINE_KEY (the secret of a key) or EDDYLINE_KEY_FILE (a file with
      it); EDDYLINE_TLS_CA (the authority of its certificates, PEM) or EDDYLINE_TLS=true (those of the system).

      Prints one JSON object a line. Errors go to standard error, with what to do about them; exit status 1, of usage 2.
      Example: client append orders --kind kv 17=paid && client get orders 17 && client watch orders
      """;
  private static final Set<String> OPTIONS =
      Set.of("store", "delivery", "kind", "idempotency-key", "start", "heartbeat-ms");
  private static final Map<String, TopicKind> KINDS =
      Map.of("kv", TopicKind.TOPIC_KIND_KV, "log", TopicKind.TOPIC_KIND_LOG);

  private final Map<String, String> given = new HashMap<>();
  private final List<String> words = new ArrayList<>();

  private Main(String[] arguments) throws UsageException {
    for (int at = 0; at < arguments.length; at++) {
      String word = arguments[at];
      if (!word.startsWith("--")) {
        words.add(word);
        continue;
      }
      String[] pair = word.substring(2).split("=", 2);
      if (!OPTIONS.contains(pair[0])) {
        throw new UsageException(word + " is no option");
      }
      if (pair.length < 2 && at + 1 == arguments.length) {
        throw new UsageException(word + " takes a value");
      }
      given.put(pair[0], pair.length == 2 ? pair[1] : arguments[++at]);
    }
  }

  public static void main(String[] arguments) {
    System.exit(exitStatus(arguments));
  }

  private static int exitStatus(String[] arguments) {
    if (List.of(arguments).contains("--help") || List.of(arguments).contains("-h")) {
      System.out.print(USAGE);
      return 0;
    }
    try {
      new Main(arguments).run();
      return 0;
    } catch (UsageException wrongUse) {
      Output.tell(Output.object("error", "USAGE", "message", wrongUse.getMessage() + "; see --help"));
      return 2;
    } catch (EddylineException error) {
      Output.tell(error.fields());
      return 1;
    } catch (IOException | InterruptedException error) {
      Output.tell(Output.object("error", "CLIENT", "message", String.valueOf(error.getMessage())));
      return 1;
    }
  }

  private void run() throws UsageException, EddylineException, IOException, InterruptedException {
    String command = words.isEmpty() ? "" : words.remove(0);
    if (!List.of("append", "get", "watch").contains(command)) {
      throw new UsageException("the command is append, get or watch");
    }
    String store = given.getOrDefault("store", "127.0.0.1:7701");
    List<String> deliveries = List.of(given.getOrDefault("delivery", "127.0.0.1:7703").split(","));
    try (Service service = new Service(store, deliveries, access())) {
      switch (command) {
        case "append" -> append(service);
        case "get" -> get(service);
        default -> watch(service);
      }
    }
  }

  private static Access access() throws UsageException {
    try {
      return Access.of(System.getenv());
    } catch (IOException error) {
      throw new UsageException(error.getMessage());
    }
  }

  private void append(Service service) throws UsageException, EddylineException, IOException, InterruptedException {
    if (words.isEmpty()) {
      throw new UsageException("append takes a topic");
    }
    String topic = words.get(0);
    RecordBatch.Builder batch = RecordBatch.newBuilder();
    for (String pair : pairsOf(words.subList(1, words.size()))) {
      batch.addRecords(recordFrom(pair));
    }
    // One key for all tries: whether or not an answer got lost, the batch is there once.
    String key = given.getOrDefault("idempotency-key", UUID.randomUUID().toString());
    var request = AppendRecordsRequest.newBuilder().setTopic(topic).setRows(batch).setIdempotencyKey(key);
    String kind = given.getOrDefault("kind", "");
    if (KINDS.containsKey(kind)) {
      request.setCreate(CreateIfMissing.newBuilder().setKind(KINDS.get(kind)));
    } else if (!kind.isEmpty()) {
      throw new UsageException("--kind is kv or log");
    }
    var answer = service.call(service.log(), stub -> stub.appendRecords(request.build()));
    Output.say(
        Output.object(
            "topic", topic,
            "first_seq", answer.getFirstSeq(),
            "last_seq", answer.getLastSeq(),
            "epoch", answer.getEpoch(),
            "deduplicated", answer.getDeduplicated(),
            "idempotency_key", key));
  }

  private static List<String> pairsOf(List<String> named) throws IOException {
    if (!named.isEmpty()) {
      return named;
    }
    var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    return lines.lines().filter(line -> !line.isEmpty()).toList();
  }

  private static Record recordFrom(String pair) throws UsageException {
    int at = pair.indexOf('=');
    if (at < 0) {
      throw new UsageException("'" + pair + "' is not KEY=VALUE (=VALUE has no key)");
    }
    Record.Builder record = Record.newBuilder().setData(ByteString.copyFromUtf8(pair.substring(at + 1)));
    if (at > 0) {
      record.setKey(ByteString.copyFromUtf8(pair.substring(0, at)));
    }
    return record.build();
  }

  private void get(Service service) throws UsageException, EddylineException, IOException, InterruptedException {
    if (words.size() != 2) {
      throw new UsageException("get takes a topic and a key");
    }
    var request =
        GetEntryRequest.newBuilder().setTopic(words.get(0)).setKey(ByteString.copyFromUtf8(words.get(1))).build();
    var answer = service.call(service.fold(), stub -> stub.getEntry(request));
    var fields = Output.object("topic", words.get(0));
    Output.putRecord(fields, answer.getEntry());
    fields.put("epoch", answer.getState().getEpoch());
    fields.put("fold_seq", answer.getState().getFoldSeq());
    Output.say(fields);
  }

  private void watch(Service service) throws UsageException, EddylineException, IOException, InterruptedException {
    if (words.isEmpty()) {
      throw new UsageException("watch takes topics");
    }
    String start = given.getOrDefault("start", "earliest");
    if (!List.of("snapshot", "tail", "earliest").contains(start)) {
      throw new UsageException("--start is snapshot, tail or earliest");
    }
    String heartbeat = given.getOrDefault("heartbeat-ms", "5000");
    int heartbeatMs = heartbeat.matches("\\d{1,6}") ? Integer.parseInt(heartbeat) : 0;
    if (heartbeatMs < 100 || heartbeatMs > 60_000) {
      throw new UsageException("--heartbeat-ms is 100 to 60000");
    }
    new Watch(service, new LinkedHashSet<>(words), start, heartbeatMs).run();
  }

  private static final class UsageException extends Exception {
    private static final long serialVersionUID = 1L;

    UsageException(String message) {
      super(message);
    }
  }
}
