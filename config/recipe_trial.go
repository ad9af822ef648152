package config

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"tidemill.dev"
	"tidemill.dev/config/gate"
)

const (
	defaultTrialLast    = time.Hour
	defaultTrialUntil   = 48 * time.Hour
	defaultTrialAtLeast = 500
	defaultTrialAlpha   = 0.05
	maxTrial            = 90 * 24 * time.Hour // as long as outcomes are kept
	maxTrialAtLeast     = 50_000              // number of events that a trial keeps
)

// readTrial reads how a candidate is tried on the stream.
func (d *draft) readTrial(v value, to **tidemill.TrialTerms) {
	t := &tidemill.TrialTerms{Last: defaultTrialLast, Until: defaultTrialUntil, AtLeast: defaultTrialAtLeast, Alpha: defaultTrialAlpha}
	given := v.presentFields(
		field{"scorer", func(v value) { t.Scorer, _ = v.text() }},
		field{"last", readWait(&t.Last, time.Second, maxTrial)},
		field{"until", readWait(&t.Until, time.Second, maxTrial)},
		field{"pass", func(v value) { t.Pass = d.readClauses(v, v.items(), &passClauses) }},
		field{"refuse", func(v value) { t.Refuse = d.readClauses(v, v.items(), &refuseClauses) }},
		field{"atLeast", readInteger(&t.AtLeast, 1, maxTrialAtLeast)},
		field{"alpha", func(v value) {
			text, ok := v.scalar()
			x, err := strconv.ParseFloat(text, 64)
			switch {
			case !ok:
			case err != nil || !(x >= 0.0001 && x <= 0.5):
				v.problem("%s is not a share of wrong promotions; write 0.0001 to 0.5, such as 0.05", show(text))
			default:
				t.Alpha = x
			}
		}},
	)
	v.require(v.node, given, "pass", "write clauses that a candidate must pass, such as [stream.lead.low > 0]")
	if v.node.Kind == yaml.MappingNode {
		*to = t
	}
}

// checkTrial compares a trial with the scorers of the config, and finds its scorer if the trial names none.
func (d *draft) checkTrial(v value, r *Recipe) {
	t := r.Trial
	if t.Scorer == "" {
		var serving []string
		for _, s := range d.scorers {
			if s.Model == r.Makes.Model {
				serving = append(serving, s.Name)
			}
		}
		switch len(serving) {
		case 1:
			t.Scorer = serving[0]
		case 0:
			v.problem("has no scorer: none has model: %s; name one with scorer", show(r.Makes.Model))
			return
		default:
			v.problem("has several scorers that serve the model: %s; name one of them with scorer", strings.Join(serving, ", "))
			return
		}
	}
	i := slices.IndexFunc(d.scorers, func(s Scorer) bool { return s.Name == t.Scorer })
	if i < 0 {
		v.child("scorer", v.nodeAt("scorer")).problem("there is no scorer %s", show(t.Scorer))
		return
	}
	clauses, err := gate.CompileStream(slices.Concat(t.Pass, t.Refuse))
	if err == nil && clauses.NeedsLabels() && d.scorers[i].Labels == nil {
		v.problem("has clauses that need labels, and scorer %s has none; write labels: for the scorer, or use stream.disagree, stream.p99 and stream.errors", show(t.Scorer))
	}
}
