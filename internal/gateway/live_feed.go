package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
	"tidemill.dev/internal/gateway/live"
	"tidemill.dev/triggers/commands"
)

// liveFeed reports changes to the hub. A gateway has one, whatever the number of viewers. It is opened when the first
// viewer comes, and then stays open.
type liveFeed struct {
	g       *Gateway
	facts   *follow.Follower // nil without runs
	life    context.Context  // ends when the feed closes
	stop    context.CancelFunc
	running sync.WaitGroup
}

func (g *Gateway) openFeed(ctx context.Context) (_ *liveFeed, err error) {
	f := &liveFeed{g: g}
	f.life, f.stop = context.WithCancel(context.Background())
	acts, err := g.desk.acts.get(ctx)
	if err == nil && g.opt.Ledger != nil {
		err = f.followFacts(ctx)
	}
	if err != nil {
		f.stop()
		if f.facts != nil {
			err = errors.Join(err, f.facts.Close(context.WithoutCancel(ctx)))
		}
		return nil, err
	}
	f.running.Go(func() { f.followCommands(acts) })
	f.running.Go(func() { g.live.hub.Poll(f.life, livePolls, g.contentOf) })
	return f, nil
}

// followFacts begins to read the facts at their end. The ledger must have the facts before: a viewer may have read a
// page without them.
func (f *liveFeed) followFacts(ctx context.Context) (err error) {
	f.facts, err = follow.Open(ctx, f.g.opt.Broker, follow.Options{Stream: tidemill.StreamFacts, Logger: f.g.log, Latest: true, Take: f.takeFacts})
	if err != nil {
		return err
	}
	ends, err := f.g.opt.Broker.Ends(ctx, tidemill.StreamFacts)
	if err != nil {
		return err
	}
	place := follow.Place{}
	for _, end := range ends {
		if err := f.g.opt.Ledger.AwaitFolded(ctx, end.Partition, end.Offset); err != nil {
			return err
		}
		place.Set(end.Partition, end.Offset)
	}
	f.g.live.hub.Begin(place)
	return nil
}

// takeFacts waits until the ledger has the facts. Otherwise a viewer would read the old state again, and nothing would
// tell it of the new state. The consumer bounds the memory of the facts that wait.
func (f *liveFeed) takeFacts(d *broker.Delivery) {
	for i := range d.Events {
		e := &d.Events[i]
		if f.g.opt.Ledger.AwaitFolded(f.life, d.Partition, e.Offset+1) != nil {
			return // the feed or the ledger closes
		}
		if e.Err != nil {
			f.g.live.hub.Lost(d.Partition, e.Offset+1)
			continue
		}
		f.g.live.hub.Fact(d.Partition, e.Offset+1, live.OfFact(&e.View))
	}
}

// followCommands keeps the version of the commands until the feed closes.
func (f *liveFeed) followCommands(acts *commands.Follower) {
	for {
		changed := acts.Changed()
		f.g.live.hub.Set(live.Commands, live.VersionOf(strconv.AppendInt(nil, acts.Now().Next(), 10)))
		select {
		case <-changed:
		case <-f.life.Done():
			return
		}
	}
}

func (f *liveFeed) close(ctx context.Context) error {
	f.stop()
	f.running.Wait()
	if f.facts == nil {
		return nil
	}
	return f.facts.Close(ctx)
}

// contentOf returns the version of the API's answer about a topic. An error is a content too.
func (g *Gateway) contentOf(ctx context.Context, topic string) live.Version {
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	asked, err := http.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	if err != nil {
		return live.VersionOf([]byte(err.Error()))
	}
	var answer contentWriter
	if kind, run := live.Cut(topic); kind == "run" {
		return g.progressOf(ctx, run)
	}
	if p := g.contentHandler(topic)(&answer, &request{Request: asked, caller: g.everyone}); p != nil {
		fmt.Fprint(&answer, p.Type, p.Detail)
	}
	if topic == live.Data {
		g.addDataPlace(ctx, &answer)
	}
	return live.VersionOf(answer.Bytes())
}

// progressOf returns the version of a run's newest progress.
func (g *Gateway) progressOf(ctx context.Context, run string) live.Version {
	if g.opt.Ledger == nil {
		return live.VersionOf(nil)
	}
	told, err := g.opt.Ledger.Told(ctx, []string{run})
	if err != nil {
		return live.VersionOf([]byte("unknown")) // an error's text may differ each time
	}
	return live.VersionOf(told[run])
}

// contentHandler returns the handler whose answer is the content of a topic.
func (g *Gateway) contentHandler(topic string) func(http.ResponseWriter, *request) *api.Problem {
	switch topic {
	case live.Streams:
		return g.listStreams
	case live.Triggers:
		return g.listTriggers
	case live.Scorers:
		return g.listScorers
	case live.Trials:
		return g.listTrials
	case live.Rollouts:
		return g.listRollouts
	case live.Pools:
		return g.listPools
	case live.Schedules:
		return g.listSchedules
	case live.DeadLetters:
		return g.listLetters
	case live.Data:
		return g.listDatasets
	}
	return func(w http.ResponseWriter, _ *request) *api.Problem {
		state := g.checkState()
		for i := range state.Checks {
			if c := &state.Checks[i]; c.Status == api.OK {
				c.Detail = "" // it may have a number that always changes, such as the free bytes of a disk
			}
		}
		writeJSON(w, http.StatusOK, state)
		return nil
	}
}

// addDataPlace adds the ends of the stream with the events new-data, because the list of datasets does not have their
// commits.
func (g *Gateway) addDataPlace(ctx context.Context, to *contentWriter) {
	infos, err := g.survey.current(ctx)
	if err != nil {
		fmt.Fprint(to, err)
		return
	}
	stream := g.opt.Config().StreamFor(tidemill.TypeNewData)
	for i := range infos {
		if infos[i].Name == stream {
			fmt.Fprint(to, infos[i].Partitions)
		}
	}
}

// contentWriter collects the body of an answer.
type contentWriter struct{ bytes.Buffer }

func (*contentWriter) Header() http.Header { return http.Header{} }
func (*contentWriter) WriteHeader(int)     {}
