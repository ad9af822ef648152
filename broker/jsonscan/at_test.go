package jsonscan

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
)

// decodedAt is TextAt implemented with encoding/json.
func decodedAt(data []byte, path []string) string {
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

var textPlaces = []struct{ data, path string }{
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
	for _, c := range textPlaces {
		path := strings.Split(c.path, ".")
		if got, want := TextAt([]byte(c.data), path), decodedAt([]byte(c.data), path); got != want {
			t.Errorf("at %s of %s is %q, want %q", c.path, c.data, got, want)
		}
	}
}

// Valid JSON is read as encoding/json reads it. For invalid JSON, reading must only end.
func FuzzTextAt(f *testing.F) {
	for _, c := range textPlaces {
		f.Add([]byte(c.data), c.path)
	}
	f.Fuzz(func(t *testing.T, data []byte, path string) {
		parts := strings.Split(path, ".")
		got := TextAt(data, parts)
		if !json.Valid(data) || bytes.ContainsRune(data, 0) || !bytes.Equal(bytes.ToValidUTF8(data, nil), data) {
			return
		}
		if want := decodedAt(data, parts); got != want {
			t.Errorf("at %q of %q is %q, want %q", path, data, got, want)
		}
	})
}
