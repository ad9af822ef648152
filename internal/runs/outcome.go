package runs

import (
	"encoding/json"
	"slices"
	"time"

	"tidemill.dev"
)

// What became of a run with an attempt's end, as the attribute of the fact says
// it: triggers filter on it.
const (
	nowRetrying  = "retrying"
	nowSucceeded = "succeeded"
	nowFailed    = "failed"
	nowCancelled = "cancelled"
)

// outcomeOf asks the fold itself what it will make of an attempt's end, so that
// the attribute and the state never go by different rules. The log may know of
// something since; then it is the state that counts.
func outcomeOf(r *tidemill.Run, d tidemill.RunFinished, at time.Time) string {
	run := *r
	run.Attempts = slices.Clone(r.Attempts)
	m := tidemill.Making{Recipe: r.Recipe, Key: r.Key, Live: &run}
	data, _ := json.Marshal(d) // whoever writes the fact has the error
	m.Apply(tidemill.Fact{Type: tidemill.TypeRunFinished, Recipe: r.Recipe, Key: r.Key, Run: r.ID, At: at, Data: data})
	switch run.State {
	case tidemill.RunSettling, tidemill.RunSucceeded:
		return nowSucceeded
	case tidemill.RunFailed:
		return nowFailed
	case tidemill.RunCancelled:
		return nowCancelled
	}
	return nowRetrying
}
