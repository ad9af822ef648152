package telemetry

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
)

func TestLoggerWritesALineARecord(t *testing.T) {
	var out bytes.Buffer
	log := Logger(&out, slog.LevelInfo).With("stream", "events")
	log.Debug("left out")
	log.Warn("two\nlines", "reason", "a = b")
	traced := ContextOfRequest(context.Background(), header("traceparent", parent))
	log.InfoContext(traced, "stored", "partition", 3)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range []string{
		`level=WARN msg="two\nlines" stream=events reason="a = b"`,
		`level=INFO msg=stored stream=events partition=3 trace_id=` + traceOf + ` span_id=b7ad6b7169203331`,
	} {
		if i >= len(lines) || !strings.HasPrefix(lines[i], "time=") || !strings.HasSuffix(lines[i], " "+want) {
			t.Errorf("line %d is not …%s:\n%s", i+1, want, &out)
		}
	}
}

// A handler may not add to a record that others handle too.
func TestLoggerLeavesTheRecordAlone(t *testing.T) {
	var out bytes.Buffer
	record := slog.Record{Message: "m"}
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} { // past those that a record holds itself
		record.AddAttrs(slog.String(key, key))
	}
	handler := Logger(&out, slog.LevelInfo).Handler()
	for _, p := range []string{parent, other} {
		if err := handler.Handle(ContextOfRequest(t.Context(), header("traceparent", p)), record); err != nil {
			t.Fatal(err)
		}
	}
	if record.NumAttrs() != 6 || strings.Count(out.String(), "trace_id") != 2 {
		t.Errorf("%d attributes\n%s", record.NumAttrs(), &out)
	}
}
