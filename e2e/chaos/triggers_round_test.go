package chaos

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"tidemill.dev/broker"
)

// triggersRound is a plan of triggers whose run is judged.
type triggersRound struct {
	round
	drawn  triggersPlan
	sink   *sink
	b      *broker.Broker
	writer *broker.Producer
	sent   int // number of events so far

	calmFrom        int // sink's clock when the last life began
	living, revived time.Duration
	story           story
	lettersAt       []broker.Position // position up to which dead letters have been read
	repliesAt       []broker.Position
	wrong           faults
}

const calmEvents = 48 // number of events of the last life, enough for every partition

// play publishes during the blows, waits for the living subscribers, and revives the dead ones.
// Then it ends all processes with SIGTERM, and checks that no event is delivered again.
func (r *triggersRound) play(ctx context.Context) (err error) {
	defer r.fleet.killAll()
	if r.b, err = openBroker(ctx, r.fleet.addr, slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	defer r.b.Close()
	if err := r.begin(ctx); err != nil {
		return err
	}
	published := make(chan error, 1)
	go func() { published <- r.publish(ctx, r.drawn.events, r.plan.length*9/10) }()
	if err := errors.Join(r.strike(names("dispatcher", dispatchers)[1:]), <-published); err != nil {
		return err
	}
	if err := r.drain(ctx); err != nil {
		for _, name := range names("dispatcher", dispatchers) {
			r.fleet.dump(name)
		}
		return errors.Join(err, r.read(ctx))
	}
	if err := r.fleet.stop(names("dispatcher", dispatchers)...); err != nil {
		return err
	}
	return errors.Join(r.calm(ctx), r.read(ctx))
}

// begin starts one dispatcher and waits until it is ready, because a trigger gets only the events
// published from then on.
func (r *triggersRound) begin(ctx context.Context) (err error) {
	text := triggersConfig(r.sink.addr, r.sink.refused, r.drawn.timeout)
	if err := os.WriteFile(filepath.Join(r.dir, configFile), []byte(text), 0o600); err != nil {
		return err
	}
	if err := r.fleet.start("dispatcher-0"); err != nil {
		return err
	}
	if err := awaitWord(ctx, r.dir, "dispatcher-0", "ready"); err != nil {
		return err
	}
	r.writer, err = r.b.Producer(broker.ProducerOptions{Timeout: drainLimit})
	return err
}

// awaitLimit is how long the missing events may stay the same. The whole wait has no limit, because
// its length depends on the machine and its other work.
const awaitLimit = drainLimit

// await calls missing until nothing is missing. It continues as long as the result changes.
func await(ctx context.Context, missing func() (string, error)) error {
	last := ""
	for limit := time.Now().Add(awaitLimit); ; {
		what, err := missing()
		if what == "" && err == nil {
			return nil
		}
		if what != last {
			last, limit = what, time.Now().Add(awaitLimit)
		}
		if time.Now().After(limit) {
			return errors.Join(fmt.Errorf("for %s: %s", awaitLimit, what), err)
		}
		if err := wait(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// awaitWord waits until a child has written a verb in its journal.
func awaitWord(ctx context.Context, dir, name, verb string) error {
	return await(ctx, func() (string, error) {
		all, err := readJournals(dir, name+".")
		if slices.ContainsFunc(all, func(e entry) bool { return e.verb == verb }) {
			return "", nil
		}
		return fmt.Sprintf("%s has not said %q", name, verb), err
	})
}

// drain waits for the living subscribers while the dead ones are still dead, because dead
// subscribers may delay neither the living subscribers nor the stream's commits. Then it revives
// the dead ones and waits for their events.
func (r *triggersRound) drain(ctx context.Context) error {
	began := time.Now()
	if err := await(ctx, func() (string, error) { return r.missing(ctx, false) }); err != nil {
		return fmt.Errorf("with dead subscribers beside: %w", err)
	}
	if err := await(ctx, func() (string, error) { return r.lagging(ctx) }); err != nil {
		return fmt.Errorf("with dead subscribers beside: %w", err)
	}
	r.living = time.Since(began)
	began = time.Now()
	if err := r.sink.revive(); err != nil {
		return err
	}
	err := await(ctx, func() (string, error) { return r.missing(ctx, true) })
	r.revived = time.Since(began)
	if err != nil {
		return err
	}
	asked := time.Now()
	return await(ctx, func() (string, error) { return r.underWay(ctx, asked) })
}

// underWay names a dispatcher that has noted events under way since a time. The sink's answers are
// not enough, because an event is delivered again if the dispatcher did not get the answer.
func (r *triggersRound) underWay(ctx context.Context, since time.Time) (string, error) {
	for _, name := range names("dispatcher", dispatchers) {
		all, err := readJournals(r.dir, name+".")
		if err != nil {
			return "", err
		}
		last := entry{}
		for _, e := range all {
			if e.verb == "underway" && e.at.After(last.at) {
				last = e
			}
		}
		if !last.at.After(since) || last.words[0] != "0" {
			return fmt.Sprintf("%s has noted %v under way", name, last.words), nil
		}
	}
	return r.lagging(ctx)
}

// missing names the events that the living, or the dead, subscribers have not got yet.
func (r *triggersRound) missing(ctx context.Context, dead bool) (_ string, err error) {
	for _, rule := range rules {
		if rule.dead != dead {
			continue
		}
		done := r.sink.delivered(rule.name)
		if rule.yields {
			if err := r.readLetters(ctx); err != nil {
				return "", err
			}
			for _, l := range r.story.letters {
				if l.rule == rule.name {
					done[l.of] = true
				}
			}
		}
		want := 0
		for n := range r.sent {
			if rule.matches(eventID(n)) {
				want++
			}
		}
		if rule.replies && len(done) == want { // a reply is published after the sink's answer
			if done, err = r.replied(ctx); err != nil {
				return "", err
			}
		}
		if len(done) < want {
			return fmt.Sprintf("%s has %d of %d events", rule.name, len(done), want), nil
		}
	}
	return "", nil
}

func (r *triggersRound) lagging(ctx context.Context) (string, error) {
	lags, err := r.lags(ctx, r.b)
	if len(lags) != 1 && err == nil {
		return fmt.Sprintf("groups of %s: %v", streamIn, lags), nil
	}
	for group, lag := range lags {
		if lag > 0 {
			return fmt.Sprintf("%s lags by %d", group, lag), err
		}
	}
	return "", err
}

// calm starts all dispatchers again, publishes a few events, and waits for them.
func (r *triggersRound) calm(ctx context.Context) error {
	r.calmFrom = r.sink.now()
	for _, name := range names("dispatcher", dispatchers) {
		if err := r.fleet.start(name); err != nil {
			return err
		}
	}
	if err := r.publish(ctx, calmEvents, 0); err != nil {
		return err
	}
	for _, dead := range []bool{false, true} {
		if err := await(ctx, func() (string, error) { return r.missing(ctx, dead) }); err != nil {
			return fmt.Errorf("after a start in good order: %w", err)
		}
	}
	return r.fleet.stop(names("dispatcher", dispatchers)...)
}

// ownBroker starts the broker of a round that may kill it.
func (r *triggersRound) ownBroker() error {
	addrs, err := freeAddrs(1)
	if err != nil {
		return err
	}
	r.fleet = newFleet(r.dir, addrs[0], r.plan.seed)
	return r.fleet.start(brokerName)
}
