package gateway

import (
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/triggers/commands"
)

func TestWhatARunWaitsFor(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	acts := &commands.State{}
	for offset, a := range []commands.Command{{Type: tidemill.TypeRecipePaused, Subject: "retrying", By: "ada"}, {Type: tidemill.TypePoolPaused, Subject: "closed"}} {
		a.Offset, a.At, a.ID = int64(offset), now.Add(-25*time.Hour), a.Subject
		acts.Apply(a)
	}
	recipe := func(name, pool string, most int) config.Recipe {
		return config.Recipe{Name: name, Run: config.Job{Pool: pool}, MaxRunning: most}
	}
	look := &runLook{now: now, acts: acts, slots: map[string]int{"gpu": 8, "free": 0, "closed": 1},
		busy: ledger.Busy{Pools: map[string]int{"gpu": 8, "free": 100}, Recipes: map[string]int{"few": 4, "many": 3}},
		config: &config.Config{Recipes: []config.Recipe{recipe("gpu", "gpu", 0), recipe("free", "free", 0), recipe("retrying", "free", 0),
			recipe("closed", "closed", 0), recipe("few", "free", 4), recipe("many", "free", 4), recipe("lost", "gone", 0)}}}
	run := func(recipe string, s tidemill.RunState, due time.Duration) tidemill.Run {
		return tidemill.Run{Recipe: recipe, State: s, Due: now.Add(due)}
	}
	cancelled := run("gpu", tidemill.RunRunning, 0)
	cancelled.Cancel = &tidemill.Cancel{By: "eve"}
	for _, c := range []struct {
		run  tidemill.Run
		want string
	}{
		{run("gpu", tidemill.RunRunning, 0), ""},
		{run("gpu", tidemill.RunSucceeded, 0), ""},
		{cancelled, "for its command to end: cancelled by eve"},
		{run("gpu", tidemill.RunCommitting, 0), "for its output to be committed to its dataset"},
		{run("gone", tidemill.RunWaiting, time.Hour), "recipe gone is no longer in the config"},
		{run("gone", tidemill.RunRetrying, 0), "recipe gone is no longer in the config"},
		{run("retrying", tidemill.RunWaiting, time.Hour), "recipe retrying is paused by ada since 2026-11-19 11:00:00 UTC"},
		{run("gpu", tidemill.RunWaiting, 190*time.Second), "for its time (12:03:10 UTC)"},
		{run("gpu", tidemill.RunRetrying, 36*time.Hour), "for its time (2026-11-22 00:00:00 UTC)"},
		{run("gpu", tidemill.RunWaiting, 0), "for a slot of pool gpu (8 of 8 in use)"},
		{run("free", tidemill.RunWaiting, 0), "to be started"},
		{run("closed", tidemill.RunWaiting, 0), "pool closed is paused since 2026-11-19 11:00:00 UTC"},
		{run("few", tidemill.RunWaiting, -time.Hour), "maxRunning 4 of recipe few is reached"},
		{run("many", tidemill.RunRetrying, -time.Hour), "to be started"},
		{run("lost", tidemill.RunWaiting, 0), "pool gone is no longer in the config"},
	} {
		if got := look.waitReason(&c.run); got != c.want {
			t.Errorf("a run of %s that is %s waits %q, not %q", c.run.Recipe, c.run.State, got, c.want)
		}
	}
}

func TestRunsWaitForRoomOnTheDisk(t *testing.T) {
	t.Parallel()
	look := &runLook{now: time.Now(), acts: &commands.State{}, slots: map[string]int{"free": 0}, full: "disk full: 3 KiB are left in /data",
		config: &config.Config{Recipes: []config.Recipe{{Name: "intent", Run: config.Job{Pool: "free"}}}}}
	if got := look.waitReason(&tidemill.Run{Recipe: "intent", State: tidemill.RunWaiting}); got != "for room on the disk: disk full: 3 KiB are left in /data" {
		t.Errorf("it waits %q", got)
	}
}

func TestWhichRunIsNewer(t *testing.T) {
	t.Parallel()
	for want, m := range map[string]fold.Making{
		"": {Ended: []string{"b", "a"}},
		"skipped: run b of its key has ended since": {Ended: []string{"a", "b"}},
		"skipped: run c of its key waits":           {Ended: []string{"a"}, Waiting: &tidemill.Run{ID: "c"}, Live: &tidemill.Run{ID: "d"}},
		"skipped: run d of its key is running":      {Ended: []string{"a"}, Live: &tidemill.Run{ID: "d"}},
	} {
		if got := newerRun(&m, "a"); got != want {
			t.Errorf("of %+v it says %q", m, got)
		}
	}
	if got := newerRun(&fold.Making{}, "a"); got != "" {
		t.Errorf("of one that its making has forgotten it says %q", got)
	}
}

func TestWhatCannotBeCancelled(t *testing.T) {
	t.Parallel()
	for state, want := range map[tidemill.RunState]string{
		tidemill.RunWaiting: "", tidemill.RunRunning: "", tidemill.RunRetrying: "",
		tidemill.RunCommitting: "it has succeeded, and its output is being committed to its dataset",
		tidemill.RunSucceeded:  "it has ended: succeeded", tidemill.RunCancelled: "it has ended: cancelled",
	} {
		if got := notCancelled(&tidemill.Run{State: state}); got != want {
			t.Errorf("one that is %s: %q", state, got)
		}
	}
	if got := notCancelled(&tidemill.Run{State: tidemill.RunRunning, Cancel: &tidemill.Cancel{}}); got != "it is being cancelled already" {
		t.Errorf("one that is being cancelled: %q", got)
	}
}

func TestWhatAStartMayAsk(t *testing.T) {
	t.Parallel()
	keyed, keyless := config.Recipe{Name: "intent", Key: "subject"}, config.Recipe{Name: "report", Key: "none"}
	for _, c := range []struct {
		ask    api.RunsAsked
		recipe config.Recipe
		says   string
	}{
		{api.RunsAsked{Keys: []string{"a", "b/c"}}, keyed, ""},
		{api.RunsAsked{All: true, Where: "subject = 'a'", Rate: 5, Priority: -3}, keyed, ""},
		{api.RunsAsked{}, keyless, ""},
		{api.RunsAsked{}, keyed, "keys"},
		{api.RunsAsked{Keys: []string{"a"}, All: true}, keyed, "keys"},
		{api.RunsAsked{Keys: []string{"a"}}, keyless, "has no keys"},
		{api.RunsAsked{All: true}, keyless, "has no keys"},
		{api.RunsAsked{Keys: []string{"a", ""}}, keyed, "keys"},
		{api.RunsAsked{Keys: []string{"a\nb"}}, keyed, "keys"},
		{api.RunsAsked{Keys: []string{"a"}, Where: "x = 1"}, keyed, "where"},
		{api.RunsAsked{Keys: []string{"a"}, Rate: -1}, keyed, "rate"},
		{api.RunsAsked{Keys: []string{"a"}, Priority: 1001}, keyed, "priority"},
	} {
		p := checkStart(&c.ask, &c.recipe)
		if (p == nil) != (c.says == "") || p != nil && !strings.Contains(p.Detail, c.says) {
			t.Errorf("%+v of %s: %v", c.ask, c.recipe.Name, p)
		}
	}
}
