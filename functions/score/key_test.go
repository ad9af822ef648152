package score

import (
	"bytes"
	"encoding/json"
	"strconv"
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

// oracle is textAt implemented with encoding/json.
func oracle(data []byte, path []string) string {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var at any
	if d.Decode(&at) != nil {
		return ""
	}
	for _, part := range path {
		switch of := at.(type) {
		case map[string]any:
			at = of[part]
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil || i < 0 || i >= len(of) {
				return ""
			}
			at = of[i]
		default:
			return ""
		}
	}
	switch x := at.(type) {
	case string:
		return x
	case json.Number:
		return x.String()
	case bool:
		return strconv.FormatBool(x)
	}
	return ""
}

var keyCases = []struct{ data, path string }{
	{`{"bot":{"id":"b-7"}}`, "bot.id"},
	{` { "a" : [ 1 , {"b":"x"} , "y" ] } `, "a.1.b"},
	{`{"a":[1,2,3]}`, "a.3"},
	{`{"a":[1,2,3]}`, "a.-1"},
	{`{"a":"x","a":"y"}`, "a"},
	{`{"a":{"b":"x"},"a":{"c":"y"}}`, "a.b"},
	{`{"a":"\u0041\n\"q\""}`, "a"},
	{`{"\u0061":"escaped name"}`, "a"},
	{`{"a\\":"x"}`, `a\`},
	{`{"a":{"b":[]}}`, "a.b.0"},
	{`{"a":null}`, "a"},
	{`{"a":-1.5e3}`, "a"},
	{`{"a":true}`, "a"},
	{`{"a":{"b":1}}`, "a"},
	{`[[0,[1,"z"]]]`, "0.1.1"},
	{`"text"`, "a"},
	{``, "a"},
	{`{"deep":[[[[{"x":"}]"}]]]],"a":"found"}`, "a"},
}

func TestTextsAreFoundInJSON(t *testing.T) {
	for _, c := range keyCases {
		path := strings.Split(c.path, ".")
		if got, want := textAt([]byte(c.data), path), oracle([]byte(c.data), path); got != want {
			t.Errorf("at %s of %s is %q, want %q", c.path, c.data, got, want)
		}
	}
}

// Valid JSON is read as encoding/json reads it. For invalid JSON, reading must only end.
func FuzzTextAt(f *testing.F) {
	for _, c := range keyCases {
		f.Add([]byte(c.data), c.path)
	}
	f.Fuzz(func(t *testing.T, data []byte, path string) {
		parts := strings.Split(path, ".")
		got := textAt(data, parts)
		if !json.Valid(data) || bytes.ContainsRune(data, 0) || !bytes.Equal(bytes.ToValidUTF8(data, nil), data) {
			return
		}
		if want := oracle(data, parts); got != want {
			t.Errorf("at %q of %q is %q, want %q", path, data, got, want)
		}
	})
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
