package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
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

func TestTailTellsNothingFromNoMatch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	startUp(t, dir)
	ok(t, "publish", "a", "--data", dir)
	for args, says := range map[string]string{
		"dead-letters --from beginning":            "There are no events on dead-letters.",
		"dead-letters --from -1h":                  "There are no events on dead-letters from -1h on.",
		"events --from beginning -w type=order":    "No event on events matches --where. In it order is the name of an attribute; a text is written in quotes: 'order'.",
		"events --from beginning -w type='a'":      "",
		"events --from -1h -w type=order":          "No event on events from -1h on matches --where. In it order is the name of an attribute; a text is written in quotes: 'order'.",
		"dead-letters --from beginning -o json":    "",
		"events --from beginning --where type='a'": "",
	} {
		o := call(t, "", append(append([]string{"tail"}, strings.Fields(args)...), "--no-follow", "--data", dir)...)
		if o.code != 0 || strings.TrimSpace(o.err) != says {
			t.Errorf("tail %s: exit %d, %q; want %q", args, o.code, o.err, says)
		}
	}
}

// Ctrl-C ends a tail that has many events in memory.
func TestTailEndsWhenInterrupted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	startUp(t, dir)
	var lines strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&lines, "{\"specversion\":\"1.0\",\"id\":\"%d\",\"source\":\"/x\",\"type\":\"a\"}\n", i)
	}
	if o := call(t, lines.String(), "publish", "--file", "-", "--data", dir); o.code != 0 {
		t.Fatal(o.err)
	}
	for args, fails := range map[string]bool{"": false, " --no-follow": true} {
		ctx, interrupt := context.WithCancel(t.Context())
		out := &interrupting{by: interrupt}
		err := run(ctx, strings.Fields("tail events --from beginning --data "+dir+args), strings.NewReader(""), out, io.Discard)
		if out.writes != 1 || (err != nil) != fails {
			t.Errorf("tail%s: %d lines after Ctrl-C at the first, %v", args, out.writes, err)
		}
	}
}

// interrupting is an output that interrupts the command at its first write.
type interrupting struct {
	by     func()
	writes int
}

func (i *interrupting) Write(p []byte) (int, error) {
	i.writes++
	i.by()
	return len(p), nil
}

func TestTailTellsThatKafkaIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		var away error
		a := &absence{out: &out, ping: func(context.Context) error { return away }, looked: time.Now()}
		minute := func() {
			for range 60 {
				time.Sleep(time.Second)
				a.look(t.Context())
			}
		}
		minute()
		away = errors.New("refused")
		minute()
		away = nil
		minute()
		if want := "Kafka does not answer; tail continues when it does. Last error: refused\nKafka is back.\n"; out.String() != want {
			t.Errorf("it says %q, want %q", &out, want)
		}
	})
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
