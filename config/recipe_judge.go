package config

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"tidemill.dev"
	"tidemill.dev/config/gate"
)

// The words of gateOn.
const (
	gateOnSame     = "same"
	gateOnRecorded = "recorded"
)

// judgeFields are the fields about how a recipe's versions are judged.
func (d *draft) judgeFields(r *Recipe) []field {
	return []field{
		{"gate", func(v value) { r.Gate = d.readClauses(v, v.items(), &gateClauses) }},
		{"gateOn", func(v value) { r.GateOn = readGateOn(v) }},
		{"promote", func(v value) {
			word, _ := v.oneOf(string(tidemill.PromoteAuto), string(tidemill.PromoteManual))
			r.Promote = tidemill.Promote(word)
		}},
		{"trial", func(v value) { d.readTrial(v, &r.Trial) }},
	}
}

// Judge returns how the versions of a run that begins now are judged.
func (r Recipe) Judge() tidemill.Judge {
	return tidemill.Judge{Gate: slices.Clone(r.Gate), On: cmp.Or(r.GateOn, tidemill.GateOnSame),
		Promote: cmp.Or(r.Promote, tidemill.PromoteAuto), Keep: cmp.Or(r.Keep, defaultKeep), Trial: r.Trial, Canary: r.Canary}
}

// clauses is a kind of conditions in CEL.
type clauses struct {
	check func(string) error // an error is a *gate.SyntaxError
	none  string             // what an empty list means, and what to write instead
	join  string             // operator that joins two of them
}

var (
	gateClauses   = clauses{gate.Check, "which refuses nothing; write clauses such as metrics.accuracy >= 0.85, or remove the key", "&&"}
	passClauses   = clauses{gate.CheckStream, "which every candidate passes; write clauses such as stream.lead.low > 0", "&&"}
	refuseClauses = clauses{gate.CheckStream, "which refuses nothing; write clauses such as stream.lead.high < 0, or remove the key", "||"}
	stopClauses   = clauses{gate.CheckStop, "which stops nothing; write a clause such as fleet.worse > 0.02", "||"}
)

// readClauses reads a list of conditions. Each is checked only once, because thousands of recipes may have the same.
func (d *draft) readClauses(v value, items []value, of *clauses) (all []string) {
	switch {
	case v.node.Kind == yaml.SequenceNode && len(items) == 0:
		v.problem("is an empty list, %s", of.none)
	case len(items) > gate.MaxClauses:
		v.problem("has more than %d clauses; join some with %s", gate.MaxClauses, of.join)
		return nil
	}
	for _, item := range items {
		text, ok := item.text()
		switch {
		case !ok:
		case slices.Contains(all, text):
			item.problem("%s appears twice; keep one", show(text))
		default:
			d.checkClause(item, text, of)
			all = append(all, text)
		}
	}
	return all
}

// checkedClause is a clause that was checked, as one of its kind.
type checkedClause struct {
	of   *clauses
	text string
}

func (d *draft) checkClause(v value, text string, of *clauses) {
	err, known := d.clauses[checkedClause{of, text}]
	if !known {
		err = of.check(text)
		d.clauses[checkedClause{of, text}] = err
	}
	var wrong *gate.SyntaxError
	switch {
	case errors.As(err, &wrong):
		v.problem("column %d, %s: %s", wrong.Column, pointAt(text, wrong.Column), plain(wrong.Reason))
	case err != nil:
		v.problem("%s", plain(err.Error()))
	}
}

func readGateOn(v value) tidemill.GateOn {
	switch word, _ := v.oneOf(gateOnSame, gateOnRecorded); word {
	case gateOnSame:
		return tidemill.GateOnSame
	case gateOnRecorded:
		return tidemill.GateOnRecorded
	}
	return ""
}

// checkJudge checks the keys about judging against the output of the recipe. Only models are
// judged.
func (r *Recipe) checkJudge(v value, given map[string]bool) {
	if r.Makes.Model == "" && v.valueOf("makes").valueOf("model").node == nil {
		for _, key := range []string{"gate", "gateOn", "promote", "trial", "canary"} {
			if given[key] {
				v.child(key, v.nodeAt(key)).problem("is for a recipe that makes a model; write makes: {model: \"%s/{key}\"}, or remove the key", r.Name)
			}
		}
		return
	}
	if given["gateOn"] && !given["gate"] {
		v.child("gateOn", v.nodeAt("gateOn")).problem("selects the champion's figures for a gate, and there is no gate; write gate, or remove the key")
	}
	r.GateOn, r.Promote = cmp.Or(r.GateOn, tidemill.GateOnSame), cmp.Or(r.Promote, tidemill.PromoteAuto)
}

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

const (
	canaryHold  = time.Hour
	canaryUntil = 14 * 24 * time.Hour
	canaryLeast = 100
	mostLeast   = 1_000_000
)

// readCanary reads how a version answers a share of the events before it may become the champion.
func readCanary(v value) *tidemill.Canary {
	c := &tidemill.Canary{Share: 0.1, Hold: canaryHold, Least: canaryLeast, Until: canaryUntil}
	v.fields(
		field{"share", func(v value) { readCanaryShare(v, &c.Share) }},
		field{"by", func(v value) { readKeyPlace(v, &c.By) }},
		field{"hold", readWait(&c.Hold, 0, maxStepHold)},
		field{"least", readInteger(&c.Least, 0, mostLeast)},
		field{"until", readWait(&c.Until, time.Second, maxStepHold)},
		field{"worse", func(v value) {
			if text, ok := v.text(); ok {
				share, err := parseShare(text)
				if err != nil {
					v.problem("%s", err)
				}
				c.Worse = share
			}
		}},
	)
	if c.By == KeyNone {
		v.valueOf("by").problem("must be a place in the event, such as data.user; remove the key to decide by the event's id")
	}
	if c.Until < c.Hold {
		v.problem("has an until (%s) before its hold (%s) has passed; make until longer", showSpan(c.Until), showSpan(c.Hold))
	}
	return c
}

func readCanaryShare(v value, to *float64) {
	text, ok := v.text()
	if !ok {
		return
	}
	share, err := parseShare(text)
	switch {
	case err != nil:
		v.problem("%s", err)
	case share >= 1:
		v.problem("100%% leaves no event to the champion, so there is nothing to compare with; write a smaller share, such as 10%%")
	default:
		*to = share
	}
}
