package config

import (
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
)

const scorerStreams = "version: 1\nstreams: {messages: {partitions: 3, retention: 1d}, scored: }\n"

func TestLeastScorer(t *testing.T) {
	t.Parallel()
	cfg := mustParse(t, scorerStreams+`scorers: {intents: {from: messages, to: scored, model: "intent/{key}"}}`)
	want := Scorer{Name: "intents", From: "messages", To: "scored", Key: "subject", Model: "intent/{key}",
		NoModel: NoModel{Action: NoModelDeadLetter}, Hold: 200 * time.Millisecond, MaxBatch: 4096, Engine: "auto", Replicas: Replicas{Max: 3, Lag: 1000, Idle: time.Minute}}
	if got, ok := cfg.Scorer("intents"); !ok || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if _, ok := cfg.Scorer("none"); ok || len(cfg.Scorers) != 1 {
		t.Error("found a scorer that is not there")
	}
}

func TestWholeScorer(t *testing.T) {
	t.Parallel()
	cfg := mustParse(t, scorerStreams+`
scorers:
  b: {from: events, to: scored, model: m}
  a:
    from: messages
    to: scored
    types: [z, a]
    key: data.bot.id
    model: "intent/{key}/x"
    map: {text: "data.items[0].x", all: data, first: "data[0]", who: subject, sum: {path: data.sum, default: 0}, gap: {path: data.gap, default: .nan}, tags: {path: data.tags, default: [a, "7"]}}
    noModel: {model: intent/default}
    delivery: at-least-once
    start: latest
    hold: 50ms
    batch: {events: 64}
    engine: onnxruntime
    top: 3
    replicas: {min: 1, max: 20, lag: 50, idle: 5m}
    labels: {from: events, types: [verdict, chargeback], match: {id: data.payment, source: data.shop}, truth: data.verdict, wait: 14d, missing: legit, group: data.card}
    drift: {inputs: [sum, data.country, age], reference: 300, predictions: true, falseAlarms: 1/h, reports: 2/m}
`)
	want := Scorer{Name: "a", From: "messages", To: "scored", Types: []string{"a", "z"}, Key: "data.bot.id", Model: "intent/{key}/x",
		Map: []Mapped{{Input: "all", Path: "data"}, {Input: "first", Path: "data[0]"}, {"gap", "data.gap", "NaN"}, {"sum", "data.sum", "0"}, {"tags", "data.tags", `["a","7"]`},
			{Input: "text", Path: "data.items[0].x"}, {Input: "who", Path: "subject"}},
		NoModel: NoModel{Action: NoModelUse, Model: "intent/default"}, AtLeastOnce: true, Latest: true, Hold: 50 * time.Millisecond,
		MaxBatch: 64, Engine: "onnxruntime", Top: 3, Replicas: Replicas{Min: 1, Max: 20, Lag: 50, Idle: 5 * time.Minute},
		Labels: &Labels{From: "events", Types: []string{"chargeback", "verdict"}, ID: "data.payment", Source: "data.shop", Truth: "data.verdict",
			Wait: 14 * 24 * time.Hour, Missing: "legit", Group: "data.card"},
		Drift: &Drift{Inputs: []Watched{{"sum", "data.sum"}, {"data.country", "data.country"}, {"age", "data.age"}}, Reference: 300, Predictions: true, FalseAlarms: 24, Reports: 120}}
	if got := cfg.Scorers[0]; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if cfg.Scorers[1].Name != "b" {
		t.Errorf("the scorers are not by name: %+v", cfg.Scorers)
	}
}

