package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
	"tidemill.dev/config"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/ops/status"
	"tidemill.dev/triggers/commands"
	"tidemill.dev/triggers/deadletters"
	"tidemill.dev/triggers/filter"
)

// triggerLook holds the state of the triggers. After a failed lookup a number is unknown and never
// shown as zero.
type triggerLook struct {
	config  *config.Config
	acts    *commands.State
	whole   *status.Whole  // nil if unknown
	letters map[string]int // open dead letters by trigger; nil if unknown
}

// listTriggers answers with all triggers of the config.
func (g *Gateway) listTriggers(w http.ResponseWriter, r *request) *api.Problem {
	look, p := g.lookAtTriggers(r.Context())
	if p != nil {
		return p
	}
	all := api.Triggers{Triggers: []api.Trigger{}}
	if look.whole != nil {
		all.Dispatchers = &look.whole.Dispatchers
	}
	for i := range look.config.Triggers {
		all.Triggers = append(all.Triggers, look.stateOf(&look.config.Triggers[i], r.caller.AllKeys(access.Read)))
	}
	writeJSON(w, http.StatusOK, all)
	return nil
}

// showTrigger answers with one trigger.
func (g *Gateway) showTrigger(w http.ResponseWriter, r *request) *api.Problem {
	t, ok := g.opt.Config().Trigger(r.value)
	if !ok {
		return g.unknownTrigger(r.value)
	}
	look, p := g.lookAtTriggers(r.Context())
	if p != nil {
		return p
	}
	writeJSON(w, http.StatusOK, look.stateOf(&t, r.caller.AllKeys(access.Read)))
	return nil
}

func (g *Gateway) lookAtTriggers(ctx context.Context) (*triggerLook, *api.Problem) {
	f, p := g.commandLog(ctx)
	if p != nil {
		return nil, p
	}
	look := &triggerLook{config: g.opt.Config(), acts: f.Now()}
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.lookupTime())
	defer cancel()
	if book, err := g.desk.book.get(ctx); err == nil {
		look.letters = book.Counts()
	}
	whole, err := g.opt.Standing.Read(ctx)
	switch {
	case err == nil:
		look.whole = &whole
	case !errors.Is(err, status.ErrNoRedis):
		g.log.Debug("gateway: reading the numbers of triggers failed; the answer has none", "reason", err)
	}
	return look, nil
}

// stateOf returns the state of one trigger. An error of a delivery may name the key of its event, so only a caller
// that may see all keys gets errors.
func (l *triggerLook) stateOf(t *config.Trigger, all bool) api.Trigger {
	shown := api.Trigger{Name: t.Name, When: []api.When{}, To: targetOf(t.To), Streams: append([]string{}, l.config.StreamsOf(*t)...),
		Delivery: deliveryOf(&t.Delivery), State: api.TriggerActive, Replays: []api.TriggerReplay{}}
	for _, w := range t.When {
		shown.When = append(shown.When, whenOf(&w))
	}
	if l.letters != nil {
		shown.DeadLetters = new(l.letters[t.Name])
	}
	l.addCounts(t.Name, &shown, all)
	if pause, rests := l.acts.TriggerPause(t.Name); rests {
		shown.State, shown.PausedBy, shown.PausedSince = api.TriggerPaused, pause.By, &pause.Since
	}
	for _, r := range l.acts.Replays() {
		if r.Trigger == t.Name {
			shown.Replays = append(shown.Replays, api.TriggerReplay{ID: r.ID, By: r.By, At: r.At, From: r.From, To: r.To, Rate: r.Rate, Range: stretchesOf(r.Streams)})
		}
	}
	return shown
}

// addCounts adds the numbers of the dispatchers. A trigger is starting while dispatchers exist but
// no dispatcher reports the trigger.
func (l *triggerLook) addCounts(name string, shown *api.Trigger, all bool) {
	if l.whole == nil || l.whole.Dispatchers == 0 {
		return
	}
	n, known := l.whole.Triggers[name]
	if !known || n.Starting {
		shown.State = api.TriggerStarting
	}
	shown.Numbers = &api.TriggerNumbers{Delivered: n.Delivered, Failed: n.Failed, DeadLettered: n.DeadLettered, Replies: n.Replies, Ignored: n.Ignored,
		InFlight: n.InFlight, Parked: n.Parked, OldestParked: timeOrNull(n.OldestParked)}
	if all {
		shown.Waits, shown.LastError, shown.LastErrorAt = n.Waits, n.LastError, timeOrNull(n.LastErrorAt)
	}
}

