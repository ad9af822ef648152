package broker

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
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
	for depth := maxNesting - 1; depth < maxNesting+2; depth++ {
		checkScanner(t, []byte(strings.Repeat("[", depth)+strings.Repeat("]", depth)))
		checkScanner(t, []byte(strings.Repeat(`{"":`, depth)+"0"+strings.Repeat("}", depth)))
		checkScanner(t, []byte(strings.Repeat("[", depth)))
	}
}

func checkScanner(t *testing.T, b []byte) {
	t.Helper()
	if got, want := validJSON(b), json.Valid(b); got != want {
		t.Fatalf("%.100q is valid: %v; encoding/json says %v", b, got, want)
	}
}

// Wherever an odd byte stands among eight, it is found, and no other.
func TestSkipPlain(t *testing.T) {
	for at := range 20 {
		for c := range 256 {
			b := bytes.Repeat([]byte("!#[]\x7f\xff "), 3)[:20]
			b[at] = byte(c)
			want := len(b)
			if c < ' ' || c == '"' || c == '\\' {
				want = at
			}
			if got := skipPlain(b, 0); got != want {
				t.Fatalf("byte %#x at %d: stopped at %d", c, at, got)
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
		if !validJSON(b) {
			return
		}
		all, err := elements(b, len(b))
		if err != nil {
			return
		}
		var want []json.RawMessage
		if err := json.Unmarshal(b, &want); err != nil || len(want) != len(all) {
			t.Fatalf("%q has %d elements, %v; want %d", b, len(all), err, len(want))
		}
		for i := range all {
			if !bytes.Equal(all[i], want[i]) {
				t.Fatalf("element %d of %q is %q; want %q", i, b, all[i], want[i])
			}
		}
	})
}
