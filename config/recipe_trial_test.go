package config

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
)

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
