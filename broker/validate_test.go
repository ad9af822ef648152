package broker

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"tidemill.dev/broker/internal/wire"
)

// FuzzPlainTime compares plainTime with package time: plainTime may accept only times that package
// time accepts.
func FuzzPlainTime(f *testing.F) {
	for _, s := range []string{"2026-01-31T15:04:05.123456789Z", "2026-01-28T15:04:05Z", "2026-01-28T23:59:59.1Z", "2026-02-28T00:00:00Z",
		"2026-13-01T00:00:00Z", "2026-00-01T00:00:00Z", "2026-01-00T00:00:00Z", "2026-04-31T00:00:00Z", "2026-01-01T24:00:00Z", "2026-01-01T00:60:00Z",
		"2026-01-01T00:00:60Z", "2026-01-01T00:00:00.Z", "2026-01-01T00:00:00,1Z", "2026-01-01t00:00:00Z", "2026-01-01T00:00:00+01:00", "2026-01-01T00:00:00", "20:6-01-01T00:00:00Z"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var at time.Time
		if (plainTime(s) || anyTime(s)) && at.UnmarshalText([]byte(s)) != nil {
			t.Errorf("%q is no time", s)
		}
		if plainTime(s) && !anyTime(s) {
			t.Errorf("%q is a time for the short cut alone", s)
		}
	})
}

func TestPlainTimeTakesTheUsual(t *testing.T) {
	for s, want := range map[string]bool{
		"2026-01-28T15:04:05.123456789Z": true,
		"2026-01-28T15:04:05Z":           true,
		"2026-01-31T15:04:05Z":           true,
		"2026-04-31T15:04:05Z":           false,
		"2028-02-29T15:04:05Z":           false, // left to package time
		"2026-01-28T15:04:05+00:00":      false,
		"2026-01-28T15:04:05.Z":          false,
		"2026-1-28T15:04:05Z":            false,
		"":                               false,
	} {
		if got := plainTime(s); got != want {
			t.Errorf("plainTime(%q) = %v, want %v", s, got, want)
		}
	}
}

// A time that package time accepts and our reader refuses is not valid, because an unreadable event
// must not be stored.
func TestAnyTime(t *testing.T) {
	for s, want := range map[string]bool{
		"2028-02-29T15:04:05Z":        true,
		"2026-01-28T15:04:05.5+23:59": true,
		"2026-01-28T15:04:05-00:00":   true,
		"2026-01-28T5:04:05.9Z":       false,
		"2026-01-28T15:04:05,5Z":      false,
		"2026-01-28T15:04:05+24:00":   false,
		"2026-01-28T15:04:05+00:60":   false,
		"2026-01-28t15:04:05z":        false,
		"2026-02-29T15:04:05Z":        false,
	} {
		if got := anyTime(s); got != want {
			t.Errorf("anyTime(%q) = %v, want %v", s, got, want)
		}
		if anyTime(s) && !looksLikeTime(s) {
			t.Errorf("%q is written, but not read", s)
		}
	}
}

// errorAttribute returns the attribute that an error names, or "" if it names none.
func errorAttribute(err error) string {
	if e, ok := errors.AsType[interface {
		error
		Attribute() string
	}](err); ok {
		return e.Attribute()
	}
	return ""
}

func TestErrorsTellTheAttribute(t *testing.T) {
	const core = `{"specversion":"1.0","id":"1","source":"/s","type":"t"`
	for body, want := range map[string]string{
		`{}`:                       "specversion",
		`{"specversion":"0.3"}`:    "specversion",
		`{"specversion":"1.0"}`:    "id",
		core + `,"id":"2"}`:        "id",
		core + `,"ID":"2"}`:        "id",
		core + `,"x":{}}`:          "x",
		core + `,"x":1.5}`:         "x",
		core + `,"x-y":""}`:        "x-y",
		core + `,"time":"monday"}`: "time",
		core + `,"data_base64":1}`: "",
		`[]`:                       "",
	} {
		err := UnmarshalStructured([]byte(body), new(View))
		if got := errorAttribute(err); err == nil || got != want {
			t.Errorf("%s: attribute %q of %v; want %q", body, got, err, want)
		}
	}
	if got := errorAttribute((&View{ID: "1", Type: "t", Source: "%"}).Validate()); got != "source" {
		t.Errorf("Validate blames %q", got)
	}
}

// An error shows a hostile name as far as a log or an answer can carry it.
func TestErrorsTellHostileNames(t *testing.T) {
	for name, want := range map[string]string{
		"a\xffb":                                "a\uFFFDb",
		strings.Repeat("a", maxName):            strings.Repeat("a", maxName),
		strings.Repeat("a", maxName+1):          strings.Repeat("a", nameOfNoEventShown) + "…",
		strings.Repeat("-", maxAttribute):       strings.Repeat("-", nameOfNoEventShown) + "…",
		strings.Repeat("-", nameOfNoEventShown): strings.Repeat("-", nameOfNoEventShown),
	} {
		err := fmt.Errorf("publish: %w", attributeError(name, errTwice))
		if got := errorAttribute(err); got != want || !errors.Is(err, errTwice) {
			t.Errorf("%.20q: told as %q", name, got)
		}
	}
}

func TestProducerTellsTheAttribute(t *testing.T) {
	b, _ := openFake(t, kfake.SeedTopics(1, "prod.events"))
	p := producer(t, b)
	bad := &View{ID: "1", Source: "/s", Type: "t", Extensions: []Attribute{{"x", "\x00"}}}
	if _, err := p.Publish(t.Context(), "events", bad); errorAttribute(err) != "x" {
		t.Errorf("Publish blames %q: %v", errorAttribute(err), err)
	}
	p.Send(t.Context(), "events", bad, func(_ Receipt, err error) {
		if errorAttribute(err) != "x" {
			t.Errorf("Send blames %q: %v", errorAttribute(err), err)
		}
	})
}

func TestSet(t *testing.T) {
	var v View
	for _, a := range []Attribute{{"specversion", "1.0"}, {"id", "1"}, {"datacontenttype", "a/b"}, {"x", "1"}, {"x", "2"}, {"id", "2"}} {
		if err := v.Set(a.Name, a.Value); err != nil {
			t.Errorf("%s: %v", a.Name, err)
		}
	}
	if v.ID != "2" || v.DataContentType != "a/b" || len(v.Extensions) != 1 || v.Extensions[0] != (Attribute{"x", "2"}) {
		t.Errorf("view is %+v", v)
	}
	for _, a := range []Attribute{{"specversion", ""}, {"specversion", "0.3"}, {"X", ""}, {"data", ""}, {"", ""}} {
		if err := v.Set(a.Name, a.Value); errorAttribute(err) != a.Name || err == nil {
			t.Errorf("%q: %v", a.Name, err)
		}
	}
}

// Anything that a reader accepts can be written again unchanged.
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

// An event that could not be read again is not written.
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
