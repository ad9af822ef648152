package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/gateway/live"
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
		g.log.Info("gateway: the viewer of a live connection lost the right to read; the connection ends", "by", r.callerName(), "reason", err)
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
