package deliver

import (
	"maps"
	"reflect"

	"tidemill.dev/config"
)

// senderOf is who sends a trigger's events.
func (d *Dispatcher) senderOf(trigger string) *sender {
	if s := (*d.senders.Load())[trigger]; s != nil {
		return s
	}
	return d.undertaker
}

// targets are where each trigger's events go. A trigger that has not changed
// keeps its connections. Called with the lock held.
func (d *Dispatcher) targets(c *config.Config) (map[string]*target, error) {
	known := *d.senders.Load()
	all := make(map[string]*target, len(c.Triggers))
	for _, t := range c.Triggers {
		if s := known[t.Name]; s != nil && reflect.DeepEqual(s.to.Load().trigger, t) {
			all[t.Name] = s.to.Load()
			continue
		}
		to, err := newSubscriber(t, subscriberOptions{Resolve: d.o.Resolve, Bearer: d.o.Bearer, Version: d.o.Version, Tracer: d.o.Tracer})
		if err != nil {
			return nil, err
		}
		all[t.Name] = &target{subscriber: to, trigger: t}
	}
	return all, nil
}

// aim gives each trigger its target, and returns the senders of those that are
// gone. Called with the lock held.
func (d *Dispatcher) aim(targets map[string]*target) []*sender {
	known := *d.senders.Load()
	next := make(map[string]*sender, len(targets))
	for name, to := range targets {
		s := known[name]
		if s == nil {
			s = newSender(d, name, to)
			s.latency = d.counts.latencyOf(name)
		} else if s.to.Load() != to {
			s.aim(to)
		}
		next[name] = s
	}
	d.senders.Store(&next)
	var gone []*sender
	for name, s := range maps.All(known) {
		if next[name] == nil {
			gone = append(gone, s)
		}
	}
	return gone
}

// dismiss ends senders whose triggers are gone. What waits with them becomes
// dead letters.
func (d *Dispatcher) dismiss(gone []*sender) {
	for _, s := range gone {
		for _, i := range s.end() {
			d.send(i)
		}
		if to := s.to.Load(); to.subscriber != nil {
			to.subscriber.close()
		}
		d.counts.forget(s.name)
	}
}

// shares divides the triggers' rates among the dispatchers: each has as much of
// a rate as it has of the partitions.
func (d *Dispatcher) shares() { poke(d.mend) }

// share reckons them anew. Called with the lock held.
func (d *Dispatcher) share() {
	ours, all := map[string]int{}, map[string]int{}
	for stream, p := range d.plans {
		l := d.lanes[stream]
		if l == nil {
			continue
		}
		n := len(l.all())
		for _, name := range p.triggers {
			ours[name] += n
			all[name] += max(l.stream.Partitions, n)
		}
	}
	for name, s := range *d.senders.Load() {
		if all[name] > 0 && ours[name] > 0 {
			s.setShare(float64(ours[name]) / float64(all[name]))
		}
	}
}
