package broker

import (
	"testing"
	"time"

	"tidemill.dev/broker/internal/wire"
)

// What a reader bears with can be written again as it was read.
func TestWhatWasReadIsCarriedOn(t *testing.T) {
	for name, change := range map[string]func(*View){
		"a time that is none":     func(v *View) { v.Time = "2026-99-99T99:99:99Z" },
		"a control character":     func(v *View) { v.Subject = "a\nb" },
		"a source that is no URI": func(v *View) { v.Source = "the old shop" },
		"a content type that is none": func(v *View) {
			v.DataContentType = "what/ever/it; is"
		},
	} {
		v := View{ID: "1", Source: "/x", Type: "t", Time: time.Now().UTC().Format(time.RFC3339), Data: []byte("x")}
		change(&v)
		if v.Validate() == nil {
			t.Errorf("%s: a publisher may write it", name)
		}
		var s scratch
		if err := s.encode(&v, true); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var back View
		if err := decodeRecord(&wire.Record{Key: s.record.Key, Value: s.record.Value, Headers: s.record.Headers}, &back); err != nil {
			t.Errorf("%s: it cannot be read again: %v", name, err)
		}
		if back.Time != v.Time || back.Subject != v.Subject || back.Source != v.Source || back.DataContentType != v.DataContentType {
			t.Errorf("%s: it came back as %+v", name, back)
		}
	}
}

// What could not be read again is not written.
func TestWhatCouldNotBeReadAgain(t *testing.T) {
	for name, change := range map[string]func(*View){
		"structured mode":  func(v *View) { v.DataContentType = "application/cloudevents+json" },
		"no id":            func(v *View) { v.ID = "" },
		"too many headers": func(v *View) { v.Foreign = make([]Header, maxHeaders) },
	} {
		v := View{ID: "1", Source: "/x", Type: "t"}
		change(&v)
		if v.Legible() == nil {
			t.Errorf("%s: it is legible", name)
		}
	}
}
