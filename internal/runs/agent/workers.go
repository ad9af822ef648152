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

// The roles of agents that work on an attempt together.
const (
	Worker = "worker"
	Server = "server"
)

// errOver is the error that ends the other agents after the first worker's command has ended.
var errOver = errors.New("the first worker has ended")

const (
	gatherEvery  = 200 * time.Millisecond // pause between the first beats while waiting
	gatherSlowly = 2 * time.Second        // pause between later beats while waiting
	quickBeats   = 50                     // number of beats with the short pause
	leaveOthers  = 5 * time.Second        // time for the other commands to end after the first worker's command has ended
	awaitOthers  = 10 * time.Second       // longest wait of the first worker for the others
)

// party is one agent's view of all agents that work on an attempt together. The first worker
// represents the attempt: it alone saves checkpoints, uploads output and reports the end. The first
// worker cannot see a failure of another agent, so each agent reports its own failure, and that
// ends the attempt.
//
// The agents synchronize by their beats. A beat says whether the agent is ready, and whether its
// command has ended. The response has both facts about all agents.
type party struct {
	part             string
	index            int
	workers, servers []string

	ready, over, waiting atomic.Bool
	asked                atomic.Int64
	changed              chan struct{} // signal to send a beat at once
	all, apart           *gate
}

// gate is a channel that is closed once, and then stays closed.
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

// isAlone reports whether there is only one agent.
func (p *party) isAlone() bool { return len(p.workers)+len(p.servers) <= 1 }

// isFirst reports whether this agent is the first worker.
func (p *party) isFirst() bool { return p.part == Worker && p.index == 0 }

// name returns the name of the agent's log; empty for the first worker.
func (p *party) name() string {
	switch {
	case p.isFirst():
		return ""
	case p.part == Server:
		return "ps" + strconv.Itoa(p.index)
	}
	return "w" + strconv.Itoa(p.index)
}

// title returns the agent's name for people.
func (p *party) title() string {
	if p.part == Server {
		return "parameter server " + strconv.Itoa(p.index)
	}
	return "worker " + strconv.Itoa(p.index)
}

// pace returns the pause until the next beat.
func (p *party) pace(every time.Duration) time.Duration {
	if !p.waiting.Load() {
		return every
	}
	if p.asked.Add(1) <= quickBeats {
		return min(gatherEvery, every)
	}
	return min(gatherSlowly, every)
}

// beatSoon sends a beat at once, and the following beats with the short pause.
func (p *party) beatSoon(soon bool) {
	p.asked.Store(0)
	p.waiting.Store(soon)
	select {
	case p.changed <- struct{}{}:
	default: // a beat is about to be sent
	}
}

// beatQuery returns the query of a beat.
func (p *party) beatQuery() string {
	if p.isAlone() {
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

// gather waits until all agents are ready. The deadline does not run meanwhile, because the command
// cannot help it if a worker gets no node. A controller reports that a worker has no node.
func (a *attempt) gather() error {
	p := &a.party
	if p.isAlone() {
		return nil
	}
	a.clock.pause()
	err := a.stage("gather", func() error {
		p.ready.Store(true)
		p.beatSoon(true)
		select {
		case <-p.all.open:
			return nil
		case <-a.ends.work.Done():
			return fmt.Errorf("wait for the other workers: %w", a.ends.earlyEnd())
		}
	})
	p.waiting.Store(false)
	a.clock.run()
	return err
}

// disperse asks the other agents to end, and waits a while for their end. Then their logs are
// complete before the attempt ends and its tokens become invalid.
func (a *attempt) disperse() {
	p := &a.party
	if p.isAlone() {
		return
	}
	p.over.Store(true)
	p.beatSoon(true)
	t := time.NewTimer(awaitOthers)
	defer t.Stop()
	select {
	case <-p.apart.open:
	case <-t.C:
		a.log.note("the other workers have not ended within %s; they are ended with the attempt", awaitOthers)
	case <-a.ends.save.Done():
	}
}

// leave ends an agent that is not the first worker. It reports only its own failure, because that
// ends the attempt.
func (a *attempt) leave(err error) error {
	a.log.close()
	early := a.ends.earlyEnd()
	own := err != nil && (early == nil || errors.As(early, new(*Stopping)))
	switch {
	case a.ends.isDead():
		return ErrSuperseded
	case !own:
		a.party.over.Store(true)
		ctx, cancel := context.WithTimeout(a.ends.last, leaveOthers)
		defer cancel()
		_ = a.beatOnce(ctx, leaveOthers) // an error is ignored, because the first worker does not wait for long
		return nil
	}
	word := a.lastWord(err)
	word.Reason = a.party.title() + ": " + word.Reason
	word.Result.Metrics, word.Result.Stages = nil, nil
	if said := a.reportEnd(word); said != nil {
		return said
	}
	return nil
}

// master returns host and port of the first worker.
func master(workers []string) (host, port string, err error) {
	host, port, err = net.SplitHostPort(workers[0])
	if err != nil {
		err = permanent("the address %q of the first worker is none: %w", workers[0], err)
	}
	return host, port, err
}
