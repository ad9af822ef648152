package remote

import (
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"

	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
)

// broker/follow tests the values of --from. This tests the flag's name in the error, and the
// suggestion.
func TestParseFrom(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	if got, err := parseFrom("-1h", now); err != nil || got != broker.Since(now.Add(-time.Hour)) {
		t.Errorf("got %v, %v", got, err)
	}
	for text, says := range map[string]string{"begining": "did you mean beginning?", "-x": "--from -x is not a time ago"} {
		if _, err := parseFrom(text, now); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("parseFrom(%s) gave %v, want %q", text, err, says)
		}
	}
}

func TestFilter(t *testing.T) {
	t.Parallel()
	v := broker.View{ID: "1", Source: "/x", Type: "new-data", Subject: "bot-42", Extensions: []broker.Attribute{{Name: "branch", Value: "main"}}}
	for text, want := range map[string]bool{
		"type = 'new-data'":                        true,
		"subject LIKE 'bot-%' AND branch = 'main'": true,
		"dataset = 'x'":                            false, // the event has no such attribute
		"NOT EXISTS dataset":                       true,
		"LENGTH(subject) = 6":                      true,
		"(EXISTS dataset AND dataset = 'x') OR type='new-data'": true,
	} {
		filter, err := parseFilter(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := filter.Match(&v); got != want {
			t.Errorf("%s is %t, want %t", text, got, want)
		}
	}
	if filter, err := parseFilter(" \n"); filter != nil || err != nil {
		t.Errorf("no text is %v, %v", filter, err)
	}
}

func TestFilterSaysWhereItIsWrong(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"branch == 'x'":       "--where, column 9: expected a value, found =; equality is a single =\n  branch == 'x'\n          ^",
		"type = 'ä'\n\tAND #": "column 17: \"#\" means nothing here\n  type = 'ä'  AND #\n                  ^",
		"'text'":              "column 1: expected a condition, and this is a text",
	} {
		if _, err := parseFilter(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s gave %v, want %q", text, err, says)
		}
	}
}

// An event on a terminal has no control characters, in any attribute.
func TestShownEventIsHarmless(t *testing.T) {
	t.Parallel()
	const order = "\x1b]0;owned\a"
	var out strings.Builder
	e := follow.Event{View: broker.View{ID: order, Source: "/x", Type: order, Subject: order,
		Extensions: []broker.Attribute{{Name: "a", Value: order}}, Data: []byte(order)}}
	if err := showEvent(&out, &e); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(out.String(), "\x1b\a") {
		t.Errorf("%q reaches the terminal", out.String())
	}
}

// JSON on a terminal has none either, and is the same value. A pipe gets the original bytes.
func TestShownJSONIsHarmlessToATerminal(t *testing.T) {
	t.Parallel()
	const orders = "\u009b2J\u0085\u007f\u202etxt.exe\u2066\u2029\u200f\ufeff\U000e0041é😀\u3000"
	data := []byte("{\t\"" + orders + "\":[\"" + orders + "\"]}")
	e := follow.Event{View: broker.View{ID: orders, Source: "/x", Type: "t", Subject: orders, DataContentType: "application/json", Data: data,
		Extensions: []broker.Attribute{{Name: "a", Value: orders}}}}
	show := func(terminal bool) string {
		var out strings.Builder
		if err := jsonShower(&out, io.Discard, terminal)(&e); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	piped, seen := show(false), show(true)
	if piped != string(broker.MarshalStructured(&e.View))+"\n" || !strings.Contains(piped, "\u202e") {
		t.Errorf("a pipe gets %q", piped)
	}
	for _, r := range strings.TrimSuffix(seen, "\n") {
		if !unicode.IsGraphic(r) {
			t.Fatalf("%U reaches the terminal: %q", r, seen)
		}
	}
	var as, is any
	if err := errors.Join(json.Unmarshal([]byte(piped), &as), json.Unmarshal([]byte(seen), &is)); err != nil || !reflect.DeepEqual(as, is) {
		t.Errorf("%v, and %q is not %q", err, seen, piped)
	}
	if !strings.Contains(seen, "é😀") {
		t.Errorf("what can be seen is not: %q", seen)
	}
}

func TestOneLine(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                        "(empty)",
		"a\nb\tc":                 "a b c",
		"\x1b[31mred":             "·[31mred", // without control characters
		"\xff\xfe":                "(2 B of binary data)",
		strings.Repeat("ä", 3000): strings.Repeat("ä", shownData-1) + "…",
	} {
		if got := oneLine([]byte(in)); got != want {
			t.Errorf("oneLine(%q) = %q, want %q", in, got, want)
		}
	}
}

// The answer of a gateway is shown without control characters, because it may come from any server.
func TestShownStreamsAreHarmless(t *testing.T) {
	t.Parallel()
	const order = "\x1b]0;owned\a"
	var out strings.Builder
	if err := tabulate(&out, []api.Stream{{Name: order, Groups: []api.Group{{Group: order}}}}); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(out.String(), "\x1b\a") {
		t.Errorf("%q reaches the terminal", out.String())
	}
}
