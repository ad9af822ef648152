package runs

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"time"

	"tidemill.dev"
)

// candidate is the version that an attempt's end brings, and all that whoever
// judges it has to know of the run; nil if it brings none. What the command was
// given in its environment is not in it: facts of models are for others to hear.
func candidate(r *tidemill.Run, d tidemill.RunFinished, at time.Time) *tidemill.Candidate {
	var p tidemill.Plan
	_ = json.Unmarshal(r.Plan, &p) // the fold has written it
	d.Candidate = nil
	if p.Model == "" || len(r.Attempts) == 0 || outcomeOf(r, d, at) != nowSucceeded {
		return nil
	}
	first, last := r.Attempts[0], r.Attempts[len(r.Attempts)-1]
	c := &tidemill.Candidate{Model: p.Model, Champion: p.Champion, Origin: tidemill.Origin{
		Run: r.ID, Recipe: r.Recipe, Key: r.Key, Config: r.Config, Attempt: d.Attempt, Began: first.Started, Ended: at,
		Inputs: told(p.Inputs), Causes: r.Causes, First: r.First, Newest: r.Newest, By: r.By,
		Mark: tidemill.Mark{Partition: r.Partition, Offset: first.Offset}, Where: last.Where.With(d.Where)}}
	if p.Judge != nil { // a run that began before there were gates has none
		c.Judge = *p.Judge
	} else {
		c.Judge = tidemill.Judge{On: tidemill.GateOnSame, Promote: tidemill.PromoteAuto}
	}
	return c
}

// told are a plan's inputs without what lets one in: behind the ? of an address,
// or before its host, may stand a key.
func told(inputs []tidemill.Input) []tidemill.Input {
	all := slices.Clone(inputs)
	for i := range all {
		all[i].Allow = nil
		all[i].URI, _, _ = strings.Cut(all[i].URI, "?")
		if u, err := url.Parse(all[i].URI); err == nil && u.User != nil {
			u.User = nil
			all[i].URI = u.String()
		}
	}
	return all
}
