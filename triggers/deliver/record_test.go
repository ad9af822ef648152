package deliver

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/broker/parked"
)

func someRecord() record {
	return record{trigger: "tell-crm", source: 1 << 40, first: 1_700_000_000_123, due: 1_700_000_009_000, next: 77, replay: "act", letter: "letter", tries: 3,
		past: []Attempt{{At: time.UnixMilli(1_700_000_000_000).UTC(), Took: time.Second, Status: 500, Error: "answered 500", Answer: "oh\x00"}}}
}

func TestRecordGoesThereAndBack(t *testing.T) {
	for _, want := range []record{someRecord(), {trigger: "t"}} {
		b, err := want.encode()
		if err != nil {
			t.Fatal(err)
		}
		var got record
		if err := got.decode(b); err != nil {
			t.Fatal(err)
		}
		if err := got.history(); err != nil {
			t.Fatal(err)
		}
		got.rest = nil
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%+v became %+v", want, got)
		}
	}
}

// A publisher's header of our name is ignored, and the header that we add does not change
// the event.
func TestRecordIsOurs(t *testing.T) {
	v := broker.View{ID: "1", Source: "/s", Type: "t", Foreign: []broker.Header{{Key: headerParked, Value: []byte("forged")}, {Key: "x", Value: []byte("y")}}}
	r := someRecord()
	w, err := r.wrap(&v)
	if err != nil {
		t.Fatal(err)
	}
	var got record
	if err := got.decode(recordOf(&w)); err != nil || got.trigger != r.trigger {
		t.Errorf("trigger %q, error %v", got.trigger, err)
	}
	if left := parked.Strip(w.Foreign, headerParked, parked.HeaderOdd); len(left) != 1 || left[0].Key != "x" {
		t.Errorf("left is %v", left)
	}
	if string(v.Foreign[0].Value) != "forged" || len(v.Foreign) != 2 {
		t.Errorf("the event itself was changed: %v", v.Foreign)
	}
}

// An event that may not be published is unchanged after it was parked.
func TestRecordHidesWhatIsOdd(t *testing.T) {
	many := broker.View{ID: "1", Source: "/s", Type: "t", Key: []byte("k"), Data: []byte("d"), Foreign: []broker.Header{{Key: "x", Value: []byte("\xff")}}}
	for n := range 247 {
		many.Extensions = append(many.Extensions, broker.Attribute{Name: fmt.Sprint("a", n), Value: "b"})
	}
	forged := []broker.Header{{Key: parked.HeaderOdd, Value: []byte("{}")}, {Key: headerParked, Value: []byte("forged")}}
	for name, v := range map[string]broker.View{
		"many":                     many,
		"subject":                  {ID: "1\x01", Source: "a b", Type: "t", Subject: "\u0085", DataContentType: "json", Data: []byte("d")},
		"event inside of an event": {ID: "1", Source: "/s", Type: "t", DataContentType: "application/cloudevents+json", Data: []byte("{}"), Key: []byte("k"), Foreign: forged},
		"long":                     {ID: "1", Source: "/s", Type: "t", Subject: strings.Repeat("\x01", 60<<10), Foreign: []broker.Header{{Key: "x", Value: bytes.Repeat([]byte{0xff}, 500<<10)}}},
		"no data":                  {ID: "1", Source: "/s", Type: "t", Subject: "\x01"},
		"plain":                    {ID: "1", Source: "/s", Type: "t", Data: []byte("d"), Foreign: forged},
	} {
		r := someRecord()
		w, err := r.wrap(&v)
		if err == nil {
			err = w.Validate()
		}
		if err != nil {
			t.Errorf("%s cannot be parked: %v", name, err)
			continue
		}
		got := readRecord(&broker.Incoming{View: w})
		want := v.Clone()
		want.Foreign = parked.Strip(v.Foreign, headerParked, parked.HeaderOdd)
		if grown := parked.Size(&w) - parked.Size(&v) - len(recordOf(&w)); grown > 16<<10 {
			t.Errorf("%s takes %d bytes more", name, grown)
		}
		if got.err != nil || got.record.trigger != r.trigger || !reflect.DeepEqual(tidy(got.view), tidy(want)) || !bytes.Equal(w.Key, v.Key) {
			t.Errorf("%s: %+v came back as %+v: %v", name, want, got.view, got.err)
		}
	}
}

// tidy returns a view without empty lists.
func tidy(v broker.View) broker.View {
	if len(v.Foreign) == 0 {
		v.Foreign = nil
	}
	if len(v.Extensions) == 0 {
		v.Extensions = nil
	}
	return v
}

func TestHistoryIsBounded(t *testing.T) {
	var i item
	for n := range 50 {
		i.remember(Attempt{Status: n})
	}
	var got []int
	for _, a := range i.past {
		got = append(got, a.Status)
	}
	if want := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49}; !slices.Equal(got, want) || i.tries != 50 {
		t.Errorf("after %d tries its history is %v", i.tries, got)
	}
}

func FuzzRecord(f *testing.F) {
	r := someRecord()
	b, _ := r.encode()
	f.Add(b)
	f.Add([]byte{recordVersion})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var r record
		if r.decode(b) != nil || r.history() != nil {
			return
		}
		again, err := r.encode()
		if err != nil {
			return // a time that JSON cannot encode
		}
		var s record
		if err := s.decode(again); err != nil {
			t.Fatalf("what was read cannot be read again: %v", err)
		}
		if err := s.history(); err != nil || s.source != r.source || s.trigger != r.trigger || len(s.past) != len(r.past) {
			t.Fatalf("%+v became %+v: %v", r, s, err)
		}
	})
}
