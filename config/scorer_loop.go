package config

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"tidemill.dev"
)

// checkScorerLoop finds a scorer whose output comes back to its input for ever,
// by way of others or not. What goes round is a score, where all of them score
// scores; or what came in, where all of them pass on what has no model.
func (d *draft) checkScorerLoop(key *yaml.Node, v value, s Scorer) {
	if s.From == s.To { // reported, or not read
		return
	}
	if way := d.loop(s, func(o Scorer) bool { return o.takes(tidemill.TypeScored) }); way != nil {
		v.problemAt(key, "scores its own scores for ever, by way of %s; remove %s from its types", strings.Join(way, ", "), tidemill.TypeScored)
		return
	}
	for _, typ := range d.passable(s) {
		if way := d.loop(s, func(o Scorer) bool { return o.passes(typ) }); way != nil {
			v.problemAt(key, "gets back for ever what it passes on, by way of %s; have one of them dead-letter or drop what has no model", strings.Join(way, ", "))
			return
		}
	}
}

// takes tells whether a scorer scores events of a type; "" is any that no file
// names.
func (s Scorer) takes(typ string) bool {
	if len(s.Types) == 0 {
		return !tidemill.ReservedType(typ)
	}
	return slices.Contains(s.Types, typ)
}

func (s Scorer) passes(typ string) bool { return s.NoModel.Action == NoModelPass && s.takes(typ) }

// passable are the types that tell the ways of a scorer's events apart.
func (d *draft) passable(s Scorer) []string {
	if s.NoModel.Action != NoModelPass {
		return nil
	}
	all := []string{""}
	for _, o := range d.scorers {
		all = append(all, o.Types...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// loop is a way from a scorer's output back to its input, by the names of the
// streams; nil if there is none among those that count.
func (d *draft) loop(s Scorer, counts func(Scorer) bool) []string {
	if !counts(s) {
		return nil
	}
	before := map[string]string{s.To: ""}
	for next := []string{s.To}; len(next) > 0; next = next[1:] {
		for _, o := range d.scorers {
			if _, seen := before[o.To]; o.From != next[0] || seen || !counts(o) {
				continue
			}
			before[o.To] = next[0]
			next = append(next, o.To)
		}
	}
	if _, back := before[s.From]; !back {
		return nil
	}
	var way []string
	for at := s.From; at != ""; at = before[at] {
		way = append(way, at)
	}
	slices.Reverse(way)
	return way
}
