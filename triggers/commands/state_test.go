package commands_test

import (
	"bufio"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/triggers/commands"
)

var update = flag.Bool("update", false, "write the golden files of testdata")

// line is an act as it stands in the corpus.
type line struct {
	ID, Type, Subject, By string
	At                    time.Time
	Data                  json.RawMessage
}

// Each testdata/NAME.ndjson is a stream of acts and folds to NAME.json for
// ever: what people once asked for must mean the same to every later version.
// To add a case, add the stream, run with -update and read what was written.
func TestActsFoldForEver(t *testing.T) {
	streams, err := filepath.Glob("testdata/*.ndjson")
	if err != nil || len(streams) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, stream := range streams {
		t.Run(filepath.Base(stream), func(t *testing.T) {
			got, err := json.MarshalIndent(foldOf(t, stream), "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden := strings.TrimSuffix(stream, ".ndjson") + ".json"
			if *update {
				if err := os.WriteFile(golden, append(got, '\n'), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if string(got)+"\n" != string(want) {
				t.Errorf("folds to\n%s\nnot to\n%s", got, want)
			}
		})
	}
}

// folded is the state that a fold reports for the names that its stream has.
type folded struct {
	Next      int64
	Triggers  map[string]commands.Pause
	Schedules map[string]commands.Pause
	Recipes   map[string]commands.Pause `json:",omitempty"` // since runs
	Pools     map[string]commands.Pause `json:",omitempty"`
	Replays   []replay
	Letters   []commands.LetterReplay
	Rollouts  []*commands.Rollout `json:",omitempty"` // since rollouts
}

type replay struct {
	ID     string
	Offset int64
	By     string
	At     time.Time
	Asked  tidemill.Replay
}

func foldOf(t *testing.T, stream string) folded {
	f, err := os.Open(stream)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	acts := &commands.State{}
	out := folded{Triggers: map[string]commands.Pause{}, Schedules: map[string]commands.Pause{}, Recipes: map[string]commands.Pause{}, Pools: map[string]commands.Pause{}}
	var subjects []string
	for s := bufio.NewScanner(f); s.Scan(); {
		var l line
		if err := json.Unmarshal(s.Bytes(), &l); err != nil {
			t.Fatalf("%s: %v", s.Text(), err)
		}
		subjects = append(subjects, l.Subject)
		acts.Apply(commands.Command{Offset: int64(len(subjects)) - 1, ID: l.ID, Type: l.Type, Subject: l.Subject, By: l.By, At: l.At, Data: l.Data})
	}
	for _, name := range subjects {
		if p, rests := acts.TriggerPause(name); rests {
			out.Triggers[name] = p
		}
		if p, rests := acts.SchedulePause(name); rests {
			out.Schedules[name] = p
		}
	}
	for _, name := range subjects {
		if p, rests := acts.RecipePause(name); rests {
			out.Recipes[name] = p
		}
		if p, rests := acts.PoolPause(name); rests {
			out.Pools[name] = p
		}
	}
	out.Rollouts = acts.Rollouts()
	for _, r := range acts.Replays() {
		out.Replays = append(out.Replays, replay{r.ID, r.Offset, r.By, r.At, r})
	}
	out.Next, out.Letters = acts.Next(), acts.LetterReplays(0)
	return out
}

func TestACloneStaysAsItIs(t *testing.T) {
	var a commands.State
	asked := func(offset int64) commands.Command {
		return commands.Command{Offset: offset, ID: tidemill.ID(string(rune('a' + offset))), Type: tidemill.TypeEventReplayRequested,
			Data: []byte(`{"trigger":"t","letters":[{"id":"x"}]}`)}
	}
	a.Apply(commands.Command{Offset: 0, Type: tidemill.TypeTriggerPaused, Subject: "t"})
	a.Apply(asked(1))
	a.Apply(commands.Command{Offset: 2, Type: tidemill.TypeRecipePaused, Subject: "r"})
	a.Apply(commands.Command{Offset: 3, Type: tidemill.TypePoolPaused, Subject: "p"})
	before := a.Clone()
	a.Apply(commands.Command{Offset: 4, Type: tidemill.TypeTriggerResumed, Subject: "t"})
	a.Apply(commands.Command{Offset: 5, Type: tidemill.TypeRecipeResumed, Subject: "r"})
	a.Apply(commands.Command{Offset: 6, Type: tidemill.TypePoolResumed, Subject: "p"})
	a.Apply(asked(7))
	other := before.Clone()
	other.Apply(asked(8))
	_, recipe := before.RecipePause("r")
	_, pool := before.PoolPause("p")
	if !recipe || !pool {
		t.Errorf("in the clone, recipe %v and pool %v rest", recipe, pool)
	}
	if !before.TriggerPaused("t") || len(before.LetterReplays(0)) != 1 || before.Next() != 4 {
		t.Errorf("the clone became %+v", before)
	}
	if got := a.LetterReplays(2); len(got) != 1 || got[0].Offset != 7 {
		t.Errorf("from offset 2 there are %+v", got)
	}
	if got := other.LetterReplays(2); len(got) != 1 || got[0].Offset != 8 {
		t.Errorf("the clone's own acts are %+v", got)
	}
}

func TestWhatWasFoldedIsNotFoldedAgain(t *testing.T) {
	var a commands.State
	a.Apply(commands.Command{Offset: 7, Type: tidemill.TypeTriggerPaused, Subject: "t"})
	a.Apply(commands.Command{Offset: 8, Type: tidemill.TypeTriggerResumed, Subject: "t"})
	a.Apply(commands.Command{Offset: 7, Type: tidemill.TypeTriggerPaused, Subject: "t"})
	if a.TriggerPaused("t") {
		t.Error("an act that came again was folded again")
	}
}

// A freeze says why; that of one recipe and that of all are two.
func TestFreezes(t *testing.T) {
	var a commands.State
	a.Apply(commands.Command{Offset: 0, Type: tidemill.TypePromotionsFrozen, Subject: "intent", By: "ada", Data: []byte(`{"reason":"an incident"}`)})
	a.Apply(commands.Command{Offset: 1, Type: tidemill.TypePromotionsFrozen, Subject: tidemill.AllRecipes, Data: []byte("no JSON")})
	if p, frozen := a.PromotionsFrozen("fraud"); !frozen || p.Reason != "" {
		t.Errorf("fraud is frozen: %v, %+v", frozen, p)
	}
	a.Apply(commands.Command{Offset: 2, Type: tidemill.TypePromotionsThawed, Subject: tidemill.AllRecipes})
	if p, frozen := a.PromotionsFrozen("intent"); !frozen || p.By != "ada" || p.Reason != "an incident" {
		t.Errorf("intent is frozen: %v, %+v", frozen, p)
	}
	if _, frozen := a.PromotionsFrozen("fraud"); frozen || len(a.Freezes()) != 1 {
		t.Errorf("fraud is frozen: %v; freezes: %v", frozen, a.Freezes())
	}
}
