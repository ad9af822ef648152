package web

import (
	"time"

	"tidemill.dev"
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
	case tidemill.StreamFacts, tidemill.StreamProgress, tidemill.StreamDeadLetters, tidemill.StreamActs, tidemill.StreamClock:
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
