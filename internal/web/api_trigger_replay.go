package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/acts"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/tail"
)

// replayTrigger asks that a trigger gets a past range of its events again. The
// range is offsets from now on, so that it means the same whenever it is read.
func (g *Gateway) replayTrigger(w http.ResponseWriter, r *request) *api.Problem {
	name, p := g.triggerToChange(r)
	if p != nil {
		return p
	}
	var ask api.ReplayAsk
	if p := g.readAsk(r, &ask); p != nil {
		return p
	}
	if p := badRate(ask.Rate); p != nil {
		return p
	}
	c := g.opt.Config()
	trigger, ok := c.Trigger(name)
	if !ok {
		return unknownTrigger(name)
	}
	ranges, p := g.rangesOf(r.Context(), c.StreamsOf(trigger), ask)
	if p != nil {
		return p
	}
	done := api.ReplayDone{Range: stretchesOf(ranges), Records: recordsIn(ranges), DryRun: ask.DryRun}
	if ask.DryRun {
		done.Preview, p = g.preview(r.Context(), c, trigger, ranges)
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
		return nil // there is nothing to ask for
	}
	f, p := g.asked(r.Context())
	if p != nil {
		return p
	}
	if same := underWay(f, replay); same != nil {
		done.ID, done.Position = same.ID, &api.Position{Stream: tidemill.StreamActs, Offset: same.Offset}
		return nil
	}
	v, err := g.author(r).Replay(replay)
	if err != nil {
		g.log.Error("an act cannot be written", "trigger", replay.Trigger, "reason", err)
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

// underWay finds a replay of the same range that has not ended: whoever asks
// again because he got no answer asks for that one.
func underWay(f *acts.Follower, replay tidemill.Replay) *tidemill.Replay {
	for _, r := range f.Now().Replays() {
		if r.Trigger == replay.Trigger && slices.Equal(stretchesOf(r.Streams), stretchesOf(replay.Streams)) {
			return &r
		}
	}
	return nil
}

// rangesOf turns words into offsets.
func (g *Gateway) rangesOf(ctx context.Context, streams []string, ask api.ReplayAsk) (map[string][]tidemill.Range, *api.Problem) {
	now := time.Now()
	if ask.From == "" {
		return nil, badParameter("from", "say from where: beginning, an offset, a time ago such as -1h, or a time such as 2026-01-31T15:04:05Z")
	}
	from, err := tail.ParseFrom(ask.From, now)
	if err != nil {
		return nil, badParameter("from", err.Error())
	}
	to, err := tail.ParseFrom(orElse(ask.To, "end"), now)
	if err != nil {
		return nil, badParameter("to", err.Error())
	}
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	ranges := map[string][]tidemill.Range{}
	for _, stream := range streams {
		found, err := g.rangesIn(ctx, stream, from, to)
		if err != nil {
			return nil, g.unseen(ctx, fmt.Errorf("find the range of a replay: %w", err))
		}
		if len(found) > 0 {
			ranges[stream] = found
		}
	}
	return ranges, nil
}

// rangesIn leaves out partitions of which nothing is to be replayed. Nothing
// lies below the log's start any more.
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

// stretchesOf are ranges in the order of streams and partitions.
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
	previewBytes = 2 << 20 // that it reads at a time
)

// preview looks what a replay would deliver, for as long as there is time.
func (g *Gateway) preview(ctx context.Context, c *config.Config, t config.Trigger, ranges map[string][]tidemill.Range) (*api.Preview, *api.Problem) {
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	p, err := newPreview(c, t, ranges)
	if err == nil {
		err = p.read(ctx, g.opt.Broker)
	}
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return nil, g.unseen(ctx, fmt.Errorf("preview a replay: %w", err))
	}
	return p.seen, nil
}
