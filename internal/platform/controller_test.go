package platform

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/broker/follow"
	"tidemill.dev/config"
	"tidemill.dev/triggers/schedule"
)

func TestCheckClock(t *testing.T) {
	t.Parallel()
	for want, s := range map[api.Check]schedule.Status{
		{Name: "clock", Status: api.OK, Detail: "this process sends the ticks"}:                   {Active: true},
		{Name: "clock", Status: api.OK, Detail: "another process is active"}:                      {},
		{Name: "clock", Status: api.Degraded, Detail: "Kafka does not answer; it is tried again"}: {Err: errors.New("Kafka does not answer")},
		{Name: "clock", Status: api.Degraded, Detail: "2 schedules wait for their keys; a fails; it is tried again"}: {Active: true,
			Delayed: map[string]error{"b": errors.New("b fails"), "a": errors.New("a fails")}},
	} {
		if got := checkClock(s); got != want {
			t.Errorf("%+v: %+v, want %+v", s, got, want)
		}
	}
}

// A schedule in a changed config ticks without a restart.
func TestAControllerFollowsTheConfig(t *testing.T) {
	t.Parallel()
	p, err := Open(t.Context(), Options{Embedded: &embedded.Options{}, OwnStreams: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	if _, err := p.Controller(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse("test", []byte("version: 1\nschedules: {often: {cron: '* * * * * *'}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.applyConfig(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	r, err := follow.OpenReader(t.Context(), p.Broker(), follow.ReaderOptions{Stream: tidemill.StreamEvents, Start: broker.Earliest()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close(context.WithoutCancel(t.Context())) }()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		events, err := r.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(events, func(e follow.Event) bool { return e.Type == tidemill.TypeScheduleTick }) {
			break
		}
	}
	ready := p.Ready(t.Context())
	if !slices.ContainsFunc(ready.Checks, func(c api.Check) bool { return c.Name == "clock" && c.Status == api.OK }) {
		t.Errorf("%+v", ready)
	}
}

// The active controller records the offsets of a group without members.
func TestAControllerRecordsGroups(t *testing.T) {
	t.Parallel()
	p, err := Open(t.Context(), Options{Embedded: &embedded.Options{}, OwnStreams: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	begun := make(chan struct{})
	c, err := p.Broker().Consumer(t.Context(), broker.ConsumerOptions{Group: "g", Streams: []string{tidemill.StreamEvents},
		Assigned: func(context.Context, []broker.Position) ([]broker.Position, error) { close(begun); return nil, nil }})
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Controller(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, err := follow.OpenReader(t.Context(), p.Broker(), follow.ReaderOptions{Stream: tidemill.StreamGroupOffsets, Start: broker.Earliest()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close(context.WithoutCancel(t.Context())) }()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for final := 0; final < 12; { // one record of each partition
		events, err := r.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if strings.Contains(string(e.Data), `"final":true`) {
				final++
			}
		}
	}
}

// The age of the newest champion is that of a recipe in the config. A recipe that was removed makes no model any more, so it must
// not be in the alert about stale models for ever.
func TestAgesOfRecipesInTheConfig(t *testing.T) {
	t.Parallel()
	w := newScoringWorld(t, "version: 1\nrecipes: {intent: {when: {type: a}, run: {dir: ., command: [train]}}}\n")
	w.promoteModel("intent/bot-1", 1, 0, twoLabels(true))
	w.must(w.openCensus(w.ctx()))
	recipes := func() (all []string) {
		families, err := w.telemetry.Registry().Gather()
		w.must(err)
		for _, f := range families {
			if f.GetName() == "tidemill_controller_newest_champion_timestamp_seconds" {
				for _, m := range f.GetMetric() {
					all = append(all, m.GetLabel()[0].GetValue())
				}
			}
		}
		return all
	}
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for ctx := w.ctx(); !slices.Equal(recipes(), []string{"intent"}); { // the ledger's list of models follows its facts
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatalf("the recipes with an age are %q", recipes())
		}
	}
	w.must(w.applyConfig(w.ctx(), parse(t, "version: 1\n")))
	if all := recipes(); len(all) > 0 {
		t.Errorf("after they were removed, %q have an age", all)
	}
}
