package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev/broker"
)

func TestParseFrom(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]broker.Start{
		"beginning":            broker.Earliest(),
		"end":                  broker.Latest(),
		"17":                   broker.AtOffset(17),
		"-1h":                  broker.Since(now.Add(-time.Hour)),
		"-1h30m":               broker.Since(now.Add(-90 * time.Minute)),
		"-2d":                  broker.Since(now.Add(-48 * time.Hour)),
		"2026-01-30T12:00:00Z": broker.Since(now.Add(-24 * time.Hour)),
	} {
		if got, err := parseFrom(text, now); err != nil || got != want {
			t.Errorf("parseFrom(%s) = %v, %v, want %v", text, got, err, want)
		}
	}
	for text, says := range map[string]string{
		"begining": "did you mean beginning?", "": "give beginning", "-x": "time ago", "--1h": "time ago", "-5": "time ago", "2026-13-01T00:00:00Z": "give beginning",
	} {
		if _, err := parseFrom(text, now); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("parseFrom(%s) gave %v, want %q", text, err, says)
		}
	}
}

func TestFilter(t *testing.T) {
	t.Parallel()
	v := broker.View{ID: "1", Source: "/x", Type: "new-data", Subject: "bot-42", Extensions: []broker.Attribute{{Name: "branch", Value: "main"}}}
	for text, want := range map[string]bool{
		"":                  true,
		"type = 'new-data'": true,
		"subject LIKE 'bot-%' AND branch = 'main'": true,
		"dataset = 'x'":       false, // lacks it
		"NOT EXISTS dataset":  true,
		"LENGTH(subject) = 6": true,
		"'text'":              false, // no boolean
		"(EXISTS dataset AND dataset = 'x') OR type='new-data'": true,
	} {
		match, err := parseFilter(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := match(&v); got != want {
			t.Errorf("%s is %t, want %t", text, got, want)
		}
	}
}

func TestFilterSaysWhereItIsWrong(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"branch == 'x'":       "column 9: did not expect '='\n  branch == 'x'\n          ^",
		"type = 'x' AND":      "column 15: did not expect the end",
		"'abc":                "column 1: ",
		"type = 'a' AND F(1)": "column 16: there is no function F of 1 argument",
		"(type":               "column 6: ",
		"#":                   "column 1: ",
	} {
		if _, err := parseFilter(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s gave %v, want %q", text, err, says)
		}
	}
}

// A terminal must not obey an event, whichever attribute carries the order.
func TestShownEventIsHarmless(t *testing.T) {
	t.Parallel()
	const order = "\x1b]0;owned\a"
	var out strings.Builder
	e := tailed{Incoming: broker.Incoming{View: broker.View{ID: order, Source: "/x", Type: order, Subject: order,
		Extensions: []broker.Attribute{{Name: "a", Value: order}}, Data: []byte(order)}}}
	if err := showEvent(&out, &e); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(out.String(), "\x1b\a") {
		t.Errorf("%q reaches the terminal", out.String())
	}
}

// A partition that was added after the end was taken has nothing to show and
// keeps nobody waiting.
func TestTailToTheEndPassesAddedPartitions(t *testing.T) {
	t.Parallel()
	r := &tailReader{ends: map[int32]int64{0: 1}}
	d := &broker.Delivery{Partition: 1, Events: make([]broker.Incoming, 2)}
	if got := r.keep(nil, d); len(got) != 0 {
		t.Errorf("%d events of it are shown", len(got))
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
		"events --from beginning -w type=order":    "Of 1 event on events none matches --where.",
		"events --from beginning -w type='a'":      "",
		"dead-letters --from beginning -o json":    "",
		"events --from beginning --where type='a'": "",
	} {
		o := call(t, "", append(append([]string{"tail"}, strings.Fields(args)...), "--no-follow", "--data", dir)...)
		if o.code != 0 || strings.TrimSpace(o.err) != says {
			t.Errorf("tail %s: exit %d, %q; want %q", args, o.code, o.err, says)
		}
	}
}

// A reader that has much at hand must still obey Ctrl-C.
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

// interrupting is a Ctrl-C at what is printed first.
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
		if want := "Kafka does not answer, and tail goes on when it does: refused\nKafka is back.\n"; out.String() != want {
			t.Errorf("it says %q, want %q", &out, want)
		}
	})
}

func TestOneLine(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                        "(empty)",
		"a\nb\tc":                 "a b c",
		"\x1b[31mred":             "·[31mred", // a terminal must not obey an event
		"\xff\xfe":                "(2 B of binary data)",
		strings.Repeat("ä", 3000): strings.Repeat("ä", shownData-1) + "…",
	} {
		if got := oneLine([]byte(in)); got != want {
			t.Errorf("oneLine(%q) = %q, want %q", in, got, want)
		}
	}
}
