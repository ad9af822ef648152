package config

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]tidemill.Judge{
		`makes: {model: a}`: {On: tidemill.GateOnSame, Promote: tidemill.PromoteAuto, Keep: 10},
		`makes: {model: a}, keep: 3, gate: [metrics.a > 1, metrics.b > 1], gateOn: recorded, promote: manual`: {
			Gate: []string{"metrics.a > 1", "metrics.b > 1"}, On: tidemill.GateOnRecorded, Promote: tidemill.PromoteManual, Keep: 3},
		`makes: {model: a}, gate: [metrics.a > 1], gateOn: same, promote: auto`: {
			Gate: []string{"metrics.a > 1"}, On: tidemill.GateOnSame, Promote: tidemill.PromoteAuto, Keep: 10},
	} {
		cfg := mustParse(t, "version: 1\nrecipes: {a: {run: {image: a}, "+text+"}}")
		if got := cfg.Recipes[0].Judge(); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
}

// Writing a default changes no hash, because facts name a config by its hash.
func TestHashOfJudging(t *testing.T) {
	t.Parallel()
	const least = "version: 1\nrecipes: {a: {run: {image: a}, makes: {model: a}, gate: [metrics.a > 1]}}"
	said := strings.Replace(least, "gate:", "gateOn: same, promote: auto, gate:", 1)
	if mustParse(t, least).Hash() != mustParse(t, said).Hash() {
		t.Error("saying the defaults makes another hash")
	}
}

// An install has its own triggers only if there is work for them.
func TestOwnTriggers(t *testing.T) {
	t.Parallel()
	if cfg := mustParse(t, "version: 1"); len(cfg.Triggers) != 0 {
		t.Errorf("without recipes: %+v", cfg.Triggers)
	}
	cfg := mustParse(t, "version: 1\nstreams: {bots: {types: [bot-deleted]}}\nrecipes: {a: {run: {image: a}, makes: {model: a}}}")
	delivery := Delivery{Attempts: 300, Timeout: 5 * time.Minute, Ordered: true, Concurrency: 32,
		Backoff: Backoff{Kind: Exponential, First: time.Second, Cap: 5 * time.Minute, Jitter: true}}
	promote := Trigger{Name: "promote", Builtin: true, To: Target{Function: "promote"}, Delivery: delivery,
		When: []When{{Types: []string{"tidemill.run.finished"}, Where: "outcome = 'succeeded' AND EXISTS model"}}}
	if got, ok := cfg.Trigger("promote"); !ok || !reflect.DeepEqual(got, promote) {
		t.Errorf("got %+v\nwant %+v", got, promote)
	}
	delivery.Timeout = 10 * time.Minute
	forget := Trigger{Name: "forget", Builtin: true, To: Target{Function: "forget"}, Delivery: delivery,
		When: []When{{Types: []string{"bot-deleted"}}, {Types: []string{"tidemill.key.forgetting"}}}}
	got, ok := cfg.Trigger("forget")
	if !ok || !reflect.DeepEqual(got, forget) {
		t.Errorf("got %+v\nwant %+v", got, forget)
	}
	if streams := cfg.StreamsOf(got); !reflect.DeepEqual(streams, []string{"bots", "facts"}) {
		t.Errorf("it reads %q", streams)
	}
}

func TestTrials(t *testing.T) {
	t.Parallel()
	const text = `version: 1
streams: {payments: , scored: , chargebacks: }
scorers:
  frauds: {from: payments, to: scored, model: "fraud/{key}", labels: {from: chargebacks, match: {id: data.payment}, truth: data.verdict, wait: 1d}}
recipes:
  fraud: {when: {type: t}, run: {image: i}, makes: {model: "fraud/{key}"}, trial: {pass: [stream.lead.low > 0]}}
`
	c := mustParse(t, text)
	want := &tidemill.TrialTerms{Scorer: "frauds", Last: time.Hour, Until: 48 * time.Hour, Pass: []string{"stream.lead.low > 0"}, AtLeast: 500, Alpha: 0.05}
	if r, _ := c.Recipe("fraud"); !reflect.DeepEqual(r.Trial, want) || r.Judge().Trial != r.Trial {
		t.Errorf("%+v", r.Trial)
	}
	seen := map[string]string{c.Hash(): text}
	for _, other := range []string{"pass: [stream.lead.low > 1]", "pass: [stream.lead.low > 0], refuse: [stream.lead.high < 0]", "pass: [stream.lead.low > 0], alpha: 0.01",
		"pass: [stream.lead.low > 0], last: 2h", "pass: [stream.lead.low > 0], until: 2h", "pass: [stream.lead.low > 0], atLeast: 7"} {
		changed := mustParse(t, strings.Replace(text, "pass: [stream.lead.low > 0]", other, 1))
		if same := seen[changed.Hash()]; same != "" {
			t.Errorf("%s has the hash of %s", other, same)
		}
		seen[changed.Hash()] = other
	}
	spelled := mustParse(t, strings.Replace(text, "trial: {", "trial: {scorer: frauds, last: 60m, until: 2d, atLeast: 500, alpha: 0.05, ", 1))
	if spelled.Hash() != c.Hash() {
		t.Error("the defaults that are written out have another hash")
	}
}
