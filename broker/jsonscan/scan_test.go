package jsonscan

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

var documents = []string{
	"", " ", "null", " true ", "false", "nul", "nulll", "tru", "t", "0", "-0", "-", "01", "1.", "1.5", ".5", "1e", "1e+", "1E-07", "-1.0e5", "+1", "1 2",
	`""`, `"`, `"\"`, `"\\"`, `"\u00e4"`, `"\u00e"`, `"\u00eg"`, `"\x"`, "\"\n\"", "\"\x1f\"", "\"\x7f\"", "\"\xff\"", `"12345678"`, `"1234567\"9"`, `"1234567\`, "\"1234567\x00\"",
	"[]", "[ ]", "[", "]", "[1", "[1,", "[1,]", "[,1]", "[1 2]", "[1,2]", "[[],[[]]]", "[}",
	"{}", "{ }", "{", "{1:2}", `{"a"}`, `{"a":}`, `{"a":1}`, `{"a" : 1 , "b" : [ ] }`, `{"a":1,}`, `{"a":1]`, `{"a" 1}`, "\ufeff{}", "{}\x00", "{}{}",
}

func TestScannerAgreesWithEncodingJSON(t *testing.T) {
	for _, doc := range documents {
		checkScanner(t, []byte(doc))
	}
	for depth := MaxDepth - 1; depth < MaxDepth+2; depth++ {
		checkScanner(t, []byte(strings.Repeat("[", depth)+strings.Repeat("]", depth)))
		checkScanner(t, []byte(strings.Repeat(`{"":`, depth)+"0"+strings.Repeat("}", depth)))
		checkScanner(t, []byte(strings.Repeat("[", depth)))
	}
}

func checkScanner(t *testing.T, b []byte) {
	t.Helper()
	if got, want := Valid(b), json.Valid(b); got != want {
		t.Fatalf("%.100q is valid: %v; encoding/json says %v", b, got, want)
	}
}

// Wherever a special byte is among eight, ReadString finds it, and no other.
func TestReadStringStopsAtSpecialBytes(t *testing.T) {
	for at := range 20 {
		for c := range 256 {
			b := append(append([]byte{'"'}, bytes.Repeat([]byte("!#[]\x7f\xff "), 3)[:20]...), '"')
			b[at+1] = byte(c)
			want := len(b)
			switch {
			case c < ' ', c == '\\':
				want = -1 // no escape begins with one of the bytes after it
			case c == '"':
				want = at + 2
			}
			if got := ReadString(b, 0).End; got != want {
				t.Fatalf("byte %#x at %d: ends at %d, not %d", c, at, got, want)
			}
		}
	}
}

func FuzzScanner(f *testing.F) {
	for _, doc := range documents {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		checkScanner(t, b)
		checkText(t, b)
	})
}

// A text is read as encoding/json reads it.
func checkText(t *testing.T, b []byte) {
	t.Helper()
	i := SkipSpace(b, 0)
	if i == len(b) || b[i] != '"' || !Valid(b) {
		return
	}
	var want string
	if err := json.Unmarshal(b, &want); err != nil {
		t.Fatal(err)
	}
	got, end, _ := Text(b, i, nil)
	if got != want || SkipSpace(b, end) != len(b) {
		t.Fatalf("%q is read as %q up to %d; encoding/json has %q", b, got, end, want)
	}
	if l := ReadString(b, i); !l.Is(b, i, want) || utf8.ValidString(want) && l.Is(b, i, want+"x") {
		t.Fatalf("%q is not recognised as %q, or is as more than that", b, want)
	}
}

func TestTexts(t *testing.T) {
	for _, literal := range []string{`""`, `"a"`, `"ä\u00e4\ud83d\ude00"`, `"\ud83d"`, `"\ud83dx"`, `"\ude00\ud83d"`, `"\b\f\n\r\t\/\\\""`, "\"\xff\"", "\"a\xc3\""} {
		checkText(t, []byte(literal))
	}
}

func BenchmarkValid(b *testing.B) {
	doc := []byte(`{"id":"4711","text":"` + strings.Repeat("no escapes in here ", 50) + `","n":[1,2,3.25,-4e5]}`)
	b.SetBytes(int64(len(doc)))
	for b.Loop() {
		Valid(doc)
	}
}

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
