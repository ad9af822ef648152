package load

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"tidemill.dev/broker"
	"tidemill.dev/loadtest/internal/task"
)

// parseRequest returns the request as a server parses it.
func parseRequest(t *testing.T, r *request) (*http.Request, []byte) {
	t.Helper()
	got, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(r.bytes)))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(got.Body)
	if err != nil || int64(len(body)) != got.ContentLength {
		t.Fatalf("a body of %d bytes, announced as %d: %v", len(body), got.ContentLength, err)
	}
	return got, body
}

func TestSingleIsAnEventInBinaryMode(t *testing.T) {
	e := &task.Events()[7]
	r := singleRequest(Task{Path: "/events", Addr: "host:1", Run: "run-"}, e)
	for n, id := range map[uint64]string{0: "run-0000000000000000", 1<<40 | 0xabc: "run-0000010000000abc"} {
		r.setIDs(n)
		got, body := parseRequest(t, r)
		if got.Header.Get("Ce-Id") != id || got.Header.Get("Ce-Subject") != e.Subject || got.Host != "host:1" || got.URL.Path != "/events" {
			t.Errorf("%+v", got)
		}
		if len(body) != task.DataBytes || len(got.Header) != 11 {
			t.Errorf("%d bytes, %d headers", len(body), len(got.Header))
		}
	}
}

func TestBatchIsEventsInJSON(t *testing.T) {
	events := task.Events()[:3]
	r := batchRequest(Task{Path: "/events", Run: "run-"}, events)
	r.setIDs(15)
	got, body := parseRequest(t, r)
	if got.Header.Get("Content-Type") != "application/cloudevents-batch+json" {
		t.Errorf("%+v", got)
	}
	var raw []json.RawMessage
	if err := json.Unmarshal(body, &raw); err != nil || len(raw) != len(events) {
		t.Fatalf("%d events, %v", len(raw), err)
	}
	for i := range raw {
		var v broker.View
		if err := broker.UnmarshalStructured(raw[i], &v); err != nil {
			t.Fatal(err)
		}
		want := []string{"run-000000000000000f", "run-0000000000000010", "run-0000000000000011"}[i]
		if v.ID != want || v.Subject != events[i].Subject || len(v.Data) != task.DataBytes || len(v.Extensions) != 2 {
			t.Errorf("event %d: %+v", i, v)
		}
	}
}

func TestAnswers(t *testing.T) {
	const next = "HTTP/1.1 999 the next\r\n"
	for _, c := range []struct{ answer, fails string }{
		{"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n", ""},
		{"HTTP/1.1 202 Accepted\r\ncontent-length: 3\r\nX: y\r\n\r\n[1]", ""},
		{"HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n3\r\n[1]\r\n0\r\n\r\n", ""},
		{"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", "closes the connection: true"},
		{"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 5\r\n\r\nsorry", "answers 503 (closes the connection: false): sorry"},
		{"HTTP/1.1 202 Accepted\r\nContent-Length: x\r\n\r\n", "invalid syntax"},
		{"HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", "chunk"},
		{"HTTP/2 202\r\n\r\n", "not HTTP/1.1"},
		{"HTTP/1.1 202 Acc", "closed the connection"},
	} {
		r := bufio.NewReader(strings.NewReader(c.answer + next))
		if c.answer == "HTTP/1.1 202 Acc" {
			r = bufio.NewReader(strings.NewReader(c.answer))
		}
		err := readAnswer(r, 202)
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%q: %v, want %s", c.answer, err, c.fails)
			}
			continue
		}
		if rest, _ := io.ReadAll(r); err != nil || string(rest) != next {
			t.Errorf("%q: %v, and %q is left", c.answer, err, rest)
		}
	}
}
