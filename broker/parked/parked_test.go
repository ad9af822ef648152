package parked

import (
	"errors"
	"reflect"
	"testing"

	"tidemill.dev/broker"
)

func TestHeaderIsReadBack(t *testing.T) {
	b := AppendText(AppendText(AppendNumber(AppendNumber([]byte{1}, 1<<40), -5), "key"), "")
	r := Read(append(b, "rest"...), 1)
	if n, m, s, e := r.Number(), r.Number(), r.Text(), r.Text(); n != 1<<40 || m != 0 || s != "key" || e != "" || string(r.Rest()) != "rest" || r.Err() != nil {
		t.Errorf("read %d, %d, %q, %q, rest %q, error %v", n, m, s, e, r.Rest(), r.Err())
	}
}

func TestHeaderThatCannotBeReadIsAnError(t *testing.T) {
	for name, b := range map[string][]byte{
		"nothing":         {},
		"another version": {2, 1, 1, 'x'},
		"no number":       {1},
		"large number":    {1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1},
		"no text":         {1, 7},
		"short text":      {1, 7, 3, 'x'},
	} {
		r := Read(b, 1)
		r.Number()
		r.Text()
		if !errors.Is(r.Err(), ErrHeader) || len(r.Rest()) != 0 {
			t.Errorf("%s: error %v, rest %q", name, r.Err(), r.Rest())
		}
	}
}

// An event comes back as it was: also one that may not be published, and one whose
// publisher has written headers that look like ours.
func TestWrapAndUnwrap(t *testing.T) {
	const name = "tidemill-test"
	forged := broker.Header{Key: name, Value: []byte("forged")}
	for what, v := range map[string]broker.View{
		"plain":              {ID: "1", Source: "/s", Type: "t", Data: []byte("d")},
		"odd":                {ID: "1\x01", Source: "a b", Type: "t", Key: []byte("k"), Data: []byte("d")},
		"forged header":      {ID: "1", Source: "/s", Type: "t", Foreign: []broker.Header{forged, {Key: "x", Value: []byte("y")}}},
		"odd, forged header": {ID: "1\x01", Source: "/s", Type: "t", Foreign: []broker.Header{forged}},
	} {
		before := v.Clone()
		w, err := Wrap(&v, name, []byte("ours"))
		if err == nil {
			err = w.Validate()
		}
		if err != nil || string(Find(&w, name)) != "ours" {
			t.Errorf("%s: header %q, error %v", what, Find(&w, name), err)
			continue
		}
		got, err := Unwrap(w.Clone(), name)
		if len(got.Foreign) == 0 {
			got.Foreign = before.Foreign
		}
		if err != nil || !reflect.DeepEqual(got.Clone(), before) || !reflect.DeepEqual(v.Clone(), before) {
			t.Errorf("%s: %+v came back as %+v: %v", what, before, got, err)
		}
	}
}

func TestUnwrapDoesNotBelieveAPublisher(t *testing.T) {
	v := broker.View{ID: "1", Source: "/s", Type: "t", Foreign: []broker.Header{{Key: HeaderOdd, Value: []byte("forged")}}}
	w, err := Wrap(&v, "h", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Unwrap(w.Clone(), "h"); err != nil || len(got.Foreign) != 0 {
		t.Errorf("%+v, error %v", got, err)
	}
}

func TestCacheDropsTheOldest(t *testing.T) {
	c := NewCache[int, string](10)
	for n := range 5 {
		c.Put(n, "x", 4)
		c.Put(n, "other", 4)
	}
	if c.Has(2) || c.Size() != 8 {
		t.Errorf("has 2: %v, size %d", c.Has(2), c.Size())
	}
	if v, ok := c.Take(4); v != "x" || !ok || c.Size() != 4 {
		t.Errorf("took %q %v, size %d", v, ok, c.Size())
	}
	if _, ok := c.Take(4); ok {
		t.Error("taken twice")
	}
	c.Clear()
	if c.Has(3) || c.Size() != 0 {
		t.Error("not cleared")
	}
}

func TestRenewalIsDue(t *testing.T) {
	r := Renewal{Least: 100, Share: 4}
	for _, x := range []struct {
		length, waiting, patience int
		want                      bool
	}{
		{99, 1, 0, false}, {100, 1, 0, true}, {100, 0, 0, false}, {100, 26, 0, false}, {104, 26, 0, true}, {150, 1, 100, false}, {200, 1, 100, true},
	} {
		if got := r.Due(x.length, x.waiting, x.patience); got != x.want {
			t.Errorf("%+v: %v", x, got)
		}
	}
}
