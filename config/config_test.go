package config

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/config/spelling"
)

func sameStream(a, b Stream) bool { return reflect.DeepEqual(a, b) }

func mustParse(t *testing.T, text string) *Config {
	t.Helper()
	cfg, err := Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestDefaults(t *testing.T) {
	cfg := Default()
	if got := mustParse(t, "version: 1"); !reflect.DeepEqual(got, cfg) {
		t.Errorf("a bare file means %+v, Default is %+v", got, cfg)
	}
	if cfg.Name != tidemill.DefaultName {
		t.Errorf("name %q", cfg.Name)
	}
	day := 24 * time.Hour
	want := []Stream{
		{Name: "clock", Partitions: 1, Retention: 30 * day, Builtin: true, KeyOrdered: true},
		{Name: "commands", Partitions: 1, Retention: Forever, Builtin: true, KeyOrdered: true},
		{Name: "dead-letters", Partitions: 6, Retention: Forever, Builtin: true, KeyOrdered: true},
		{Name: "events", Partitions: 12, Retention: 7 * day, Builtin: true, KeyOrdered: true, Dedupe: 10 * time.Minute},
		{Name: "facts", Partitions: 24, Retention: Forever, Builtin: true, KeyOrdered: true},
		{Name: "group-offsets", Partitions: 1, Retention: Forever, Builtin: true, KeyOrdered: true},
		{Name: "outcomes", Partitions: 12, Retention: 90 * day, Builtin: true, KeyOrdered: true},
		{Name: "progress", Partitions: 12, Retention: day, Builtin: true},
	}
	if !reflect.DeepEqual(cfg.Streams, want) {
		t.Errorf("streams %+v", cfg.Streams)
	}
	if n, err := cfg.Names(); err != nil || n.Topic("facts") != "tidemill.facts" {
		t.Errorf("names %v, %v", n, err)
	}
}

func TestStreams(t *testing.T) {
	cfg := mustParse(t, `
version: 1
name: prod
streams:
  messages: {partitions: 48, retention: 1d12h, types: [message, "edited"]}
  clicks: {order: none, retention: forever, dedupe: off}
  a.b: {dedupe: 1m30s}
  events: {partitions: 3, retention: 90m, dedupe: "off"}
  facts: {partitions: 1, retention: forever}
`)
	for _, want := range []Stream{
		{Name: "messages", Partitions: 48, Retention: 36 * time.Hour, Types: []string{"edited", "message"}, KeyOrdered: true, Dedupe: 10 * time.Minute},
		{Name: "clicks", Partitions: 12, Retention: Forever},
		{Name: "a.b", Partitions: 12, Retention: 7 * 24 * time.Hour, KeyOrdered: true, Dedupe: 90 * time.Second},
		{Name: "events", Partitions: 3, Retention: 90 * time.Minute, Builtin: true, KeyOrdered: true},
		{Name: "facts", Partitions: 1, Builtin: true, KeyOrdered: true},
	} {
		if got, ok := cfg.Stream(want.Name); !ok || !sameStream(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	if s, ok := cfg.Stream("nowhere"); ok {
		t.Errorf("found %+v", s)
	}
}

func TestStreamFor(t *testing.T) {
	cfg := mustParse(t, "version: 1\nstreams: {messages: {types: [message]}, bots: {types: [bot-created]}}")
	for typ, want := range map[string]string{
		"message":                      "messages",
		"click":                        "events",
		tidemill.TypeNewData:           "events",
		tidemill.TypeBotCreated:        "bots",
		tidemill.TypeRunRequested:      "facts",
		tidemill.TypeRunProgressed:     "progress",
		tidemill.TypeEventDeadLettered: "dead-letters",
		"tidemill.of-a-later-version":  "events",
	} {
		if got := cfg.StreamFor(typ); got != want {
			t.Errorf("StreamFor(%s) = %s, want %s", typ, got, want)
		}
	}
}

func TestParked(t *testing.T) {
	s := Stream{Name: "clicks", Partitions: 5, Retention: time.Hour, Types: []string{"click"}, Dedupe: time.Hour}
	want := Stream{Name: "clicks.parked", Partitions: 5, Retention: time.Hour, Builtin: true}
	if got := s.Parked(); !sameStream(got, want) {
		t.Errorf("got %+v", got)
	}
	s.KeyOrdered = true // then the parked stream has the same order as its stream
	if want.KeyOrdered = true; !sameStream(s.Parked(), want) {
		t.Errorf("got %+v", s.Parked())
	}
}

// Facts name the config by its hash for ever, so a hash must never change.
func TestHashGolden(t *testing.T) {
	for want, text := range map[string]string{
		"bosyaws6oyenghti2uzr6rfbwr": "version: 1",
		"eui46mj35qleea4fpdkmugm4aj": `version: 1
triggers: {a: {when: [{type: [t, u], where: "a = 'b'"}, {stream: facts}], to: {url: "https://a.example", header: X-Key, headerFile: k, caFile: c}, delivery: {rate: 60/m}}}
schedules: {s: {cron: "@daily", keys: [a, b], spread: 1h}}`,
		"y3iwayapya7nag4j4ydj7kkif5": `version: 1
triggers: {a: {when: {type: t}, to: {service: s}, delivery: {attempts: 3, backoff: {kind: linear, first: 10ms, cap: 1m, jitter: false}, timeout: 1m, order: none, concurrency: 1, replies: ignore}}}`,
		"pdvtx6jqehd7ggz56favvpexuw": `version: 1
schedules: {s: {cron: "@daily"}, e: {cron: "@daily", each: key}}
pools: {gpu: {resource: nvidia.com/gpu, slots: 8, linger: 1m, cards: {label: l, newestFirst: [x, w]}}}
recipes: {a: {team: t, key: data.k, when: [{type: t, where: "a = 'b'", debounce: 1s, priority: 1}, {schedule: s, each: key, spread: 1m}, {schedule: e}], inputs: {i: "d/{key}", c: {dataset: d, at: cause}, u: {uri: "{x}", allow: ["https://a.example/"]}}, run: {image: i, command: [c], env: {E: f}, secrets: {S: t/u}, cpu: 500m, memory: 1Gi, gpus: 1, pool: gpu, priority: 2}, makes: {dataset: d, branch: b}, maxRunning: 2}}`,
		"isb2zdf3fqg6rbpr33su73x22m": "version: 1\nrecipes: {a: {when: {type: t}, run: {dir: d, command: [c]}, makes: {model: 'm/{key}'}}}",
		"yvseusqo7imo3b4xjkt2rizuet": "version: 1\nname: prod\nstreams: {messages: {partitions: 48, retention: 1w, types: [b, a]}, clicks: {order: none}}",
	} {
		if got := mustParse(t, text).Hash(); got != want {
			t.Errorf("hash %s, want %s, of %s", got, want, text)
		}
	}
}

func TestHashIsOfTheMeaning(t *testing.T) {
	one := mustParse(t, "version: 1\nstreams:\n  a: {retention: 7d, types: [u, v]}\n  b:\n").Hash()
	same := mustParse(t, "# words\nstreams: {b: {order: key}, \"a\": {partitions: 12, types: ['v', u], retention: 168h, dedupe: 600s}}\nversion: 1").Hash()
	if one != same {
		t.Error("two layouts of one meaning have two hashes")
	}
	seen := map[string]string{one: "the first"}
	for _, text := range []string{
		"version: 1",
		"version: 1\nname: x",
		"version: 1\nstreams: {a: {retention: 7d, types: [u, v]}}",
		"version: 1\nstreams: {a: {retention: 8d, types: [u, v]}, b: }",
		"version: 1\nstreams: {a: {retention: 7d, types: [u, v]}, b: {order: none}}",
		"version: 1\nstreams: {a: {retention: 7d, types: [u]}, b: {types: [v]}}",
		"version: 1\nstreams: {a: {retention: 7d, types: [u, v]}, b: , facts: {partitions: 25}}",
		"version: 1\nstreams: {a: {retention: 7d, types: [u, v], dedupe: off}, b: }",
		"version: 1\nstreams: {a: {retention: 7d, types: [u, v], dedupe: 1m}, b: }",
		"version: 1\nstreams: {a: {retention: 7d, types: [u, v]}, b: , events: {dedupe: off}}",
	} {
		h := mustParse(t, text).Hash()
		if first, ok := seen[h]; ok {
			t.Errorf("%s has the hash of %s", text, first)
		}
		seen[h] = text
	}
}

func TestByteOrderMarkAndCRLF(t *testing.T) {
	cfg := mustParse(t, "\ufeffversion: 1\r\nname: prod\r\nstreams:\r\n  a: {}\r\n")
	if cfg.Name != "prod" {
		t.Errorf("name %q", cfg.Name)
	}
}

func TestTooLarge(t *testing.T) {
	text := "version: 1\n" + strings.Repeat("# a comment\n", maxFile/12)
	if _, err := Parse("x", []byte(text)); err == nil || !strings.Contains(err.Error(), "larger than 1024 KiB") {
		t.Errorf("got %v", err)
	}
}

func TestErrorUnwraps(t *testing.T) {
	_, err := Parse("f.yaml", []byte("version: 1\nstreams: {a: {partitions: 0}}\nx: 1\n"))
	var all *Error
	var one Problem
	if !errors.As(err, &all) || !errors.As(err, &one) || len(all.Problems) != 2 {
		t.Fatalf("got %v", err)
	}
	want := Problem{File: "f.yaml", Line: 2, Path: "streams.a.partitions",
		Message: "must be a whole number from 1 to 4096, not 0"}
	if one != want || all.Problems[0] != want {
		t.Errorf("got %+v", one)
	}
}

// The keys for clusters are younger than the first hashes, which must stay the same. Writing a
// default does not change the hash, and any other value does.
func TestHashOfClusters(t *testing.T) {
	const (
		pool   = "version: 1\npools: {p: {slots: 1%s}}"
		run    = "version: 1\nrecipes: {a: {run: {image: i%s}}}"
		scorer = "version: 1\nstreams: {s: {partitions: 4}}\nscorers: {a: {from: s, to: events, model: m%s}}"
	)
	for _, c := range []struct {
		text  string
		same  []string
		other []string
	}{
		{pool, []string{", nodes: ", ", tolerations: []"}, []string{", nodes: {a: b}", ", nodes: {a: c}", `, nodes: {a: ""}`, ", tolerations: [{key: a}]", ", tolerations: [{key: a, operator: Exists}]",
			", tolerations: [{key: a, value: b}]", ", tolerations: [{key: a, effect: NoExecute}]", ", priorityClass: a", ", queue: a", ", runtimeClass: a"}},
		{run, []string{", workers: 1", ", pullSecrets: []", ", volumes: []"}, []string{", workers: 2", ", servers: {count: 1}", ", servers: {count: 2}", ", servers: {count: 1, command: [a]}",
			", servers: {count: 1, cpu: 1}", ", servers: {count: 1, memory: 1Gi}", ", user: 0", ", user: 1", ", pullSecrets: [a]", ", shm: 1Gi", ", disk: 1Gi", ", volumes: [{claim: a, at: /a}]",
			", volumes: [{claim: a, at: /a, readOnly: true}]", ", volumes: [{secret: a, at: /a}]", ", volumes: [{config: a, at: /a}]", ", volumes: [{claim: a, at: /b}]"}},
		{scorer, []string{", replicas: {min: 0, max: 4, lag: 1000, idle: 1m}", ", replicas: "}, []string{", replicas: {min: 1}", ", replicas: {max: 5}", ", replicas: {lag: 1}", ", replicas: {idle: 1s}"}},
	} {
		hash := func(said string) string { return mustParse(t, fmt.Sprintf(c.text, said)).Hash() }
		seen := map[string]string{hash(""): "nothing"}
		for _, said := range c.same {
			if hash(said) != hash("") {
				t.Errorf("%q has another hash than nothing", said)
			}
		}
		for _, said := range c.other {
			if first, twice := seen[hash(said)]; twice {
				t.Errorf("%q has the hash of %q", said, first)
			}
			seen[hash(said)] = said
		}
	}
	if Default().Hash() == mustParse(t, "version: 1\npools: {default: {nodes: {a: b}}}").Hash() {
		t.Error("the pool default with nodes has the hash of the one without")
	}
}

// The hash of a config without dedupe is older than dedupe. Writing the default means the same.
func TestHashOfDedupe(t *testing.T) {
	plain := Default().Hash()
	if got := mustParse(t, "version: 1\nstreams: {events: {dedupe: 10m}}").Hash(); got != plain {
		t.Errorf("saying the default makes %s of %s", got, plain)
	}
	if got, again := mustParse(t, "version: 1\nstreams: {events: {dedupe: off}}").Hash(), mustParse(t, "version: 1\nstreams: {events: {dedupe: false}}").Hash(); got == plain || got != again {
		t.Errorf("off is %s and false is %s, the default %s", got, again, plain)
	}
}

func TestDedupe(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"off": 0, "false": 0, "1s": time.Second, "10m": 10 * time.Minute, "1h30m": 90 * time.Minute, "24h": 24 * time.Hour, "1d": 24 * time.Hour,
	} {
		if got, err := parseDedupe(text); got != want || err != nil {
			t.Errorf("%s is %v, %v", text, got, err)
		}
	}
}

func TestRetentionRoundTrip(t *testing.T) {
	for text, want := range map[string]string{
		"7d": "1w", "8d": "8d", "36h": "36h", "1d12h": "36h", "90s": "90s", "60m": "1h", "forever": "forever",
	} {
		d, err := parseRetention(text)
		if err != nil || showRetention(d) != want {
			t.Errorf("%s is shown as %s, %v; want %s", text, showRetention(d), err, want)
		}
		if again, err := parseRetention(showRetention(d)); again != d || err != nil {
			t.Errorf("%s reads back as %v, %v", text, again, err)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"partitions", "retention", "types", "order"}
	for key, want := range map[string]string{
		"partition": "partitions", "Partitions": "partitions", "paritions": "partitions", "retnetion": "retention",
		"type": "types", "tpyes": "types", "ordre": "order", "zzz": "", "": "", "replication": "",
	} {
		if got, _ := spelling.Nearest(key, known); got != want {
			t.Errorf("the nearest of (%q) = %q, want %q", key, got, want)
		}
	}
}
