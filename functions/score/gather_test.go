package score

import (
	"strings"
	"testing"

	"tidemill.dev/broker"
)

func TestKeys(t *testing.T) {
	v := broker.View{ID: "1", Source: "/x", Type: "message", Subject: "bot-1", Data: []byte(`{"bot":{"id":"b-7","n":12}}`),
		Extensions: []broker.Attribute{{Name: "partitionkey", Value: "p-3"}, {Name: "shop", Value: "s"}}}
	for _, c := range []struct{ place, model, key, fails string }{
		{"", "m/{key}", "bot-1", ""},
		{"subject", "m/{key}", "bot-1", ""},
		{"partitionkey", "m/{key}", "p-3", ""},
		{"shop", "m/{key}", "s", ""},
		{"data.bot.id", "m/{key}", "b-7", ""},
		{"data.bot.n", "m/{key}", "12", ""},
		{"data.bot.none", "m/{key}", "", "data.bot.none"},
		{"data.bot.none", "m", "", ""},
		{"none", "m", "", ""},
		{"absent", "m/{key}", "", "absent"},
	} {
		place := newKeyPlace(c.place, c.model)
		key, err := place.keyOf(&v)
		if key != c.key || (err != nil) != (c.fails != "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("at %s for %s: %q, %v", c.place, c.model, key, err)
		}
	}
}

func TestKeysThatAreNone(t *testing.T) {
	for _, c := range []struct {
		key string
		ok  bool
	}{{"bot-42", true}, {"Straße", true}, {strings.Repeat("x", 256), true}, {strings.Repeat("x", 257), false}, {"a\x00b", false},
		{"a\xffb", false}, {"a\u0085b", false}, {"a\x7f", false}} {
		if err := checkKey(c.key); (err == nil) != c.ok {
			t.Errorf("%q: %v", c.key, err)
		}
	}
}

func TestKeysCostNothing(t *testing.T) {
	v := broker.View{Subject: "bot-1", Data: []byte(`{"text":"some words","bot":{"n":1,"id":"b-7"}}`)}
	for _, at := range []string{"subject", "data.bot.id", "data.bot.n"} {
		place := newKeyPlace(at, "m/{key}")
		if n := testing.AllocsPerRun(100, func() { _, _ = place.keyOf(&v) }); n != 0 {
			t.Errorf("at %s: %v allocations", at, n)
		}
	}
}
