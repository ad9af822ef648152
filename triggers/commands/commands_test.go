package commands

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
)

// patience ends a test that hangs; it measures nothing.
const patience = 2 * time.Minute

type world struct {
	*testing.T
	servers *embedded.Servers
	options embedded.Options
	b       *broker.Broker
	p       *broker.Producer
	by      Author
}

func newWorld(t *testing.T, o embedded.Options) *world {
	t.Helper()
	w := &world{T: t, options: o}
	w.serve()
	t.Cleanup(func() { _ = w.servers.Close() })
	names, err := tidemill.NewNames("")
	w.must(err)
	w.by = Author{Names: names, By: "ada", Now: time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)}
	w.b, err = broker.Open(w.ctx(), broker.Options{Addr: w.servers.Kafka(), Names: names})
	w.must(err)
	t.Cleanup(func() { w.must(w.b.Close()) })
	_, err = w.b.EnsureStreams(w.ctx(), []broker.StreamSpec{{Name: tidemill.StreamCommands, Partitions: 1}}, broker.EnsureOptions{})
	w.must(err)
	w.p, err = w.b.Producer(broker.ProducerOptions{})
	w.must(err)
	t.Cleanup(func() { _ = w.p.Close(context.Background()) })
	return w
}

func (w *world) serve() {
	w.Helper()
	var err error
	w.servers, err = embedded.Start(w.Context(), w.options)
	w.must(err)
	w.options.Kafka, w.options.Redis = w.servers.Kafka(), w.servers.Redis()
}

func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	w.Cleanup(cancel)
	return ctx
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) publish(v broker.View) broker.Position {
	w.Helper()
	at, err := Publish(w.ctx(), w.p, &v)
	w.must(err)
	return at
}

func (w *world) follow() *Follower {
	w.Helper()
	f, err := Follow(w.ctx(), w.b, slog.New(slog.DiscardHandler))
	w.must(err)
	w.Cleanup(func() { w.must(f.Close(context.Background())) })
	return f
}

// waitKnown waits until the follower knows something.
func (w *world) waitKnown(f *Follower, known func(*State) bool) {
	w.Helper()
	for ctx := w.ctx(); ; {
		changed := f.Changed()
		if known(f.Now()) {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			w.Fatalf("the follower still knows only %+v", f.Now())
		}
	}
}

func TestAFollowerKnowsWhatWasAskedBefore(t *testing.T) {
	w := newWorld(t, embedded.Options{})
	if empty := w.follow(); empty.Now().Next() != 0 {
		t.Errorf("of no acts it knows %+v", empty.Now())
	}
	for i := range 50 {
		w.publish(w.by.PauseTrigger(fmt.Sprint("t-", i)))
	}
	w.publish(w.by.ResumeTrigger("t-7"))
	w.publish(w.by.PauseSchedule("nightly"))
	f := w.follow()
	now := f.Now()
	if p, rests := now.TriggerPause("t-49"); !rests || p.By != "ada" || !p.Since.Equal(w.by.Now) {
		t.Errorf("t-49 was paused by %+v, %v", p, rests)
	}
	if now.TriggerPaused("t-7") || !now.SchedulePaused("nightly") {
		t.Error("what was resumed is paused, or what was paused is not")
	}
	w.publish(w.by.ResumeSchedule("nightly"))
	w.waitKnown(f, func(a *State) bool { return !a.SchedulePaused("nightly") })
	if !now.SchedulePaused("nightly") {
		t.Error("what Now returned has changed")
	}
}

// The commands of operators say which recipes and pools are paused.
func TestRecipesAndPoolsRest(t *testing.T) {
	w := newWorld(t, embedded.Options{})
	f := w.follow()
	w.publish(w.by.PauseRecipe("intent"))
	w.publish(w.by.PausePool("intent")) // a pool may have the name of a recipe
	w.publish(w.by.PausePool("gpu"))
	w.publish(w.by.ResumePool("intent"))
	w.waitKnown(f, func(a *State) bool { _, rests := a.PoolPause("intent"); return a.Next() == 4 && !rests })
	now := f.Now()
	if p, rests := now.RecipePause("intent"); !rests || p.By != "ada" || !p.Since.Equal(w.by.Now) {
		t.Errorf("the recipe was paused by %+v, %v", p, rests)
	}
	if p, rests := now.PoolPause("gpu"); !rests || p.By != "ada" || !p.Since.Equal(w.by.Now) {
		t.Errorf("the pool was paused by %+v, %v", p, rests)
	}
	if now.TriggerPaused("intent") || now.SchedulePaused("intent") {
		t.Error("a trigger or a schedule rests, for a recipe of its name does")
	}
	w.publish(w.by.ResumeRecipe("intent"))
	w.waitKnown(f, func(a *State) bool { _, rests := a.RecipePause("intent"); return !rests })
	frozen, err := w.by.FreezePromotions("x", "an incident")
	w.must(err)
	thawed, err := w.by.ThawPromotions(tidemill.AllRecipes, "")
	w.must(err)
	if string(frozen.Data) != `{"reason":"an incident"}` || frozen.DataSchema != tidemill.Schema(tidemill.TypePromotionsFrozen) || thawed.Subject != "*" {
		t.Errorf("a freeze is %+v, its end %+v", frozen, thawed)
	}
	for typ, v := range map[string]broker.View{tidemill.TypeRecipePaused: w.by.PauseRecipe("x"), tidemill.TypeRecipeResumed: w.by.ResumeRecipe("x"),
		tidemill.TypePoolPaused: w.by.PausePool("x"), tidemill.TypePoolResumed: w.by.ResumePool("x")} {
		attribute := tidemill.AttrPool
		if entry, _ := tidemill.Lookup(typ); slices.Contains(entry.Attrs, tidemill.AttrRecipe) {
			attribute = tidemill.AttrRecipe
		}
		name, _ := v.Attribute(attribute)
		by, _ := v.Attribute(tidemill.AttrAuthID)
		if v.Type != typ || v.Subject != "x" || name != "x" || by != "ada" || v.Source != "/tidemill/tidemill/gateway" {
			t.Errorf("%s: %+v", typ, v)
		}
	}
}

