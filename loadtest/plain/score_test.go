package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/loadtest/internal/fleet"
	"tidemill.dev/loadtest/internal/task"
)

// An event in the CloudEvents binding is scored by its subject's model, and its output is in the
// binding too.
func TestScore(t *testing.T) {
	f := fleet.Fleet{Models: 2, Network: fleet.Network{8, 4, 3}, Kind: fleet.KindDigits}
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "bot-1.onnx"), f.Network.File(fleet.Seed(1, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := openShelf(task.Scoring{Models: folder, Engine: "native", Input: fleet.Input})
	if err != nil {
		t.Fatal(err)
	}
	body := f.Bodies()[3]
	in := &kafka.Message{Topic: "in", Partition: 2, Offset: 17, Key: []byte("bot-1"), Value: body.Data}
	for name, value := range map[string]string{"ce_specversion": "1.0", "ce_id": "7", "ce_source": "/shop", "ce_type": "message", "ce_subject": "bot-1",
		"ce_time": "2026-01-31T15:04:05Z", "content-type": "application/json"} {
		in.Headers = append(in.Headers, kafka.Header{Key: name, Value: []byte(value)})
	}
	out, err := new(scorer).score(t.Context(), s, in)
	if err != nil {
		t.Fatal(err)
	}
	e, err := decode(t.Context(), &out)
	if err != nil {
		t.Fatal(err)
	}
	var a scoredData
	if err := json.Unmarshal(e.Data(), &a); err != nil {
		t.Fatal(err)
	}
	likely := f.Network.Answers(fleet.Seed(1, 1), body.Row)
	want := f.Network.Labels()[slices.Index(likely, slices.Max(likely))]
	if e.ID() != "in/2/17" || e.Subject() != "bot-1" || e.Extensions()["causationid"] != "7" || a.Label != want || len(a.Scores) != 3 || string(out.Key) != "bot-1" {
		t.Errorf("of an event that is %s comes %s", want, e)
	}
}

func TestLabels(t *testing.T) {
	for text, want := range map[string][]string{"a,b": {"a", "b"}, `["a","b, c"]`: {"a", "b, c"}} {
		if got, err := labelsOf(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
	if _, err := labelsOf(`["a"`); err == nil {
		t.Error("half a list is one")
	}
}
