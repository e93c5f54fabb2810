package eddyline.first;

import com.google.protobuf.ByteString;
import eddyline.v1.Cursor;
import eddyline.v1.Record;
import eddyline.v1.StartPoint;
import eddyline.v1.WatchTopic;
import eddyline.v1.WatchTopicsRequest;
import eddyline.v1.WatchTopicsResponse;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Where a watch stands: what to ask for at a (re)connect, and what each frame means. No calls, no time.
 *
 * <p>What {@code request} asks for begins exactly behind the last frame that {@code accept} took, in every topic. The
 * place is the newest cursor of a topic; one that has had none is at its start or, where there is a token, where the
 * token says.
 */
final class Plan {
  private final Map<String, Place> places = new LinkedHashMap<>();
  private final int heartbeatMs;
  private ByteString token = ByteString.EMPTY;
  private boolean hadToken;
  private long moves;

  Plan(int heartbeatMs) {
    this.heartbeatMs = heartbeatMs;
  }

  void startAt(String topic, StartPoint point) {
    places.put(topic, new Place(point, null));
  }

  void startAt(Cursor cursor) {
    places.put(cursor.getTopic(), new Place(null, cursor));
  }

  /** True = every topic was deleted. */
  boolean finished() {
    return places.isEmpty();
  }

  /** How often a place moved on, or the first token came. Heartbeats and snapshots that begin anew move nothing. */
  long moves() {
    return moves;
  }

  WatchTopicsRequest request() {
    var request =
        WatchTopicsRequest.newBuilder()
            .setResumeToken(token)
            .setHeartbeatMs(heartbeatMs)
            .setMessageBytesMax(Service.MESSAGE_BYTES_MAX);
    places.forEach(
        (topic, place) -> {
          WatchTopic.Builder wanted = request.addTopicsBuilder().setTopic(topic);
          if (place.cursor != null) {
            wanted.setCursor(place.cursor);
          } else {
            wanted.setPoint(place.point);
          }
        });
    return request.build();
  }

  /**
   * Takes a frame whole; gives what it says, one object a line. A kind of frame that is not known here moves the cursor
   * like any other and says nothing.
   */
  List<Map<String, Object>> accept(WatchTopicsResponse frame) {
    if (!frame.getResumeToken().isEmpty()) {
      token = frame.getResumeToken();
      moves += hadToken ? 0 : 1;
      hadToken = true;
    }
    if (frame.hasCaughtUp()) {
      return List.of(Output.object("event", "caught_up"));
    }
    Place place = places.get(frame.getTopic());
    if (place == null) {
      return List.of();
    }
    if (frame.hasTopicDeleted()) {
      return List.of(gone(frame.getTopic()));
    }
    List<Map<String, Object>> said = said(frame, place);
    // Within a snapshot there is no place: one that is broken off begins anew, with its own snapshot_begin.
    if (frame.hasCursor() && !place.inSnapshot) {
      Cursor at = frame.getCursor();
      Cursor before = place.cursor;
      boolean same = before != null && at.getEpoch() == before.getEpoch() && at.getSeq() == before.getSeq();
      moves += same ? 0 : 1;
      place.cursor = at;
    }
    return said;
  }

  /** A resume found a topic missing: it was deleted meanwhile. Null = it had never been there. */
  Map<String, Object> drop(String named) {
    String topic = named.isEmpty() && places.size() == 1 ? places.keySet().iterator().next() : named;
    Place place = places.get(topic);
    return place == null || place.cursor == null ? null : gone(topic);
  }

  /** The token was refused: the cursors stand by themselves. False = there was none. */
  boolean dropToken() {
    boolean had = !token.isEmpty();
    token = ByteString.EMPTY;
    return had;
  }

  private static List<Map<String, Object>> said(WatchTopicsResponse frame, Place place) {
    Map<String, Object> fields = Output.object("topic", frame.getTopic());
    switch (frame.getFrameCase()) {
      case ROWS -> {
        List<Map<String, Object>> records = new ArrayList<>();
        for (Record record : frame.getRows().getRecordsList()) {
          var one = Output.object("topic", frame.getTopic());
          Output.putRecord(one, record);
          one.put("epoch", frame.getCursor().getEpoch());
          one.put("in_snapshot", place.inSnapshot);
          records.add(one);
        }
        // Whoever applies appends as a whole holds records back up to the one that has batch_end.
        if (frame.getBatchEnd() && !records.isEmpty()) {
          records.get(records.size() - 1).put("batch_end", true);
        }
        return records;
      }
      case PROGRESS -> {
        if (!frame.getBatchEnd()) {
          return List.of();
        }
        fields.put("event", "batch_end");
      }
      case GAP -> Output.putGap(fields, frame.getGap());
      case SNAPSHOT_BEGIN -> {
        place.inSnapshot = true;
        fields.put("event", "snapshot_begin");
        fields.put("fold_seq", frame.getSnapshotBegin().getFoldSeq());
      }
      case SNAPSHOT_END -> {
        place.inSnapshot = false;
        fields.put("event", "snapshot_end");
        fields.put("fold_seq", frame.getSnapshotEnd().getFoldSeq());
        fields.put("count", frame.getSnapshotEnd().getCount());
      }
      default -> {
        return List.of();
      }
    }
    return List.of(fields);
  }

  /** The token may have this topic too: it is good for the others. */
  private Map<String, Object> gone(String topic) {
    places.remove(topic);
    moves++;
    return Output.object("topic", topic, "event", "topic_deleted");
  }

  /** One topic's: a cursor, or null and the point to start at. */
  private static final class Place {
    final StartPoint point;
    Cursor cursor;
    boolean inSnapshot;

    Place(StartPoint point, Cursor cursor) {
      this.point = point;
      this.cursor = cursor;
    }
  }
}