// Columns of tables have names with spaces and dots.
func TestPathsIntoTheData(t *testing.T) {
	t.Parallel()
	for path, fits := range map[string]bool{
		"data": true, "data.text": true, "data.items[0].x": true, "data.age of card": true, `data["Sepal.Length"]`: true, `data.a["b \"c\" \\"].d`: true,
		"data.": false, "data. a": false, "data.a ": false, "data.a\nb": false, `data.a"b`: false, `data[""]`: false, `data["a]`: false, `data["\q"]`: false, "data[\"a\nb\"]": false, "data.{key}": false,
	} {
		if eventPath.MatchString(path) != fits {
			t.Errorf("%q fits: %t", path, !fits)
		}
	}
	cfg := mustParse(t, scorerStreams+`
scorers:
  a:
    from: messages
    to: scored
    model: m
    map: {age of card: {path: data.age of card, default: .nan}, Sepal.Length: 'data["Sepal.Length"]'}
`)
	if got, want := cfg.Scorers[0].Map, []Mapped{{"Sepal.Length", `data["Sepal.Length"]`, ""}, {"age of card", "data.age of card", "NaN"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

// The default maximum follows from the stream, even if another file defines it.
func TestReplicas(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Replicas{
		"":                                    {0, 3, 1000, time.Minute},
		", replicas: {min: 2}":                {2, 3, 1000, time.Minute},
		", replicas: {min: 5}":                {5, 5, 1000, time.Minute},
		", replicas: {max: 1}":                {0, 1, 1000, time.Minute},
		", replicas: {lag: 1, idle: 1s}":      {0, 3, 1, time.Second},
		", replicas: {min: 4, max: 4}":        {4, 4, 1000, time.Minute},
		", replicas: {min: 0, max: 12}":       {0, 12, 1000, time.Minute},
		", replicas: {}":                      {0, 3, 1000, time.Minute},
		", from: events":                      {0, 8, 1000, time.Minute},
		", from: events, replicas: {min: 10}": {10, 10, 1000, time.Minute},
	} {
		from := "from: messages"
		if rest, ok := strings.CutPrefix(text, ", from: events"); ok {
			from, text = "from: events", rest
		}
		cfg := mustParse(t, scorerStreams+"scorers: {a: {"+from+", to: scored, model: m"+text+"}}")
		if got := cfg.Scorers[0].Replicas; got != want {
			t.Errorf("%q is %+v, want %+v", text, got, want)
		}
	}
}

// Each scored stream has a stream for waiting events, with as many partitions.
func TestHeldFor(t *testing.T) {
	t.Parallel()
	cfg := mustParse(t, scorerStreams+`scorers: {a: {from: messages, to: scored, model: m}, b: {from: messages, to: scored, model: o}}`)
	want := Stream{Name: "scorer.b.parked", Partitions: 3, Retention: 24 * time.Hour, Builtin: true, KeyOrdered: true}
	if held := cfg.HeldFor(); len(held) != 2 || !reflect.DeepEqual(held[1], Held{want, "messages", "b"}) {
		t.Errorf("held %+v", held)
	}
	if len(cfg.Parked()) != 0 {
		t.Errorf("what no trigger reads has companions: %+v", cfg.Parked())
	}
}

// A key with a different meaning changes the hash. A key with its default value does not.
func TestHashOfScorers(t *testing.T) {
	t.Parallel()
	hash := func(rest string) string {
		return mustParse(t, scorerStreams+"scorers: {a: {from: messages, to: scored, model: m"+rest+"}}").Hash()
	}
	least := hash("")
	if least == mustParse(t, scorerStreams).Hash() {
		t.Error("a scorer does not count")
	}
	if hash(", key: subject, noModel: dead-letter, delivery: exactly-once, start: earliest, hold: 200ms, batch: {events: 4096}, engine: auto") != least {
		t.Error("the defaults count")
	}
	seen := map[string]string{}
	for _, rest := range []string{", key: shop", ", map: {a: data}", ", map: {b: data}", ", map: {b: {path: data, default: 0}}", `, map: {b: {path: data, default: "0"}}`, ", noModel: drop", ", noModel: {model: u}", ", noModel: {model: v}",
		", delivery: at-least-once", ", start: latest", ", hold: 201ms", ", batch: {events: 1}", ", engine: go", ", top: 1", ", types: [b]",
		", labels: {from: events, match: {place: data.a}, truth: data.b, wait: 1d}", ", labels: {from: events, match: {place: data.a}, truth: data.b, wait: 2d}",
		", labels: {from: events, match: {field: data.a}, truth: data.b, wait: 1d}", ", labels: {from: events, match: {field: data.a, label: subject}, truth: data.b, wait: 1d}",
		", labels: {from: events, match: {place: data.a}, truth: data.b, wait: 1d, missing: c}",
		", drift: {}", ", drift: {inputs: a}", ", drift: {reference: 501}", ", drift: {predictions: true}", ", drift: {falseAlarms: 6/d}", ", drift: {reports: 1001/h}"} {
		h := hash(rest)
		if before, ok := seen[h]; ok || h == least {
			t.Errorf("%s has the hash of %q", rest, before)
		}
		seen[h] = rest
	}
}

// A label has a value at the same path as its answer's input, unless the config names another path.
func TestTheFieldOfALabel(t *testing.T) {
	t.Parallel()
	for match, want := range map[string]string{"{field: data.order}": "data.order", "{field: data.order, label: data.id}": "data.id", "{place: data.answer}": ""} {
		cfg := mustParse(t, scorerStreams+"scorers: {a: {from: messages, to: scored, model: m, labels: {from: messages, match: "+match+", truth: data.t, wait: 1s}}}")
		if got := cfg.Scorers[0].Labels.LabelField; got != want {
			t.Errorf("%s has the label field %q, want %q", match, got, want)
		}
	}
}

// The key of a model is the text at the place of {key} in the scorer's template.
func TestTheKeyOfAModel(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ template, model, key string }{
		{"fraud/{key}", "fraud/shop-7", "shop-7"}, {"fraud/{key}/v2", "fraud/shop-7/v2", "shop-7"}, {"fraud/{key}", "intent/shop-7", "-"}, {"fraud/{key}", "fraud/", "-"},
		{"{key}/fraud/{key}", "shop-7/fraud/shop-7", "shop-7"}, {"{key}/fraud/{key}", "shop-7/fraud/shop-8", "-"}, {"{key}{key}", "shop", "-"},
		{"clicks/all", "clicks/all", ""}, {"clicks/all", "clicks/none", "-"},
	} {
		key, ok := (&Scorer{Model: c.template}).KeyOf(c.model)
		if !ok {
			key = "-"
		}
		if key != c.key {
			t.Errorf("%s of %s has the key %q, want %q", c.model, c.template, key, c.key)
		}
	}
}

func TestTooManyScorers(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString(scorerStreams + "scorers:\n")
	for i := range maxScorers + 2 {
		b.WriteString("  s" + strconv.Itoa(i) + ": {from: messages, to: scored, model: m}\n")
	}
	_, err := Parse("x", []byte(b.String()))
	if err == nil || !strings.Contains(err.Error(), "one scorer more than 200") || strings.Count(err.Error(), "\n") != 0 {
		t.Errorf("got %v", err)
	}
}

// The config's engine is the default of every scorer.
func TestTheEngineOfAllModels(t *testing.T) {
	t.Parallel()
	const scorers = "scorers:\n  a: {from: events, to: scored, model: m}\n  b: {from: events, to: scored, model: m, engine: onnxruntime}\nstreams:\n  scored:\n"
	before, now := mustParse(t, "version: 1\n"+scorers), mustParse(t, "version: 1\nengine: go\n"+scorers)
	if before.Engine != "auto" || before.Scorers[0].Engine != "auto" || now.Engine != "go" || now.Scorers[0].Engine != "go" || now.Scorers[1].Engine != "onnxruntime" {
		t.Errorf("%s, %+v; %s, %+v", before.Engine, before.Scorers, now.Engine, now.Scorers)
	}
	if before.Hash() == now.Hash() || Default().Engine != "auto" {
		t.Error("the engine is not in the hash")
	}
	if _, err := Parse("a.yaml", []byte("version: 1\nengine: gpu\n")); err == nil || !strings.Contains(err.Error(), "onnxruntime") {
		t.Error(err)
	}
}
