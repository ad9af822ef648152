package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"tidemill.dev/api"
)

// The parts of those that work on an attempt together.
const (
	Worker = "worker"
	Server = "server"
)

// errOver is why those end that are not the first worker, when its command has.
var errOver = errors.New("the first worker has ended")

const (
	gatherEvery  = 200 * time.Millisecond // who waits for others asks so often at first
	gatherSlowly = 2 * time.Second        // and then so
	quickly      = 50                     // times
	leaveOthers  = 5 * time.Second        // that others have to leave when the first worker has ended
	awaitOthers  = 10 * time.Second       // that the first worker waits for them
)

// party is those that work on an attempt together, as one of them sees it. The
// first worker is the attempt: it alone saves checkpoints, brings away what was
// made and tells of the end. What happens to the others it would never hear of,
// so they tell of a failure themselves, and the attempt has ended then.
//
// They gather and disperse by their beats: each says there whether it is ready,
// and whether its command is over, and hears whether all are.
type party struct {
	part             string
	index            int
	workers, servers []string

	ready, over, hurry atomic.Bool
	asked              atomic.Int64
	changed            chan struct{} // has a beat come at once
	all, apart         *gate
}

// gate is open for good once it was opened.
type gate struct {
	once sync.Once
	open chan struct{}
}

func newGate() *gate { return &gate{open: make(chan struct{})} }

func (g *gate) unlock() { g.once.Do(func() { close(g.open) }) }

func newParty(o *Options) party {
	return party{part: o.Part, index: o.Index, workers: o.Workers, servers: o.Servers,
		changed: make(chan struct{}, 1), all: newGate(), apart: newGate()}
}

// alone reports whether there are no others.
func (p *party) alone() bool { return len(p.workers)+len(p.servers) <= 1 }

// first reports whether this one is the attempt.
func (p *party) first() bool { return p.part == Worker && p.index == 0 }

// name is what its log is called; empty for the first worker's.
func (p *party) name() string {
	switch {
	case p.first():
		return ""
	case p.part == Server:
		return "ps" + strconv.Itoa(p.index)
	}
	return "w" + strconv.Itoa(p.index)
}

// title names it for people.
func (p *party) title() string {
	if p.part == Server {
		return "parameter server " + strconv.Itoa(p.index)
	}
	return "worker " + strconv.Itoa(p.index)
}

// pace is how long to wait until the next beat.
func (p *party) pace(every time.Duration) time.Duration {
	if !p.hurry.Load() {
		return every
	}
	if p.asked.Add(1) <= quickly {
		return min(gatherEvery, every)
	}
	return min(gatherSlowly, every)
}

// stir has a beat come at once, and the next ones soon.
func (p *party) stir(soon bool) {
	p.asked.Store(0)
	p.hurry.Store(soon)
	select {
	case p.changed <- struct{}{}:
	default: // one is about to
	}
}

// says is what a beat asks with.
func (p *party) says() string {
	if p.alone() {
		return ""
	}
	return "?" + url.Values{"part": {p.part}, "index": {strconv.Itoa(p.index)},
		"ready": {strconv.FormatBool(p.ready.Load())}, "over": {strconv.FormatBool(p.over.Load())}}.Encode()
}

func (p *party) hears(b *api.Beat) {
	if b.All {
		p.all.unlock()
	}
	if b.Alone && p.over.Load() {
		p.apart.unlock()
	}
}

// gather waits until all are ready. The deadline does not run meanwhile: that a
// worker finds no place is not the command's fault, and a controller says so.
func (a *attempt) gather() error {
	p := &a.party
	if p.alone() {
		return nil
	}
	a.clock.rest()
	err := a.stage("gather", func() error {
		p.ready.Store(true)
		p.stir(true)
		select {
		case <-p.all.open:
			return nil
		case <-a.ends.work.Done():
			return fmt.Errorf("wait for the other workers: %w", a.ends.early())
		}
	})
	p.hurry.Store(false)
	a.clock.run()
	return err
}

// disperse has the others end, and waits for that a while, so that what they
// have said is in their logs before the attempt counts no more.
func (a *attempt) disperse() {
	p := &a.party
	if p.alone() {
		return
	}
	p.over.Store(true)
	p.stir(true)
	t := time.NewTimer(awaitOthers)
	defer t.Stop()
	select {
	case <-p.apart.open:
	case <-t.C:
		a.log.note("the other workers have not ended within %s; they are ended with the attempt", awaitOthers)
	case <-a.ends.save.Done():
	}
}

// leave says that one which is not the first has ended, and what of. Only a
// failure of its own ends the attempt.
func (a *attempt) leave(err error) error {
	a.log.close()
	early := a.ends.early()
	own := err != nil && (early == nil || errors.As(early, new(*Stopping)))
	switch {
	case a.ends.isDead():
		return ErrSuperseded
	case !own:
		a.party.over.Store(true)
		ctx, cancel := context.WithTimeout(a.ends.last, leaveOthers)
		defer cancel()
		_ = a.beatOnce(ctx, leaveOthers) // the first worker does not wait for long
		return nil
	}
	word := a.lastWord(err)
	word.Reason = a.party.title() + ": " + word.Reason
	word.Result.Metrics, word.Result.Stages = nil, nil
	if said := a.say(word); said != nil {
		return said
	}
	return nil
}

// addresses are those of a part, host and port.
func master(workers []string) (host, port string, err error) {
	host, port, err = net.SplitHostPort(workers[0])
	if err != nil {
		err = permanent("the address %q of the first worker is none: %w", workers[0], err)
	}
	return host, port, err
}
