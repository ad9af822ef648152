package cehttp

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"tidemill.dev/broker"
)

func TestModeOf(t *testing.T) {
	for contentType, want := range map[string]string{
		"":                             "binary",
		"application/json":             "binary",
		"text/plain; charset=latin1":   "binary", // the charset of the data is ignored here
		"application/cloudevents+json": "structured",
		"Application/CloudEvents+JSON;charset=\"UTF-8\"":            "structured",
		"application/cloudevents+json; charset=us-ascii; profile=x": "structured",
		"application/cloudevents-batch+json":                        "batched",
		"application/cloudevents-batch+json ; charset=utf-8":        "batched",
		"application/cloudevents":                                   "only application/cloudevents+json",
		"application/cloudevents+avro":                              "only application/cloudevents+json",
		"application/cloudevents+xml; charset=utf-8":                "only application/cloudevents+json",
		"application/cloudevents+protobuf":                          "only application/cloudevents+json",
		"application/cloudevents-batch+xml":                         "only application/cloudevents+json",
		"application/cloudevents+jsonx":                             "only application/cloudevents+json",
		"application/cloudevents+json; charset=iso-8859-1":          "JSON is read in UTF-8 only",
		"application/cloudevents-batch+json; charset=utf-16":        "JSON is read in UTF-8 only",
		"application/cloudevents+json; charset":                     "invalid media parameter",
		"application/cloudevents+json; a=1; a=2":                    "duplicate parameter name",
	} {
		h := http.Header{}
		if contentType != "" {
			h.Set("Content-Type", contentType)
		}
		mode, err := ModeOf(h)
		if err == nil && mode.String() != want {
			t.Errorf("%s: mode %s; want %s", contentType, mode, want)
		}
		if unsupported, ok := errors.AsType[*UnsupportedError](err); err != nil &&
			(!ok || unsupported.Header != "Content-Type" || unsupported.Value != contentType || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: error %v; want one with %q", contentType, err, want)
		}
	}
}

func TestEncodedBodiesAreRefused(t *testing.T) {
	for value, fine := range map[string]bool{"": true, "identity": true, "Identity": true, "gzip": false, "identity, br": false} {
		for _, mode := range []Mode{Binary, Structured, Batch} {
			h, body := encodeMessage(mode, plainEvent())
			h.Set("Content-Encoding", value)
			_, err := readAll(h, body)
			unsupported, ok := errors.AsType[*UnsupportedError](err)
			if (err == nil) != fine || ok && unsupported.Header != "Content-Encoding" {
				t.Errorf("%q: %v", value, err)
			}
		}
	}
}

// Each reader refuses messages of another mode, and clears the event that was in the view before.
func TestReadersKnowTheirMode(t *testing.T) {
	readers := map[Mode]func(http.Header, []byte, *broker.View) error{
		Binary:     ReadBinary,
		Structured: ReadStructured,
		Batch: func(h http.Header, body []byte, v *broker.View) error {
			*v = broker.View{}
			return ReadBatch(h, body, 1, func(_ int, read *broker.View, err error) { *v = *read })
		},
	}
	for mode, read := range readers {
		for other := range readers {
			h, body := encodeMessage(other, plainEvent())
			v := broker.View{ID: "left over"}
			err := read(h, body, &v)
			if mode == other {
				if err != nil || v.ID != plainEvent().ID {
					t.Errorf("%s: %v", mode, err)
				}
				continue
			}
			if _, ok := errors.AsType[*UnsupportedError](err); !ok || v.ID != "" {
				t.Errorf("%s read as %s: %q, %v", other, mode, v.ID, err)
			}
		}
	}
}

// encodeMessage returns an event as a message in a mode.
func encodeMessage(mode Mode, v *broker.View) (http.Header, []byte) {
	h := http.Header{}
	return h, writeBatch(h, mode, []broker.View{*v})
}