func timeOrNull(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	return &at
}

func targetOf(t config.Target) api.Target {
	return api.Target{URL: deadletters.WithoutSecrets(t.URL), Service: t.Service, Function: t.Function}
}

func deliveryOf(d *config.Delivery) api.Delivery {
	shown := api.Delivery{Attempts: d.Attempts, Backoff: string(d.Backoff.Kind), TimeoutSeconds: d.Timeout.Seconds(), Order: "none",
		Concurrency: d.Concurrency, Rate: d.Rate, Replies: "ignore"}
	if d.Ordered {
		shown.Order = "key"
	}
	if d.Replies.Accept {
		shown.Replies, shown.ReplyTypes, shown.ReplyKeys = "accept", d.Replies.Types, "same"
		if d.Replies.AnyKey {
			shown.ReplyKeys = "any"
		}
	}
	return shown
}

// pauseTrigger pauses a trigger, so that its events wait.
func (g *Gateway) pauseTrigger(w http.ResponseWriter, r *request) *api.Problem {
	return g.setPaused(w, r, true, commands.Author.PauseTrigger)
}

// resumeTrigger ends the pause of a trigger.
func (g *Gateway) resumeTrigger(w http.ResponseWriter, r *request) *api.Problem {
	return g.setPaused(w, r, false, commands.Author.ResumeTrigger)
}

func (g *Gateway) setPaused(w http.ResponseWriter, r *request, paused bool, act func(commands.Author, string) broker.View) *api.Problem {
	hangUp(w, r) // the request needs no body
	t, p := g.triggerToChange(r)
	if p != nil {
		return p
	}
	f, p := g.currentCommands(r.Context())
	if p != nil {
		return p
	}
	done := api.TriggerDone{Changed: f.Now().TriggerPaused(t) != paused}
	if done.Changed {
		v := act(g.commandAuthor(r), t)
		at, p := g.publishAct(r, &v)
		if p != nil {
			return p
		}
		done.Position = new(positionOf(at))
		g.untilRead(r.Context(), f, at)
	}
	look, p := g.lookAtTriggers(r.Context())
	if p != nil {
		return p
	}
	now, _ := look.config.Trigger(t) // if the trigger was removed meanwhile, the answer has fewer details
	done.Trigger = look.stateOf(&now, r.caller.AllKeys(access.Read))
	writeJSON(w, http.StatusOK, done)
	return nil
}

// triggerToChange returns the trigger in the path if the caller has the role operate for all keys,
// because a change affects the events of every key.
func (g *Gateway) triggerToChange(r *request) (string, *api.Problem) {
	if _, ok := g.opt.Config().Trigger(r.value); !ok {
		return "", g.unknownTrigger(r.value)
	}
	if !r.caller.AllKeys(access.Operate) {
		return "", forbidden("a trigger is for all keys, and you may operate only on some: use a token for all keys")
	}
	return r.value, nil
}

