package ledger

import (
	"slices"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger/fold"
)

// A gate's promotions are no changes by people. A pin of the champion is one, though it changes no champion.
func TestChangesByPeople(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_000)
	m := &fold.Model{Name: "intent/bot 1", Key: "bot 1", Recipe: "intent", Champion: 1, Versions: []fold.Held{{Number: 1}, {Number: 2}}, Changes: []fold.Change{
		{At: at, Action: tidemill.ActionJudge, Version: 2}, {At: at.Add(time.Minute), Action: tidemill.ActionRollback, Version: 1, Before: 2, By: "ana"}}}
	stored := func() entry {
		e, _ := entryOf(m)
		return parseEntry("3", m.Name, e.value())
	}
	if e := stored(); e.touched != at.Add(time.Minute).UnixMilli() || e.key != "bot 1" || e.recipe != "intent" || e.pinned {
		t.Errorf("its entry is %+v", e)
	}
	m.Trials = []fold.TrialEnd{{Version: 2, At: at.Add(time.Second)}, {Version: 3, At: at.Add(time.Minute)}}
	if e := stored(); e.tried != at.Add(time.Minute).UnixMilli() || e.key != "bot 1" || e.recipe != "intent" {
		t.Errorf("after two trials its entry is %+v", e)
	}
	m.Pin = &fold.Pin{At: at.Add(time.Hour), By: "max", Reason: "until Friday"}
	if e := stored(); e.touched != at.Add(time.Hour).UnixMilli() || !e.pinned {
		t.Errorf("once pinned its entry is %+v", e)
	}
	for _, state := range []tidemill.VersionState{tidemill.VersionRegistered, tidemill.VersionAwaiting, tidemill.VersionTrial, tidemill.VersionRefused} {
		m.Versions[1].State = state
		if e := stored(); e.state != state || e.recipe != "intent" || e.champion != 1 {
			t.Errorf("with a version that is %s its entry is %+v", state, e)
		}
	}
	want := []fold.Change{m.Changes[1], {At: m.Pin.At, Action: tidemill.ActionPin, Version: 1, Before: 1, By: "max", Reason: "until Friday"}}
	if got := changesByPeople(m); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	m.Changes = append(m.Changes, fold.Change{At: m.Pin.At, Action: tidemill.ActionPin, Version: 1, Before: 2, By: "max"})
	if got := changesByPeople(m); len(got) != 2 {
		t.Errorf("a pin that changes the champion is listed as %+v", got)
	}
	m.Changes, m.Pin = m.Changes[:1], nil
	if e := stored(); e.touched != 0 {
		t.Errorf("without a person its entry is %+v", e)
	}
}
