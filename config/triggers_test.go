package config

import (
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
)

func TestLeastTrigger(t *testing.T) {
	t.Parallel()
	cfg := mustParse(t, `
version: 1
triggers: {tell-crm: {when: {type: tidemill.model.promoted}, to: {url: "https://crm.example/hooks"}}}
schedules: {nightly: {cron: "0  3 * * *"}}
`)
	want := Trigger{
		Name: "tell-crm", When: []When{{Types: []string{"tidemill.model.promoted"}}}, To: Target{URL: "https://crm.example/hooks"},
		Delivery: Delivery{Attempts: 10, Timeout: 10 * time.Second, Ordered: true, Concurrency: 32, Replies: Replies{Unsaid: true},
			Backoff: Backoff{Kind: Exponential, First: time.Second, Cap: 5 * time.Minute, Jitter: true}},
	}
	if got, ok := cfg.Trigger("tell-crm"); !ok || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	nightly := Schedule{Name: "nightly", Cron: "0 3 * * *", TimeZone: "UTC", Missed: MissedSkip}
	if got, ok := cfg.Schedule("nightly"); !ok || !reflect.DeepEqual(got, nightly) {
		t.Errorf("got %+v\nwant %+v", got, nightly)
	}
	if _, ok := cfg.Trigger("nobody"); ok {
		t.Error("found a trigger that is not there")
	}
	if _, ok := cfg.Schedule("never"); ok {
		t.Error("found a schedule that is not there")
	}
}

func TestWholeTrigger(t *testing.T) {
	t.Parallel()
	cfg := mustParse(t, `
version: 1
streams: {messages: }
triggers:
  b:
    when:
      - {type: [z, a], where: "a = 'b'"}
      - stream: messages
    to: {service: chat/crm, header: X-Key, headerFile: key, caFile: ca.pem, certFile: cert.pem, keyFile: key.pem}
    delivery: {attempts: 1, backoff: {kind: linear, first: 100ms, cap: 1m30s, jitter: false}, timeout: 2m, order: none, concurrency: 1, rate: 90/m, replies: ignore}
  a: {when: {type: t}, to: {function: f}}
schedules:
  b: {cron: "@every 90s", timeZone: Europe/Berlin, missed: all, keys: [k2, k1], spread: 1d}
  a: {cron: "@daily"}
`)
	want := Trigger{
		Name: "b", When: []When{{Types: []string{"a", "z"}, Where: "a = 'b'"}, {Stream: "messages"}},
		To: Target{Service: "chat/crm", Credentials: Credentials{Header: "X-Key", HeaderFile: "key", CAFile: "ca.pem", CertFile: "cert.pem", KeyFile: "key.pem"}},
		Delivery: Delivery{Attempts: 1, Timeout: 2 * time.Minute, Concurrency: 1, Rate: 1.5,
			Backoff: Backoff{Kind: Linear, First: 100 * time.Millisecond, Cap: 90 * time.Second}},
	}
	if len(cfg.Triggers) != 2 || cfg.Triggers[0].Name != "a" || !reflect.DeepEqual(cfg.Triggers[1], want) {
		t.Errorf("got %+v\nwant a and %+v", cfg.Triggers, want)
	}
	files := map[string]string{"headerFile": "key", "caFile": "ca.pem", "certFile": "cert.pem", "keyFile": "key.pem"}
	if got := want.To.Credentials.Files(); !reflect.DeepEqual(got, files) {
		t.Errorf("files %v", got)
	}
	b := Schedule{Name: "b", Cron: "@every 90s", TimeZone: "Europe/Berlin", Missed: MissedAll, Keys: []string{"k1", "k2"}, Spread: 24 * time.Hour}
	if len(cfg.Schedules) != 2 || cfg.Schedules[0].Name != "a" || !reflect.DeepEqual(cfg.Schedules[1], b) {
		t.Errorf("got %+v\nwant a and %+v", cfg.Schedules, b)
	}
}

