package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"unicode/utf8"

	pb "eddyline-first-client/gen/eddyline/v1"
)

// object is one line of output, in the shapes of `eddyline watch -o json`.
type object map[string]any

func line(fields object) []byte {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(fields); err != nil {
		panic(err) // only of types that are not in here
	}
	return text.Bytes()
}

// say prints a line; a reader that went away is an error.
func say(fields object) error {
	_, err := os.Stdout.Write(line(fields))
	return err
}

func tell(fields object) { fmt.Fprintf(os.Stderr, "%s", line(fields)) }

// putBytes puts bytes under their own name where they are text, else as base64; absent ones are left out.
func putBytes(fields object, name string, value []byte) {
	switch {
	case value == nil:
	case utf8.Valid(value):
		fields[name] = string(value)
	default:
		fields[name+"_base64"] = value // encoding/json writes bytes as base64
	}
}

func recordFields(record *pb.Record) object {
	fields := object{"seq": record.Seq, "ts_ms": record.TsMs, "op": strings.TrimPrefix(record.Op.String(), "OP_")}
	putBytes(fields, "key", record.Key)
	putBytes(fields, "data", record.Data)
	if record.Tag != nil {
		fields["tag"] = *record.Tag
	}
	return fields
}

func gapFields(gap *pb.Gap) object {
	reason := strings.TrimPrefix(gap.Reason.String(), "GAP_REASON_")
	fields := object{"gap": reason, "first_seq": gap.FirstSeq, "last_seq": gap.LastSeq}
	if gap.NewEpoch != 0 {
		fields["old_epoch"], fields["new_epoch"] = gap.OldEpoch, gap.NewEpoch
	}
	return fields
}
