package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// guestKeys are the keys of the events on the stream side. The filter of the trigger guest matches the first half of them.
const guestKeys = 6

func guestKey(n int) string { return fmt.Sprint([]string{"guest-", "other-"}[n%2], n) }

// welcome plans for one of six worlds that the config has two triggers more. They read the stream side, which gets a partition
// more with each change. The trigger guest comes and goes with the changes. The last config has it.
func (p *plan) welcome(r *rand.Rand) {
	if r.IntN(6) > 0 || p.judging.rollout != "" || !isOn("config") {
		return
	}
	p.guests = true
	for range 2 + r.IntN(4) {
		p.faults = append(p.faults, fault{at: time.Duration(r.Int64N(int64(p.load) * 2 / 3)), kind: "config"})
	}
}

// guestConfig returns the stream and the triggers of a generation of the config.
func (p *plan) guestConfig(subscriber string, generation int) (streams, triggers string) {
	if !p.guests {
		return "", ""
	}
	last := 0
	for _, f := range p.faults {
		if f.kind == "config" {
			last++
		}
	}
	one := func(name, where string) string {
		return fmt.Sprintf("  %s:\n    when: {type: side%s}\n    to: {url: \"http://%s/%s\"}\n    delivery: {replies: ignore, order: none, attempts: %d}\n",
			name, where, subscriber, name, p.attempts)
	}
	triggers = one("side", "")
	if (last-generation)%2 == 0 {
		triggers += one("guest", `, where: "subject LIKE 'guest-%'"`)
	}
	return fmt.Sprintf("  side: {partitions: %d, retention: 60d, order: none, types: [side]}\n", 1+generation), triggers
}

// publishSide publishes the events of the stream side.
func (b *publishers) publishSide() {
	r := random(b.w.p.seed, "publisher of side")
	clients, done := b.clients()
	defer done()
	until := time.Now().Add(b.w.p.load)
	for n := 0; time.Now().Before(until); n++ {
		b.post(&post{id: fmt.Sprint("side-", n), typ: "side", key: guestKey(r.IntN(guestKeys)), body: "{}"}, clients, r.IntN(len(clients)))
		time.Sleep(time.Duration(r.Int64N(int64(600 * time.Millisecond))))
	}
}

// welcomed checks that the trigger side got all events of its stream, and the trigger guest those that its filter matches. It must
// have those that were stored after all dispatchers had the last config, and may have others.
func (o *oracle) welcomed() (all []string) {
	if !o.w.p.guests {
		return nil
	}
	took := map[string]bool{} // by path and id
	since, isKnown := o.w.lastConfigSince()
	for _, r := range o.w.sub.took {
		took[r.path+" "+r.id] = true
		if r.path == "/guest" && !strings.HasPrefix(r.key, "guest-") {
			all = append(all, fmt.Sprintf("/guest got %s of %s, which its filter does not match", r.id, r.key))
		}
	}
	for path, letters := range map[string]map[string]int{"/side": o.letters("side"), "/guest": o.letters("guest")} {
		for i := range o.records["side"] {
			r := &o.records["side"][i]
			certain := path == "/side" || isKnown && strings.HasPrefix(r.key(), "guest-") && r.at.After(since.Add(o.w.p.clocksDiffer()))
			if certain && !took[path+" "+r.id()] && letters[r.id()] == 0 {
				all = append(all, fmt.Sprintf("side %s of %s at %s was not delivered to %s and has no dead letter", r.id(), r.key(), r.spot(), path))
			}
		}
	}
	return all
}

// servesTriggers begins the line of the history about a dispatcher that has opened.
const servesTriggers = "serves the triggers of config "

// lastConfigSince returns the time since which all dispatchers know the last config, if they do. A process may apply it before
// its dispatcher is open.
func (w *world) lastConfigSince() (since time.Time, isKnown bool) {
	hash := w.conf.Load().Hash()
	for _, o := range w.procs {
		if o.role != "dispatcher" && o.role != "up" {
			continue
		}
		open := false
		at, is := w.history.first(func(text string) bool {
			said, of := strings.CutPrefix(text, o.name+": ")
			switch {
			case !of:
				return false
			case strings.HasPrefix(said, "life "):
				open = false
			case strings.HasPrefix(said, servesTriggers):
				open = true
			}
			return open && (said == servesTriggers+hash || strings.Contains(said, `msg="config: applied" config=`+hash))
		})
		if !is {
			return since, false
		}
		if at.After(since) {
			since = at
		}
	}
	return since, true
}