// untilRead waits briefly until a published command has been read, so that the caller sees the
// effect.
func (g *Gateway) untilRead(ctx context.Context, f *commands.Follower, at broker.Position) {
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	for {
		changed := f.Changed()
		if f.Now().Next() > at.Offset {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// replayTrigger requests that a trigger receive a past range of its events again. The command has
// the range as offsets, so that its meaning does not change later.
func (g *Gateway) replayTrigger(w http.ResponseWriter, r *request) *api.Problem {
	name, p := g.triggerToChange(r)
	if p != nil {
		return p
	}
	var ask api.ReplayAsk
	if p := g.readCommand(r, &ask); p != nil {
		return p
	}
	if p := badRate(ask.Rate); p != nil {
		return p
	}
	c := g.opt.Config()
	trigger, ok := c.Trigger(name)
	if !ok {
		return g.unknownTrigger(name)
	}
	ranges, p := g.rangesOf(r.Context(), c.StreamsOf(trigger), ask)
	if p != nil {
		return p
	}
	done := api.ReplayDone{Range: stretchesOf(ranges), Records: recordsIn(ranges), DryRun: ask.DryRun}
	if ask.DryRun {
		done.Preview, p = g.previewReplay(r.Context(), c, trigger, ranges)
	} else {
		p = g.askReplayOf(r, tidemill.Replay{Trigger: name, Streams: ranges, Rate: ask.Rate, From: ask.From, To: orElse(ask.To, "end")}, &done)
	}
	if p != nil {
		return p
	}
	writeJSON(w, http.StatusOK, done)
	return nil
}

func (g *Gateway) askReplayOf(r *request, replay tidemill.Replay, done *api.ReplayDone) *api.Problem {
	if done.Records == 0 {
		return nil // the range is empty
	}
	f, p := g.currentCommands(r.Context())
	if p != nil {
		return p
	}
	if same := underWay(f, replay); same != nil {
		done.ID, done.Position = same.ID, &api.Position{Stream: tidemill.StreamCommands, Offset: same.Offset}
		return nil
	}
	v, err := g.commandAuthor(r).Replay(replay)
	if err != nil {
		g.log.Error("gateway: encoding a command failed; the caller gets a 500", "trigger", replay.Trigger, "reason", err)
		return internalFault()
	}
	at, p := g.publishAct(r, &v)
	if p != nil {
		return p
	}
	done.ID, done.Position = v.ID, new(positionOf(at))
	g.untilRead(r.Context(), f, at)
	return nil
}

// underWay finds a replay of the same range that has not ended. A caller that got no answer and
// repeats the request gets this replay.
func underWay(f *commands.Follower, replay tidemill.Replay) *tidemill.Replay {
	for _, r := range f.Now().Replays() {
		if r.Trigger == replay.Trigger && slices.Equal(stretchesOf(r.Streams), stretchesOf(replay.Streams)) {
			return &r
		}
	}
	return nil
}

// rangesOf converts the times and offsets in a request into ranges of offsets.
func (g *Gateway) rangesOf(ctx context.Context, streams []string, ask api.ReplayAsk) (map[string][]tidemill.Range, *api.Problem) {
	now := time.Now()
	if ask.From == "" {
		return nil, badParameter("from", "give the start: beginning, an offset, a time ago such as -1h, or a time such as 2026-01-31T15:04:05Z")
	}
	from, err := follow.ParseFrom(ask.From, now)
	if err != nil {
		return nil, badParameter("from", err.Error())
	}
	to, err := follow.ParseFrom(orElse(ask.To, "end"), now)
	if err != nil {
		return nil, badParameter("to", err.Error())
	}
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	ranges := map[string][]tidemill.Range{}
	for _, stream := range streams {
		found, err := g.rangesIn(ctx, stream, from, to)
		if err != nil {
			return nil, g.kafkaProblem(ctx, fmt.Errorf("find the range of a replay: %w", err))
		}
		if len(found) > 0 {
			ranges[stream] = found
		}
	}
	return ranges, nil
}

// rangesIn returns the ranges of a stream, without empty partitions. A range does not begin before
// the log's start.
func (g *Gateway) rangesIn(ctx context.Context, stream string, from, to broker.Start) (ranges []tidemill.Range, err error) {
	at := [3][]broker.Position{}
	for i, start := range []broker.Start{broker.Earliest(), from, to} {
		if at[i], err = g.opt.Broker.Places(ctx, stream, start); err != nil {
			return nil, err
		}
	}
	for i := range min(len(at[0]), len(at[1]), len(at[2])) {
		r := tidemill.Range{Partition: at[0][i].Partition, From: max(at[0][i].Offset, at[1][i].Offset), To: at[2][i].Offset}
		if r.From < r.To {
			ranges = append(ranges, r)
		}
	}
	return ranges, nil
}

func recordsIn(ranges map[string][]tidemill.Range) (n int64) {
	for _, all := range ranges {
		for _, r := range all {
			n += r.To - r.From
		}
	}
	return n
}

// stretchesOf returns ranges, sorted by stream and partition.
func stretchesOf(ranges map[string][]tidemill.Range) []api.Stretch {
	all := []api.Stretch{}
	for stream, of := range ranges {
		for _, r := range of {
			all = append(all, api.Stretch{Stream: stream, Partition: r.Partition, From: r.From, To: r.To})
		}
	}
	slices.SortFunc(all, func(a, b api.Stretch) int {
		return cmp.Or(cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Partition, b.Partition))
	})
	return all
}

const (
	previewFirst = 5       // events that a preview shows
	previewBytes = 2 << 20 // bytes that a preview reads at a time
)

// previewReplay counts the events that a replay would deliver, until the time is up.
func (g *Gateway) previewReplay(ctx context.Context, c *config.Config, t config.Trigger, ranges map[string][]tidemill.Range) (*api.Preview, *api.Problem) {
	asked, problem := g.currentCommands(ctx)
	if problem != nil {
		return nil, problem
	}
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	p, err := newPreview(c, t, ranges)
	if err == nil {
		p.asked = asked
		err = p.readRanges(ctx, g.opt.Broker)
	}
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return nil, g.kafkaProblem(ctx, fmt.Errorf("preview a replay: %w", err))
	}
	return p.seen, nil
}

// replayPreview counts the events in some ranges that a trigger matches. Events of forgotten keys do not count, because a
// replay does not deliver them.
type replayPreview struct {
	ranges map[string][]tidemill.Range
	asked  *commands.Follower
	rules  map[string]*filter.Index // rules by stream: a condition applies only to the streams of its types
	seen   *api.Preview
	found  []int
}

func newPreview(c *config.Config, t config.Trigger, ranges map[string][]tidemill.Range) (*replayPreview, error) {
	p := &replayPreview{ranges: ranges, rules: map[string]*filter.Index{}, seen: &api.Preview{First: []api.Tailed{}}}
	of := map[string][]filter.Rule{}
	for _, w := range t.When {
		rule := filter.Rule{Types: w.Types}
		if w.Where != "" {
			where, err := filter.Compile(w.Where)
			if err != nil {
				return nil, fmt.Errorf("trigger %s: %w", t.Name, err)
			}
			rule.Where = where
		}
		for _, stream := range c.StreamsOf(config.Trigger{When: []config.When{w}}) {
			of[stream] = append(of[stream], rule)
		}
	}
	for stream, rules := range of {
		p.rules[stream] = filter.NewIndex(rules)
	}
	return p, nil
}

// readRanges reads the ranges one after the other until the time is up.
func (p *replayPreview) readRanges(ctx context.Context, b *broker.Broker) error {
	for _, stream := range slices.Sorted(maps.Keys(p.ranges)) {
		id, err := b.TopicID(ctx, stream)
		if err != nil {
			return err
		}
		for _, r := range p.ranges[stream] {
			if err := p.readRange(ctx, b, stream, r, commands.TopicID(id)); err != nil {
				return err
			}
		}
	}
	p.seen.Complete = true
	return nil
}

func (p *replayPreview) readRange(ctx context.Context, b *broker.Broker, stream string, r tidemill.Range, id commands.TopicID) error {
	for at := r.From; at < r.To; {
		from := broker.Position{Stream: stream, Partition: r.Partition, Offset: at}
		var unknown error
		next, err := b.Read(ctx, from, previewBytes, func(e *broker.Incoming) bool {
			if e.Offset < r.To {
				from.Offset = e.Offset
				unknown = p.take(ctx, from, e, id)
			}
			return e.Offset < r.To && unknown == nil
		})
		if err := cmp.Or(err, unknown); err != nil {
			return err
		}
		if next == at {
			return nil // the rest of the log has no events
		}
		at = next
	}
	return nil
}

func (p *replayPreview) take(ctx context.Context, at broker.Position, e *broker.Incoming, id commands.TopicID) error {
	p.seen.Read++
	if e.Err != nil {
		return nil
	}
	p.found = p.rules[at.Stream].Match(&e.View, p.found[:0])
	if len(p.found) == 0 {
		return nil
	}
	if passed, err := p.asked.EventPassed(ctx, &e.View, at, id); passed || err != nil {
		return err
	}
	p.seen.Matched++
	if len(p.seen.First) < previewFirst {
		p.seen.First = append(p.seen.First, api.Tailed{Partition: at.Partition, Offset: e.Offset, Received: e.Time.UTC(), Event: json.RawMessage(broker.MarshalStructured(&e.View))})
	}
	return nil
}

func whenOf(w *config.When) api.When {
	return api.When{Stream: w.Stream, Types: append([]string{}, w.Types...), Where: w.Where}
}
