package cehttp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"tidemill.dev/broker"
)

// FuzzReadBinary reads hostile headers, as lines of name: value, and a body.
func FuzzReadBinary(f *testing.F) {
	for _, h := range []http.Header{asSent(first(encodeMessage(Binary, plainEvent()))), testHeaders("ce-x", `"a\"b%20"`, "ce-subject", "%C0%A0"),
		testHeaders("content-type", "text/plain; charset=\"é\""), testHeaders("ce-time", "2026-01-31T5:04:05.9Z"), testHeaders("ce-id", "2"), testHeaders("ce-datacontenttype", "a/b"), testHeaders("ce-dataschema", "https://e.x/%20%")} {
		f.Add(headerLines(h), []byte("{ }"))
	}
	f.Fuzz(func(t *testing.T, lines string, body []byte) {
		v := broker.View{Extensions: []broker.Attribute{{Name: "left", Value: "over"}}}
		if ReadBinary(parseLines(lines), body, &v) == nil {
			checkAccepted(t, &v)
		}
	})
}

func FuzzReadStructured(f *testing.F) {
	f.Add(second(encodeMessage(Structured, plainEvent())))
	f.Add([]byte(specEvent))
	f.Add([]byte(`{"x":true,"y":-5,"n":null,"data":"a\"b\ud800","datacontenttype":" text/plain","type":"ä","source":"/s","id":"1 ","specversion":"1.0"}`))
	f.Add([]byte(`{"data_base64":"","type":"t","source":"/s%","id":"\u0000","specversion":"1.0"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var v broker.View
		if ReadStructured(http.Header{"Content-Type": {typeStructured}}, body, &v) == nil {
			checkAccepted(t, &v)
		}
	})
}

// FuzzReadBatch also checks that an event gets the same verdict in a batch and alone.
func FuzzReadBatch(f *testing.F) {
	f.Add(second(encodeMessage(Batch, plainEvent())))
	f.Add([]byte(specBatch))
	f.Add([]byte(`[{"specversion":"1.0","id":"1","source":"/s","type":"t"},{},[],null,{"specversion":"1.0","id":"1","source":"/s","type":"t","a":"","b":"","c":"","d":"","e":""}]`))
	f.Fuzz(func(t *testing.T, body []byte) {
		const limit = 20
		var views []*broker.View
		var accepted []bool
		if ReadBatch(http.Header{"Content-Type": {typeBatch}}, body, limit, func(i int, v *broker.View, err error) {
			views, accepted = append(views, v), append(accepted, err == nil)
		}) != nil {
			if len(views) > 0 {
				t.Fatal("events of a batch that is refused were read")
			}
			return
		}
		var alone []json.RawMessage
		if err := json.Unmarshal(body, &alone); err != nil || len(alone) != len(views) || len(alone) > limit {
			t.Fatalf("%d events were read: %v, %d", len(views), err, len(alone))
		}
		for i, v := range views {
			var want broker.View
			err := ReadStructured(http.Header{"Content-Type": {typeStructured}}, alone[i], &want)
			if accepted[i] != (err == nil) {
				t.Fatalf("event %d is accepted: %v; alone: %v", i, accepted[i], err)
			}
			if accepted[i] {
				checkSame(t, v, &want, Binary)
				checkAccepted(t, v)
			}
		}
	})
}

// checkAccepted checks an accepted event with Validate and sends it over the wire in
// every mode.
func checkAccepted(t *testing.T, v *broker.View) {
	t.Helper()
	if err := v.Validate(); err != nil {
		t.Fatalf("%+v was accepted: %v", v, err)
	}
	for _, mode := range []Mode{Binary, Structured, Batch} {
		h, body := overTheWire(t, mode, v)
		views, err := readAll(h, body)
		if err != nil {
			t.Fatalf("%s: what we wrote, %v and %s, is refused: %v", mode, h, body, err)
		}
		checkSame(t, &views[0], v, mode)
	}
}

// overTheWire returns a message as net/http reads it after net/http has written it.
func overTheWire(t *testing.T, mode Mode, v *broker.View) (http.Header, []byte) {
	t.Helper()
	h, body := encodeMessage(mode, v)
	req := must(http.NewRequest(http.MethodPost, "http://example.com", bytes.NewReader(body)))(t)
	req.Header = h
	var wire bytes.Buffer
	if err := req.Write(&wire); err != nil {
		t.Fatal(err)
	}
	got := must(http.ReadRequest(bufio.NewReader(&wire)))(t)
	return got.Header, must(io.ReadAll(got.Body))(t)
}

func checkSame(t *testing.T, got, want *broker.View, mode Mode) {
	t.Helper()
	if a, b := canonicalText(got, mode), canonicalText(want, mode); a != b {
		t.Fatalf("%s changed\n%s\ninto\n%s", mode, b, a)
	}
}

// canonicalText returns a view as text without the details that a mode cannot keep. A header
// loses the spaces around a content type. JSON gets an explicit content type and a new
// layout.
func canonicalText(v *broker.View, mode Mode) string {
	c := v.Clone()
	c.Key, c.Foreign = nil, nil
	slices.SortFunc(c.Extensions, func(a, b broker.Attribute) int { return strings.Compare(a.Name, b.Name) })
	c.DataContentType = strings.TrimSpace(c.DataContentType)
	if mode != Binary {
		var b bytes.Buffer
		if json.Compact(&b, c.Data) == nil {
			c.Data = b.Bytes()
		}
		if c.DataContentType == "application/json" {
			c.DataContentType = ""
		}
	}
	data := c.Data
	c.Data = nil
	return fmt.Sprintf("%+q %q", c, data)
}

func first(h http.Header, _ []byte) http.Header { return h }
func second(_ http.Header, body []byte) []byte  { return body }

func headerLines(h http.Header) string {
	var b strings.Builder
	for name, values := range h {
		for _, value := range values {
			b.WriteString(name + ": " + value + "\n")
		}
	}
	return b.String()
}

func parseLines(lines string) http.Header {
	h := http.Header{}
	for line := range strings.SplitSeq(lines, "\n") {
		name, value, _ := strings.Cut(line, ":")
		h.Add(name, strings.Trim(value, " \t"))
	}
	return h
}