func TestAFollowerOutlivesKafka(t *testing.T) {
	w := newWorld(t, embedded.Options{Dir: t.TempDir()})
	f := w.follow()
	w.publish(w.by.PauseTrigger("before"))
	w.waitKnown(f, func(a *State) bool { return a.TriggerPaused("before") })
	w.must(w.servers.Close())
	w.serve()
	w.publish(w.by.PauseTrigger("after"))
	w.waitKnown(f, func(a *State) bool { return a.TriggerPaused("after") })
}

func TestLettersAreReadFromTheirAct(t *testing.T) {
	w := newWorld(t, embedded.Options{})
	f := w.follow()
	refs := []tidemill.LetterRef{{Partition: 1, Offset: 7, ID: "x", Stream: "events", Source: 3}, {Partition: 0, Offset: 2, ID: "y", Stream: "events", Source: 1}}
	asked := func(refs []tidemill.LetterRef) broker.View {
		v, err := w.by.ReplayLetters(tidemill.LetterReplayData{Trigger: "t", Letters: refs, Rate: 5})
		w.must(err)
		return v
	}
	w.publish(w.by.PauseTrigger("other"))
	first := asked(refs)
	at := w.publish(first)
	w.publish(asked([]tidemill.LetterRef{refs[1], refs[0]})) // the same dead letters in another order
	w.publish(w.by.PauseTrigger("last"))
	w.waitKnown(f, func(a *State) bool { return a.TriggerPaused("last") })
	all := f.Now().LetterReplays(0)
	if len(all) != 1 || all[0].Offset != at.Offset || all[0].ID != first.ID || all[0].Count != 2 || all[0].Rate != 5 {
		t.Fatalf("asked twice for the same it knows %+v", all)
	}
	got, err := f.Letters(w.ctx(), all[0])
	w.must(err)
	if len(got) != 2 || got[0] != refs[0] || got[1] != refs[1] {
		t.Errorf("the act names %+v", got)
	}
	if _, err := f.Letters(w.ctx(), LetterReplay{ID: "none", Offset: at.Offset + 2}); err == nil {
		t.Error("another act was taken for one that replays letters")
	}
}

func TestAReplayEndsOnce(t *testing.T) {
	w := newWorld(t, embedded.Options{})
	f := w.follow()
	asked, err := w.by.Replay(tidemill.Replay{Trigger: "t", Streams: map[string][]tidemill.Range{"events": {{Partition: 0, From: 1, To: 9}}}, Rate: 2})
	w.must(err)
	w.publish(asked)
	w.waitKnown(f, func(a *State) bool { return len(a.Replays()) == 1 })
	r := f.Now().Replays()[0]
	if r.ID != asked.ID || r.By != "ada" || r.Streams["events"][0].To != 9 {
		t.Errorf("it is asked for %+v", r)
	}
	one, err := Replayed(w.by.Names, r, tidemill.ReplayedData{Delivered: 8}, w.by.Now)
	w.must(err)
	two, err := Replayed(w.by.Names, r, tidemill.ReplayedData{Delivered: 7, Failed: 1}, w.by.Now.Add(time.Second))
	w.must(err)
	if one.ID != two.ID {
		t.Error("two reports of one end have different ids")
	}
	w.publish(one)
	w.publish(asked)
	w.publish(w.by.PauseTrigger("last"))
	w.waitKnown(f, func(a *State) bool { return a.TriggerPaused("last") })
	if left := f.Now().Replays(); len(left) != 0 {
		t.Errorf("after its end there is %+v", left)
	}
}

// Commands of people are listed newest first, without the reports between them.
func TestTheLogIsReadBackwards(t *testing.T) {
	w := newWorld(t, embedded.Options{})
	if all, next, err := Log(w.ctx(), w.b, 0, 10); err != nil || len(all) != 0 || next != 0 {
		t.Fatalf("an empty stream: %v, %d, %v", all, next, err)
	}
	const n = logWindow + 50
	for i := range n {
		w.publish(w.by.PauseTrigger(fmt.Sprint("t-", i)))
	}
	ended, err := Replayed(w.by.Names, tidemill.Replay{ID: "r", Trigger: "t"}, tidemill.ReplayedData{}, w.by.Now)
	w.must(err)
	w.publish(ended)
	var got []string
	before, pages := int64(0), 0
	for {
		all, next, err := Log(w.ctx(), w.b, before, 100)
		w.must(err)
		for _, c := range all {
			got = append(got, c.Subject)
		}
		if pages++; next == 0 {
			break
		}
		before = next
	}
	if len(got) != n || pages != 3 || got[0] != fmt.Sprint("t-", n-1) || got[n-1] != "t-0" {
		t.Errorf("%d commands on %d pages, from %v to %v", len(got), pages, got[0], got[len(got)-1])
	}
}