// A backoff never begins above its cap, even if only one of the two is given.
func TestBackoffs(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Backoff{
		"exponential":                         {Exponential, time.Second, 5 * time.Minute, true},
		"constant":                            {Constant, time.Second, 5 * time.Minute, true},
		"{}":                                  {Exponential, time.Second, 5 * time.Minute, true},
		"{kind: linear, jitter: false}":       {Linear, time.Second, 5 * time.Minute, false},
		"{first: 10m}":                        {Exponential, 10 * time.Minute, 10 * time.Minute, true},
		"{kind: constant, first: 1h}":         {Constant, time.Hour, time.Hour, true},
		"{cap: 500ms}":                        {Exponential, 500 * time.Millisecond, 500 * time.Millisecond, true},
		"{first: 1ms, cap: 1d, jitter: true}": {Exponential, time.Millisecond, 24 * time.Hour, true},
	} {
		cfg := mustParse(t, "version: 1\ntriggers: {a: {when: {type: t}, to: {function: f}, delivery: {backoff: "+text+"}}}")
		if got := cfg.Triggers[0].Delivery.Backoff; got != want {
			t.Errorf("%s is %+v, want %+v", text, got, want)
		}
	}
}

func TestRates(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]float64{"100/s": 100, "90/m": 1.5, "36/h": 0.01, "1/h": 1.0 / 3600, "100000/s": 100_000, "6000000/m": 100_000} {
		if got, err := parseRate(text); got != want || err != nil {
			t.Errorf("%s is %v, %v; want %v", text, got, err, want)
		}
	}
}

func TestGoodTargets(t *testing.T) {
	t.Parallel()
	for _, to := range []string{
		`{url: "http://127.0.0.1:8080"}`, `{url: "HTTPS://crm.example"}`, `{url: "http://[::1]:80/a?b=c&d=https%3A%2F%2Fx"}`,
		`{url: "https://crm.example/@team/hooks?mail=a@b.example"}`, `{url: "https://müller.example/"}`,
		`{service: a}`, `{service: 1-shop/crm-2}`, `{function: train}`, `{service: crm, header: x_api.key~, headerFile: "key file"}`,
		`{url: "https://crm.example", header: Authorization, headerFile: a, certFile: ./c, keyFile: ../k}`,
	} {
		if _, err := Parse("f", []byte("version: 1\ntriggers: {a: {when: {type: t}, to: "+to+"}}")); err != nil {
			t.Error(err)
		}
	}
}

// In a folder, a stream and its triggers may be in different files.
func TestTriggersOfSeveralFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a.yaml", "version: 1\ntriggers: {a: {when: {stream: messages}, to: {function: f}}}")
	write(t, dir+"/b.yaml", "version: 1\nstreams: {messages: }\nschedules: {s: {cron: '@daily'}}\ntriggers: {b: {when: {type: t}, to: {function: f}}}")
	cfg, err := Load(dir)
	if err != nil || len(cfg.Triggers) != 2 || len(cfg.Schedules) != 1 {
		t.Errorf("%+v, %v", cfg, err)
	}
}

