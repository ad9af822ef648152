package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/gateway/live"
	"tidemill.dev/triggers/commands"
)

const (
	liveEvery  = 250 * time.Millisecond // least time between two updates of a connection
	livePolls  = 2 * time.Second        // time between two comparisons of contents without a log
	liveTopics = 100                    // topics of one connection
)

// liveConnections are the open live connections, and the feed that they share. They are cheap next to tails: a
// connection holds a set of topics, and no events.
type liveConnections struct {
	seats
	hub     *live.Hub
	feed    lazyValue[*liveFeed]
	ended   *prometheus.CounterVec
	updates prometheus.Counter
}

func (g *Gateway) openLive() error {
	c := &g.live
	c.seats = seats{what: "live connections", most: g.opt.Limits.Live, own: g.opt.Limits.OwnLive, of: map[string]int{}}
	c.hub = live.NewHub()
	c.feed.open, c.feed.close = g.openFeed, func(ctx context.Context, f *liveFeed) error { return f.close(ctx) }
	c.ended = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_gateway_live_ended_total",
		Help: "Live connections that ended, by reason: end, gone, slow (cut off), refused (lost the right to read) or closing."}, []string{"reason"})
	for _, reason := range []string{tailEnded, tailGone, tailSlow, tailRefused, tailClosing} {
		c.ended.WithLabelValues(reason)
	}
	c.updates = prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemill_gateway_live_updates_total",
		Help: "Updates sent on live connections, without signs of life."})
	for _, m := range []prometheus.Collector{c.ended, c.updates,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tidemill_gateway_live", Help: "Live connections open now."}, c.count),
	} {
		if err := g.opt.Telemetry.Registry().Register(m); err != nil {
			return err
		}
	}
	return nil
}

// followTopics reports to a viewer which topics change, as server-sent events.
func (g *Gateway) followTopics(w http.ResponseWriter, r *request) *api.Problem {
	q, p := readLiveQuery(r)
	if p != nil {
		return p
	}
	if p := g.live.enter(r.callerName()); p != nil {
		return p
	}
	reason := tailGone
	defer func() {
		g.live.ended.WithLabelValues(reason).Inc()
		g.live.leave(r.callerName())
	}()
	ctx, release := g.untilEnding(r.Context())
	defer release()
	viewer := &topicViewer{tailReader: g.viewer(r)}
	if p := g.openViewer(ctx, r, viewer, q.topics); p != nil {
		return p
	}
	heard := g.live.hub.Listen(q.topics, q.known)
	defer heard.Close()
	out := newPatientWriter(w, g.opt.Limits.Write)
	last := out.endWith(ctx)
	defer last()
	beginEvents(w)
	err := heard.Run(ctx, live.Pace{Every: liveEvery, Alive: g.opt.Limits.Keepalive, First: g.opt.Limits.lookupTime()},
		func(changed, known live.Known) error {
			err := g.sendUpdate(ctx, out, viewer, changed, known)
			if err == nil && q.once {
				return io.EOF
			}
			return err
		})
	reason = g.whyLiveEnded(ctx, r, err)
	if reason == tailClosing || reason == tailRefused || reason == tailEnded {
		_ = out.write(context.WithoutCancel(ctx), fmt.Appendf(nil, "event: end\ndata: {\"reason\":%q}\n\n", reason)) // the reader may be gone
	}
	return nil
}

// openViewer opens the feed, and finds out which topics the viewer may see.
func (g *Gateway) openViewer(ctx context.Context, r *request, v *topicViewer, topics []string) *api.Problem {
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	if _, err := g.live.feed.get(ctx); err != nil {
		return g.followProblem(ctx, err, "the changes")
	}
	return g.findOwners(ctx, r, v, topics)
}

// sendUpdate sends the topics that changed and that the viewer may see, or a sign of life.
func (g *Gateway) sendUpdate(ctx context.Context, out *patientWriter, v *topicViewer, changed, known live.Known) error {
	if err := v.recheck(ctx); err != nil {
		return err
	}
	changed, known = v.seen(changed), v.seen(known)
	if len(changed) == 0 {
		return out.write(ctx, []byte(": keepalive\n\n"))
	}
	data, err := json.Marshal(changed)
	if err != nil {
		return err
	}
	g.live.updates.Inc()
	return out.write(ctx, fmt.Appendf(nil, "event: changed\nid: %s\ndata: %s\n\n", known.ID(), data))
}

