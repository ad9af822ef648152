package lineage

import (
	"slices"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
)

func minute(n int) time.Time { return time.Date(2026, 11, 22, 14, n, 0, 0, time.UTC) }

func TestHowAVersionStands(t *testing.T) {
	t.Parallel()
	m := &fold.Model{Name: "m", Champion: 3, Changes: []fold.Change{
		{At: minute(1), Action: tidemill.ActionJudge, Version: 1}, {At: minute(2), Action: tidemill.ActionPromote, Version: 2, Before: 1, By: "ada", Reason: "by hand"},
		{At: minute(3), Action: tidemill.ActionJudge, Version: 3, Before: 2}, {At: minute(4), Action: tidemill.ActionRollback, Version: 1, Before: 3},
		{At: minute(5), Action: tidemill.ActionPin, Version: 3, Before: 1, By: "bob"}}}
	for _, c := range []struct {
		number int
		state  tidemill.VersionState
		pin    *fold.Pin
		want   string
		at     time.Time
		says   string
		next   int // how often another version replaced it
	}{
		{1, tidemill.VersionPromoted, nil, "was champion", minute(4), "restored by anonymous", 2},
		{2, tidemill.VersionPromoted, nil, "was champion", minute(2), "promoted by ada, by hand", 1},
		{3, tidemill.VersionPromoted, nil, "champion", minute(5), "pinned by bob", 1},
		{3, tidemill.VersionPromoted, &fold.Pin{At: minute(6)}, "pinned champion", minute(6), "pinned by bob", 1},
		{4, tidemill.VersionRefused, nil, "refused", minute(0), "", 0},
		{5, tidemill.VersionAwaiting, nil, "awaiting", minute(0), "", 0},
	} {
		m.Pin = c.pin
		v := &ledger.VersionRecord{Version: tidemill.Version{Number: c.number, At: minute(0), Files: 1, Bytes: 2048, Origin: tidemill.Origin{Run: "abcdef"}}, State: c.state,
			Judgement: &tidemill.Judgement{Sentence: "so it is", Against: 9}}
		got := ofVersion(m, v)
		if got.node.State != c.want || !got.node.Time.Equal(c.at) || got.node.Said != "so it is" || c.says != "" && got.node.Says[0] != c.says || len(got.effects) != c.next {
			t.Errorf("version %d stands as %+v, with %d in its place", c.number, got.node, len(got.effects))
		}
		if len(got.causes) != 2 || got.causes[0].to != runRef("abcdef") || got.causes[0].origin == nil || got.causes[1].to != modelRef("m", "9") || !got.causes[1].leaf {
			t.Errorf("version %d comes from %+v", c.number, got.causes)
		}
	}
}

func TestWhatAnEventTellsOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		typ   string
		attrs map[string]string
		want  string
		what  api.GraphRelation
	}{
		{"new-data", map[string]string{"dataset": "bots/a", "commit": "9f3"}, "commit/bots/a@9f3", api.EdgeTold},
		{"new-data", map[string]string{"dataset": "../a", "commit": "9f3"}, "", ""},
		{"new-data", nil, "", ""},
		{"order", map[string]string{"dataset": "bots/a", "commit": "9f3", "run": "abcdef"}, "", ""}, // attributes of a stranger's event
		{"order", map[string]string{"causationid": "c", "causationsource": "/x"}, "event//x#c", api.EdgeCaused},
		{"tidemill.run.finished", map[string]string{"run": "abcdef", "causationid": "c"}, "run/abcdef", api.EdgeTold},
		{"tidemill.run.requested", map[string]string{"run": "abcdef"}, "", ""}, // the event that made that run
		{"tidemill.model.promoted", map[string]string{"run": "abcdef", "model": "m", "modelversion": "7"}, "model/m@7", api.EdgeTold},
		{"tidemill.model.promoted", map[string]string{"model": "m", "modelversion": "-7"}, "", ""},
	} {
		v := broker.View{ID: "e", Source: "/s", Type: c.typ, Subject: "k", Time: "2026-11-22T14:00:00Z"}
		for name, value := range c.attrs {
			v.Extensions = append(v.Extensions, broker.Attribute{Name: name, Value: value})
		}
		got, want := ofEvent(&v), []string{}
		for _, l := range got.causes {
			want = append(want, l.to.String()+" "+string(l.what))
		}
		if c.want == "" && len(want) > 0 || c.want != "" && !slices.Equal(want, []string{c.want + " " + string(c.what)}) {
			t.Errorf("%s with %v tells of %q, want %q", c.typ, c.attrs, want, c.want)
		}
		if !got.node.Time.Equal(minute(0)) || got.node.Facts["type"] != c.typ || got.key != "k" {
			t.Errorf("%+v", got.node)
		}
	}
}

func TestWhatARunSays(t *testing.T) {
	t.Parallel()
	r := tidemill.Run{ID: "abcdefabcdefabcdefabcdefab", Recipe: "intent", Key: "bot-1", State: tidemill.RunFailed, Reason: "no room", By: "ada", Again: "zzzzzz", Causes: 1,
		First: tidemill.Cause{Source: "/x", ID: "c"}, Newest: tidemill.Cause{Source: "/x", ID: "c"}, End: minute(3), Cancel: &tidemill.Cancel{By: "bob", Reason: "enough"},
		Attempts: []tidemill.Attempt{{Number: 1}, {Number: 2, Started: minute(1), Ended: minute(2), Where: tidemill.Where{Node: "n1", Card: "H200", GPUs: []int{0, 1}, Image: "registry.example/t@sha256:0123456789abcdef0123456789abcdef"}}}}
	plan := &tidemill.Plan{Image: "registry.example/t:3", Command: []string{"train"}, Model: "intent/bot-1", Champion: &tidemill.Champion{Version: 4},
		Inputs: []tidemill.Input{{Name: "a", Dataset: "bots/bot-1", Branch: "main", Commit: "9f3", Files: 1, Bytes: 10}, {Name: "b", URI: "https://u:p@files.example/b?secret=1#2"}}}
	got := ofRun(runData{run: r, plan: plan, made: []string{"model/intent/bot-1@5", "commit/77a", "strange/x"}}, both())
	if want := []string{"recipe intent for bot-1", "attempt 2, 1m0s", "requested by ada", "cancelled by bob, enough", "trained on https://files.example/b"}; !slices.Equal(got.node.Says, want) || got.node.Said != "no room" || !got.node.Time.Equal(minute(3)) {
		t.Errorf("it says %q and %q", got.node.Says, got.node.Said)
	}
	var causes, effects []string
	for _, l := range got.causes {
		causes = append(causes, string(l.what)+" "+l.to.String())
	}
	for _, l := range got.effects {
		effects = append(effects, l.to.String())
	}
	if want := []string{"taught commit/bots/bot-1@9f3", "was the code of code/registry.example/t@sha256:0123456789abcdef0123456789abcdef", "ran node/n1",
		"was measured by model/intent/bot-1@4", "was retried by run/zzzzzz", "asked for event//x#c"}; !slices.Equal(causes, want) {
		t.Errorf("it comes from %q", causes)
	}
	if want := []string{"model/intent/bot-1@5", "commit/77a"}; !slices.Equal(effects, want) {
		t.Errorf("it made %q", effects)
	}
	if known := got.causes[1].linked.node; known.Title != "code registry.example/t@sha256:0123456789ab" || known.Says[0] != "train in registry.example/t:3" {
		t.Errorf("of the code it says %+v", known)
	}
	if known := got.causes[2].linked.node; known.Title != "node n1, H200, GPU 0 1" {
		t.Errorf("of the node it says %+v", known)
	}
}
