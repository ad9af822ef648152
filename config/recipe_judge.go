package config

import (
	"cmp"
	"errors"
	"slices"

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