// whyLiveEnded returns the reason why a live connection ended.
func (g *Gateway) whyLiveEnded(ctx context.Context, r *request, err error) string {
	switch {
	case err == io.EOF:
		return tailEnded
	case errors.Is(context.Cause(ctx), errClosing):
		return tailClosing
	case errors.Is(err, errRefused):
		g.log.Info("gateway: the viewer of a live connection lost the right to read; the connection ends", "by", r.loggedName(), "reason", err)
		return tailRefused
	case errors.Is(err, errSlow):
		return tailSlow
	}
	return tailGone
}

// liveQuery holds the parameters of a live connection.
type liveQuery struct {
	topics []string
	known  live.Known // versions that the viewer knows
	once   bool       // end after the first update
}

// readLiveQuery reads the parameters. The id in the header is newer than the id in the query, as for tails.
func readLiveQuery(r *request) (q liveQuery, p *api.Problem) {
	values, p := r.parseQuery([]string{"follow", "since", "topics"})
	if p != nil {
		return q, p
	}
	if q.topics, p = readTopics(values.Get("topics")); p != nil {
		return q, p
	}
	if q.once, p = readNoFollow(values); p != nil {
		return q, p
	}
	name, id := "since", values.Get("since")
	if header := r.Header.Get(lastEventID); header != "" {
		name, id = lastEventID, header
	}
	var err error
	if q.known, err = live.ParseID(id, q.topics); err != nil {
		return q, badParameter(name, err.Error())
	}
	return q, nil
}

func readTopics(list string) ([]string, *api.Problem) {
	topics := slices.DeleteFunc(strings.Split(list, ","), func(t string) bool { return t == "" })
	slices.Sort(topics)
	topics = slices.Compact(topics)
	if len(topics) == 0 || len(topics) > liveTopics {
		return nil, badParameter("topics", fmt.Sprintf("it names %d topics; name 1 to %d of %s, with commas between them", len(topics), liveTopics, live.Topics))
	}
	for _, topic := range topics {
		if err := live.Check(topic); err != nil {
			return nil, badParameter("topics", err.Error())
		}
	}
	return topics, nil
}

// topicViewer is the caller of a live connection.
type topicViewer struct {
	*tailReader
	owners map[string]string // keys that runs and models belong to, by topic; for a caller with limited keys
}

// findOwners finds the keys of runs and models if the caller has limited keys. A run or model that is not known
// belongs to no key.
func (g *Gateway) findOwners(ctx context.Context, r *request, v *topicViewer, topics []string) *api.Problem {
	if !r.caller.KeyLimits(access.Read) || g.opt.Ledger == nil {
		return nil
	}
	v.owners = map[string]string{}
	var runs, models []string
	for _, topic := range topics {
		switch kind, of := live.Cut(topic); kind {
		case "run":
			runs = append(runs, of)
		case "model":
			models = append(models, of)
		}
	}
	foundRuns, err := g.opt.Ledger.RunsOf(ctx, runs)
	if err != nil {
		return g.ledgerProblem(ctx, err)
	}
	for id, run := range foundRuns {
		v.owners["run:"+id] = ownerOf(run)
	}
	foundModels, err := g.opt.Ledger.ModelsOf(ctx, models)
	if err != nil {
		return g.ledgerProblem(ctx, err)
	}
	for name, m := range foundModels {
		v.owners["model:"+name] = tidemill.OwnerOf(m.Recipe, m.Key)
	}
	return nil
}

// seen returns the versions of the topics that the viewer may see.
func (v *topicViewer) seen(all live.Known) live.Known {
	if v.caller.AllKeys(access.Read) {
		return all
	}
	all = maps.Clone(all)
	maps.DeleteFunc(all, func(topic string, _ live.Version) bool { return !v.maySeeTopic(topic) })
	return all
}

// maySeeTopic reports whether the viewer may learn that a topic changed. The topics without a key are for all readers,
// because a version says nothing about keys.
func (v *topicViewer) maySeeTopic(topic string) bool {
	switch kind, of := live.Cut(topic); kind {
	case "key":
		return v.caller.MayTouch(access.Read, of)
	case "run", "model":
		return v.caller.MayTouch(access.Read, v.owners[topic])
	}
	return true
}

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
