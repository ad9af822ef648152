package cehttp

import (
	"strings"
	"testing"
)

// The first pair is the binding's own example.
var encodings = map[string]string{
	"Euro € 😀":    "Euro%20%E2%82%AC%20%F0%9F%98%80",
	"":            "",
	"plain!~":     "plain!~",
	" ":           "%20",
	"a\"b":        "a%22b",
	"100%":        "100%25",
	"%20":         "%2520",
	"a\r\n\x7f":   "a%0D%0A%7F",
	"\\,;=()<>@/": "\\,;=()<>@/",
}

func TestPercentEncoding(t *testing.T) {
	for plain, encoded := range encodings {
		if got := encodeValue(plain); got != encoded {
			t.Errorf("%q became %q; want %q", plain, got, encoded)
		}
		if got := new(textBuffer).decodeValue("x", encoded); got != plain {
			t.Errorf("%q was read as %q; want %q", encoded, got, plain)
		}
	}
}

func TestPercentDecoding(t *testing.T) {
	for encoded, plain := range map[string]string{
		"%41%7a":       "Az", // allowed although not needed
		"%e2%82%aC":    "€",
		"%2520":        "%20", // one round of decoding, not two
		"a b%20c":      "a b c",
		"100%":         "100%", // no escapes: unchanged
		"%":            "%",
		"%2":           "%2",
		"%%41":         "%A",
		"%4g%g4%-1%41": "%4g%g4%-1A",
		`"a b"`:        "a b",
		`"a\"b\\c\d"`:  `a"b\cd`,
		`"a%20b"`:      "a b",
		`"%22"`:        `"`,
		`""`:           "",
		`"`:            `"`,
		`5" pipe`:      `5" pipe`,
		`say "hi"`:     `say "hi"`,
		`"a" and "b"`:  `"a" and "b"`,
		`"open\"`:      `"open\"`,
		`a\b`:          `a\b`,
	} {
		if got := new(textBuffer).decodeValue("x", encoded); got != plain {
			t.Errorf("%q was read as %q; want %q", encoded, got, plain)
		}
	}
}

// A text that texts has returned does not change when more texts are added.
func TestTextsKeep(t *testing.T) {
	var all textBuffer
	var got []string
	for i := range 100 {
		got = append(got, all.toLower(strings.Repeat("A", i)), all.decodeValue("x", strings.Repeat("%42", i)))
	}
	for i := range 100 {
		if got[2*i] != strings.Repeat("a", i) || got[2*i+1] != strings.Repeat("B", i) {
			t.Fatalf("the texts of length %d have become %q and %q", i, got[2*i], got[2*i+1])
		}
	}
}

// If a URI is valid only with its escapes, they are kept: a writer that encodes would
// have encoded their percent signs.
func TestURIsKeepTheirEscapes(t *testing.T) {
	for encoded, want := range map[string]string{
		"/a%20b":       "/a%20b",
		"/a%2520b":     "/a%20b",
		"/%C3%A9":      "/%C3%A9",
		"/%C0%A0":      "/\xc0\xa0", // Validate refuses this, as the binding requires
		"/a%41":        "/aA",
		`"/a%7B%7d"`:   "/a%7B%7d",
		"/plain?%":     "/plain?%",
		"/100%25%2041": "/100%25%2041",
	} {
		for _, name := range []string{"source", "dataschema"} {
			if got := new(textBuffer).decodeValue(name, encoded); got != want {
				t.Errorf("%s %q was read as %q; want %q", name, encoded, got, want)
			}
		}
	}
}