func TestStreamsOfTriggers(t *testing.T) {
	t.Parallel()
	cfg := mustParse(t, `
version: 1
streams: {messages: {types: [message], partitions: 3, retention: 1h, order: none}, scored: {partitions: 5}}
triggers:
  a: {when: [{type: [message, click, tidemill.model.promoted]}, {type: tidemill.scored, stream: scored}], to: {function: f}}
  b: {when: [{stream: facts}, {type: message, stream: scored}, {type: tidemill.trigger.paused}], to: {function: f}}
`)
	if got := cfg.StreamsOf(cfg.Triggers[0]); !slices.Equal(got, []string{"events", "facts", "messages", "scored"}) {
		t.Errorf("a reads %v", got)
	}
	if got := cfg.StreamsOf(cfg.Triggers[1]); !slices.Equal(got, []string{"commands", "facts", "scored"}) {
		t.Errorf("b reads %v", got)
	}
	week := 7 * 24 * time.Hour
	want := []Stream{
		{Name: "commands.parked", Partitions: 1, Builtin: true, KeyOrdered: true},
		{Name: "events.parked", Partitions: 12, Retention: week, Builtin: true, KeyOrdered: true},
		{Name: "facts.parked", Partitions: 24, Builtin: true, KeyOrdered: true},
		{Name: "messages.parked", Partitions: 3, Retention: time.Hour, Builtin: true},
		{Name: "scored.parked", Partitions: 5, Retention: week, Builtin: true, KeyOrdered: true},
	}
	if got := cfg.Parked(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if got := Default().Parked(); len(got) != 0 {
		t.Errorf("without triggers nothing waits, and yet there are %v", got)
	}
}

// Each of Tidemill's types that a trigger may name has a stream to be read from.
func TestEveryTypeOfOurs(t *testing.T) {
	t.Parallel()
	for _, e := range tidemill.Catalogue() {
		if isBookkeeping(e.Type) || e.Stream == "" {
			continue
		}
		cfg := mustParse(t, "version: 1\ntriggers: {a: {when: {type: "+e.Type+"}, to: {function: f}}}")
		if got := cfg.StreamsOf(cfg.Triggers[0]); !slices.Equal(got, []string{e.Stream}) {
			t.Errorf("%s is read from %v", e.Type, got)
		}
		if _, ok := cfg.Stream(e.Stream); !ok {
			t.Errorf("%s lives on %s, which no config has", e.Type, e.Stream)
		}
	}
}

func TestTooManyTriggers(t *testing.T) {
	const least = "  t%d: {when: {type: t}, to: {function: f}}\n"
	_, err := Load(manyTriggers(t, maxNamed+1, least))
	if err == nil || !strings.Contains(err.Error(), "is one trigger more than 10000; ") || strings.Count(err.Error(), "\n") != 0 {
		t.Errorf("got %.300v", err)
	}
	if cfg, err := Load(manyTriggers(t, maxNamed, least)); err != nil || len(cfg.Triggers) != maxNamed || len(cfg.Parked()) != 1 {
		t.Errorf("as many as there may be: %.300v", err)
	}
}

// manyTriggers writes a folder of several files, because one file cannot hold ten thousand
// triggers.
func manyTriggers(tb testing.TB, n int, each string) string {
	dir := tb.TempDir()
	const inOne = 2000
	for file := 0; file*inOne < n; file++ {
		var text strings.Builder
		text.WriteString("version: 1\ntriggers:\n")
		for i := file * inOne; i < min(n, (file+1)*inOne); i++ {
			text.WriteString(strings.ReplaceAll(each, "%d", strconv.Itoa(i)))
		}
		if err := os.WriteFile(fmt.Sprintf("%s/%d.yaml", dir, file), []byte(text.String()), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	return dir
}

const usual = "  t%d:\n    when: {type: [order-%d, order-paid], where: \"subject LIKE 'shop-%d-%' AND amount > 10\"}\n" +
	"    to: {url: \"https://shop-%d.example/hooks\"}\n    delivery: {attempts: 5, backoff: {first: 2s}}\n"

// BenchmarkTenThousandTriggers measures the cost of reading a large config that has changed.
func BenchmarkTenThousandTriggers(b *testing.B) {
	dir := manyTriggers(b, maxNamed, usual)
	for b.Loop() {
		cfg, err := Load(dir)
		if err != nil || len(cfg.Hash()) != 26 {
			b.Fatal(err)
		}
	}
}

func BenchmarkParkedOfTenThousand(b *testing.B) {
	cfg, err := Load(manyTriggers(b, maxNamed, usual))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if len(cfg.Parked()) != 1 {
			b.Fatal("not one")
		}
	}
}

// At a url any program may answer, so its replies are ignored unless the file names their types.
// Services and functions are the user's own.
func TestReplies(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Replies{
		`to: {url: "https://a.example"}`:                                                       {Unsaid: true},
		`to: {url: "https://a.example"}, delivery: {replies: ignore}`:                          {},
		`delivery: {replies: {types: [b, a]}}, to: {url: "https://a.example"}`:                 {Accept: true, Types: []string{"a", "b"}},
		`to: {url: "https://a.example"}, delivery: {replies: {types: bot-deleted, keys: any}}`: {Accept: true, Types: []string{"bot-deleted"}, AnyKey: true},
		`to: {service: s}`: {Accept: true},
		`to: {service: s}, delivery: {replies: accept}`:                   {Accept: true},
		`to: {service: s}, delivery: {replies: {keys: any}}`:              {Accept: true, AnyKey: true},
		`to: {service: s}, delivery: {replies: {types: [a], keys: same}}`: {Accept: true, Types: []string{"a"}},
		`to: {service: s}, delivery: {replies: ignore}`:                   {},
		`to: {function: f}, delivery: {attempts: 3}`:                      {Accept: true},
	} {
		cfg := mustParse(t, "version: 1\ntriggers: {a: {when: {type: t}, "+text+"}}")
		if got := cfg.Triggers[0].Delivery.Replies; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
}

// The hash covers the meaning of triggers and schedules, and all of their keys.
func TestHashCoversTriggers(t *testing.T) {
	t.Parallel()
	const trigger = `triggers: {a: {when: [{type: [t, u], where: "a = 'b'"}, {stream: facts}], to: {url: "https://a.example"}, delivery: {rate: 60/m}}}`
	const schedule = `schedules: {s: {cron: "@daily", keys: [a, b]}}`
	one := mustParse(t, "version: 1\n"+trigger+"\n"+schedule).Hash()
	same := mustParse(t, `
version: 1
schedules:
  s: {missed: skip, timeZone: UTC, keys: [b, a], cron: " @daily "}
triggers:
  a:
    delivery: {attempts: 10, rate: 1/s, backoff: {kind: exponential, cap: 300s, jitter: true}, timeout: 10000ms, order: key, concurrency: 32, replies: ignore}
    to: {url: 'https://a.example'}
    when: [{stream: facts}, {where: "a = 'b'", type: [u, t]}]
`).Hash()
	if one != same {
		t.Error("two layouts of one meaning have two hashes")
	}
	seen := map[string]string{one: "the first"}
	try := func(text string) {
		h := mustParse(t, text).Hash()
		if first, ok := seen[h]; ok {
			t.Errorf("%s has the hash of %s", text, first)
		}
		seen[h] = text
	}
	try("version: 1")
	for _, c := range [][2]string{
		{"a:", "b:"}, {"t, u", "t"}, {"a = 'b'", "a = 'c'"}, {"stream: facts", "stream: commands"},
		{"https://a.example", "https://b.example"}, {`url: "https://a.example"`, "service: a"}, {`url: "https://a.example"`, "function: a"},
		{`example"}`, `example", bearerFile: a}`}, {`example"}`, `example", basicFile: a}`}, {`example"}`, `example", header: a, headerFile: a}`},
		{`example"}`, `example", header: a, headerFile: b}`}, {`example"}`, `example", caFile: a}`}, {`example"}`, `example", certFile: a, keyFile: a}`},
		{`example"}`, `example", certFile: a, keyFile: b}`}, {"rate: 60/m", "rate: 61/m"}, {"rate: 60/m", "attempts: 10"}, {"rate: 60/m", "rate: 60/m, attempts: 9"},
		{"rate: 60/m", "rate: 60/m, backoff: linear"}, {"rate: 60/m", "rate: 60/m, backoff: {first: 2s}"}, {"rate: 60/m", "rate: 60/m, backoff: {cap: 2m}"},
		{"rate: 60/m", "rate: 60/m, backoff: {jitter: false}"}, {"rate: 60/m", "rate: 60/m, timeout: 9s"}, {"rate: 60/m", "rate: 60/m, order: none"},
		{"rate: 60/m", "rate: 60/m, concurrency: 31"}, {"rate: 60/m", "rate: 60/m, replies: {types: [a]}"},
		{"rate: 60/m", "rate: 60/m, replies: {types: [a, b]}"}, {"rate: 60/m", "rate: 60/m, replies: {types: [a], keys: any}"},
	} {
		try("version: 1\n" + strings.Replace(trigger, c[0], c[1], 1) + "\n" + schedule)
	}
	for _, c := range [][2]string{
		{"{s:", "{r:"}, {"@daily", "@weekly"}, {"[a, b]", "[a]"}, {"[a, b]", "[a, b], spread: 1h"}, {"[a, b]", "[a, b], missed: all"}, {"[a, b]", "[a, b], timeZone: Europe/Berlin"},
	} {
		try("version: 1\n" + trigger + "\n" + strings.Replace(schedule, c[0], c[1], 1))
	}
}

// The example shows all kinds of triggers and schedules.
func TestTriggersExample(t *testing.T) {
	t.Parallel()
	data, err := fs.ReadFile(Examples(), "triggers.yaml")
	if err != nil {
		t.Fatal(err)
	}
	cfg := mustParse(t, string(data))
	if len(cfg.Triggers) != 7 || len(cfg.Schedules) != 3 {
		t.Errorf("%d triggers, %d schedules", len(cfg.Triggers), len(cfg.Schedules))
	}
	var parked []string
	for _, s := range cfg.Parked() {
		parked = append(parked, s.Name)
	}
	if !slices.Equal(parked, []string{"dead-letters.parked", "events.parked", "facts.parked", "messages.parked", "scored.parked"}) {
		t.Errorf("it parks on %v", parked)
	}
}
