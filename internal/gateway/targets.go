package gateway

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
)

// plan is a config as publishing asks it: made once for each config that
// applies, and read by every request.
type plan struct {
	config  *config.Config
	streams map[string]*target // that can be published to
	types   map[string]*target // the streams that claim them
	rest    *target            // home of every other type
	names   []string           // of the streams, for who asks for another
}

// target is a stream to publish to.
type target struct {
	*outlet
	stream string
	dedupe time.Duration // how long an event's repeats are recognised; 0 is not at all
}

// plan is that of the config that applies now.
func (g *Gateway) plan() *plan {
	c := g.opt.Config()
	if p := g.planned.Load(); p != nil && p.config == c {
		return p
	}
	p := &plan{config: c, streams: map[string]*target{}, types: map[string]*target{}}
	for _, s := range c.Streams {
		if ownStream(s.Name) {
			continue
		}
		t := &target{outlet: g.outlet(s.Name), stream: s.Name, dedupe: s.Dedupe}
		p.streams[s.Name] = t
		p.names = append(p.names, s.Name)
		for _, typ := range s.Types {
			p.types[typ] = t
		}
	}
	p.rest = p.streams[tidemill.StreamEvents]
	g.planned.Store(p)
	return p
}

// ownStream tells the streams that only Tidemill writes to.
func ownStream(name string) bool {
	switch name {
	case tidemill.StreamFacts, tidemill.StreamProgress, tidemill.StreamDeadLetters, tidemill.StreamCommands, tidemill.StreamClock:
		return true
	}
	_, parked := tidemill.CutParked(name)
	return parked
}

// home is where events of a type go that name no stream.
func (p *plan) home(typ string) *target {
	if t := p.types[typ]; t != nil {
		return t
	}
	return p.rest
}

// outlet is what the gateway keeps about a stream from one config to the next.
type outlet struct {
	*lane
	stored, repeated, refused, failed prometheus.Counter // its events
	quiet                             atomic.Int64       // no failure is logged until then, in Unix seconds
}

// outlets are the outlets by stream.
type outlets struct {
	mu sync.Mutex
	of map[string]*outlet
}

// outlet returns a stream's, made on first use.
func (g *Gateway) outlet(stream string) *outlet {
	g.outlets.mu.Lock()
	defer g.outlets.mu.Unlock()
	o := g.outlets.of[stream]
	if o == nil {
		event := func(outcome string) prometheus.Counter { return g.metrics.events.WithLabelValues(stream, outcome) }
		o = &outlet{lane: g.window.open(), stored: event("stored"), repeated: event("repeated"),
			refused: event("refused"), failed: event("failed")}
		g.outlets.of[stream] = o
	}
	return o
}

// refused counts an event that was not sent; to is nil where no stream could
// be told.
func (g *Gateway) refused(to *target) {
	if to == nil {
		g.metrics.homeless.Inc()
		return
	}
	to.refused.Inc()
}

const quietSeconds = 30

// told notes how Kafka answered an event. That a stream fails is logged now and
// then, and not for every event of an outage.
func (t *target) told(log *slog.Logger, err error) {
	switch {
	case err == nil:
		t.stored.Inc()
		return
	case ofTheEvent(err):
		t.refused.Inc()
		return
	}
	t.failed.Inc()
	now, quiet := time.Now().Unix(), t.quiet.Load()
	if now >= quiet && t.quiet.CompareAndSwap(quiet, now+quietSeconds) {
		log.Warn("events are not stored; their publishers are told to try again", "stream", t.stream, "reason", err)
	}
}

// ofTheEvent tells whether an event failed by what it is: no other does for
// that, and trying it again would not help.
func ofTheEvent(err error) bool {
	return errors.Is(err, broker.ErrTooLarge) || attributeOf(err) != ""
}
