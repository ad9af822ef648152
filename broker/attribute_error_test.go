package broker

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
)

// at is the attribute that an error tells, "" if it tells none.
func at(err error) string {
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
		if got := at(err); err == nil || got != want {
			t.Errorf("%s: attribute %q of %v; want %q", body, got, err, want)
		}
	}
	if got := at((&View{ID: "1", Type: "t", Source: "%"}).Validate()); got != "source" {
		t.Errorf("Validate blames %q", got)
	}
}

// A hostile name is told as far as a log or an answer can carry it.
func TestErrorsTellHostileNames(t *testing.T) {
	for name, want := range map[string]string{
		"a\xffb":                                "a\uFFFDb",
		strings.Repeat("a", maxName):            strings.Repeat("a", maxName),
		strings.Repeat("a", maxName+1):          strings.Repeat("a", nameOfNoEventShown) + "…",
		strings.Repeat("-", maxAttribute):       strings.Repeat("-", nameOfNoEventShown) + "…",
		strings.Repeat("-", nameOfNoEventShown): strings.Repeat("-", nameOfNoEventShown),
	} {
		err := fmt.Errorf("publish: %w", attributeError(name, errTwice))
		if got := at(err); got != want || !errors.Is(err, errTwice) {
			t.Errorf("%.20q: told as %q", name, got)
		}
	}
}

func TestProducerTellsTheAttribute(t *testing.T) {
	b, _ := openFake(t, kfake.SeedTopics(1, "prod.events"))
	p := producer(t, b)
	bad := &View{ID: "1", Source: "/s", Type: "t", Extensions: []Attribute{{"x", "\x00"}}}
	if _, err := p.Publish(t.Context(), "events", bad); at(err) != "x" {
		t.Errorf("Publish blames %q: %v", at(err), err)
	}
	p.Send(t.Context(), "events", bad, func(_ Receipt, err error) {
		if at(err) != "x" {
			t.Errorf("Send blames %q: %v", at(err), err)
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
		if err := v.Set(a.Name, a.Value); at(err) != a.Name || err == nil {
			t.Errorf("%q: %v", a.Name, err)
		}
	}
}
