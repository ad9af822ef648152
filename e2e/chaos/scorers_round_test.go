package chaos

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/functions/score"
	"tidemill.dev/internal/data/store"
)

const scorerName = "bots"

// scorersRound is a plan of scorers whose run is judged.
type scorersRound struct {
	round
	drawn   scorersPlan
	b       *broker.Broker
	writer  *broker.Producer
	models  models
	servers []string // servers that the round itself started
	sent    int      // number of events so far

	story     scoredStory
	outAt     []broker.Position // position up to which the output has been read
	lettersAt []broker.Position
	swapsAt   []broker.Position
}

// ownServers starts the servers of a round that may kill them.
func (r *scorersRound) ownServers() error {
	addrs, err := freeAddrs(1)
	if err != nil {
		return err
	}
	r.fleet = newFleet(r.dir, addrs[0], r.plan.seed)
	r.servers = []string{brokerName}
	return r.fleet.start(brokerName)
}

// ownRedis starts Redis, and passes its address to the scorers of the round.
func (r *scorersRound) ownRedis() error {
	addrs, err := freeAddrs(1)
	if err != nil {
		return err
	}
	r.fleet.env = []string{envRedis + "=" + addrs[0], fmt.Sprintf("%s=%d", envMemory, r.drawn.memory)}
	r.servers = append(r.servers, redisName)
	return r.fleet.start(redisName)
}

// play publishes and promotes during the blows, waits until all events are scored, and ends all
// processes with SIGTERM.
func (r *scorersRound) play(ctx context.Context) (err error) {
	defer r.fleet.killAll()
	if err := r.ownRedis(); err != nil {
		return err
	}
	if r.b, err = openBroker(ctx, r.fleet.addr, slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	defer r.b.Close()
	if err := r.prepare(ctx); err != nil {
		return err
	}
	defer r.models.store.Close()
	if r.plan.profile == scorersHang { // the process hang is killed soon, so its transaction must begin at once
		if err := errors.Join(r.fleet.start(hangerName), awaitWord(ctx, r.dir, hangerName, "hang")); err != nil {
			return err
		}
	}
	published, promoted, away := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() { published <- r.publish(ctx, r.drawn.events, r.plan.length*9/10) }()
	go func() { away <- r.storeAway(ctx) }()
	go func() { promoted <- r.promote(ctx, time.Now().Add(r.plan.length*9/10)) }()
	if err := errors.Join(r.strike(names("scorer", scorersAtOnce)[1:]), <-published, <-promoted, <-away); err != nil {
		return err
	}
	if err := r.finish(ctx); err != nil {
		for _, name := range names("scorer", scorersAtOnce) {
			r.fleet.dump(name)
		}
		return errors.Join(err, r.read(ctx))
	}
	return errors.Join(r.fleet.stop(names("scorer", scorersAtOnce)...), r.read(ctx))
}

// prepare makes streams and the first models, and starts a scorer.
func (r *scorersRound) prepare(ctx context.Context) (err error) {
	if err := os.WriteFile(filepath.Join(r.dir, configFile), []byte(r.drawn.config()), 0o600); err != nil {
		return err
	}
	var specs []broker.StreamSpec
	for _, name := range []string{streamIn, streamOut, tidemill.StreamFacts, tidemill.StreamProgress, tidemill.StreamDeadLetters, tidemill.ScorerParked(scorerName)} {
		specs = append(specs, broker.StreamSpec{Name: name, Partitions: partitions, KeyOrdered: true})
	}
	if _, err := r.b.EnsureStreams(ctx, specs, broker.EnsureOptions{}); err != nil {
		return err
	}
	if r.writer, err = r.b.Producer(broker.ProducerOptions{Timeout: drainLimit}); err != nil {
		return err
	}
	s, err := store.Open(ctx, store.Options{URL: filepath.Join(r.dir, storeFolder+".d")})
	if err != nil {
		return err
	}
	if err := r.pointStore(true); err != nil {
		return err
	}
	r.models = models{rnd: rand.New(rand.NewPCG(r.plan.seed, 0x30de)), store: s, facts: r.writer, broken: r.drawn.broken, keep: r.drawn.keep, all: map[string]*model{}}
	if err := errors.Join(r.models.begin(ctx), r.fleet.start("scorer-0")); err != nil {
		return err
	}
	return awaitWord(ctx, r.dir, "scorer-0", "ready")
}

// pointStore gives the scorers our store, or a file instead of a store. A read from that file
// fails, so it does not show whether an object exists.
func (r *scorersRound) pointStore(there bool) error {
	at, next := filepath.Join(r.dir, storeFolder), filepath.Join(r.dir, storeFolder+".next")
	to := storeFolder + ".d"
	if !there {
		to = configFile
	}
	if err := os.Symlink(to, next); err != nil {
		return err
	}
	return os.Rename(next, at)
}

// storeAway makes the store unavailable at the plan's times.
func (r *scorersRound) storeAway(ctx context.Context) error {
	began := time.Now()
	for _, b := range r.drawn.away {
		if err := wait(ctx, time.Until(began.Add(b.at))); err != nil {
			return err
		}
		if err := r.pointStore(false); err != nil {
			return err
		}
		if err := errors.Join(wait(ctx, b.back), r.pointStore(true)); err != nil {
			return err
		}
	}
	return nil
}

// promote changes champions again and again.
func (r *scorersRound) promote(ctx context.Context, until time.Time) error {
	late := time.Until(until) / (lateKeys + 1)
	next := time.Now().Add(late)
	for time.Now().Before(until) {
		change := r.models.change
		if time.Now().After(next) {
			change, next = r.models.beginLate, next.Add(late)
		}
		if err := change(ctx); err != nil {
			return err
		}
		if err := wait(ctx, 25*time.Millisecond); err != nil {
			return err
		}
	}
	return r.models.promoteLoadable(ctx)
}

// publish spreads events over a while.
func (r *scorersRound) publish(ctx context.Context, n int, over time.Duration) error {
	began := time.Now()
	failed := make(chan error, 1)
	for i := range n {
		r.writer.Send(ctx, streamIn, scoredEvent(r.sent), func(_ broker.Receipt, err error) {
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
		r.sent++
		if i%20 == 0 {
			if err := wait(ctx, time.Until(began.Add(over*time.Duration(i)/time.Duration(n)))); err != nil {
				return err
			}
		}
	}
	if err := r.writer.Flush(ctx); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return fmt.Errorf("publish: %w", err)
	default:
		return nil
	}
}

func scoredEvent(n int) *broker.View {
	v := &broker.View{ID: eventID(n), Source: sourceHere, Type: typeEvent, Subject: scoredKey(n), DataContentType: "application/json",
		Data: fmt.Appendf(nil, `{"x": [%d, 1, 0, -1]}`, n%10)}
	switch kindOf(n) {
	case unmapped:
		v.Data = []byte(`{"y": 1}`)
	case keyless:
		v.Subject = ""
	case otherType:
		v.Type = "chaos.other"
	}
	return v
}

// finish waits until all events are scored and there is no lag, and then until every key is scored
// by its last champion.
func (r *scorersRound) finish(ctx context.Context) error {
	began := time.Now()
	if err := await(ctx, func() (string, error) { return r.missing(ctx) }); err != nil {
		return err
	}
	if err := await(ctx, func() (string, error) { return r.lagging(ctx) }); err != nil {
		return err
	}
	r.drained = time.Since(began)
	err := await(ctx, func() (string, error) {
		if err := r.publish(ctx, 3*scoredKeys, 0); err != nil {
			return "", err
		}
		if err := await(ctx, func() (string, error) { return r.missing(ctx) }); err != nil {
			return "", err
		}
		return r.story.outdated(&r.models), nil
	})
	if err != nil {
		return fmt.Errorf("when nothing is killed any more: %w", err)
	}
	return await(ctx, func() (string, error) { return r.lagging(ctx) })
}

// missing returns an event that is neither scored nor a dead letter.
func (r *scorersRound) missing(ctx context.Context) (string, error) {
	if err := r.readEnds(ctx); err != nil {
		return "", err
	}
	done := map[string]bool{}
	for _, o := range r.story.out {
		done[o.cause] = true
	}
	for _, l := range r.story.letters {
		done[l.of] = true
	}
	want, first := 0, ""
	for n := range r.sent {
		if kindOf(n) == otherType {
			continue
		}
		if want++; first == "" && !done[eventID(n)] {
			first = eventID(n)
		}
	}
	if first != "" {
		return fmt.Sprintf("%d of %d events have come to an end; %s has not", len(done), want, first), nil
	}
	return "", nil
}

func (r *scorersRound) lagging(ctx context.Context) (string, error) {
	lags, err := r.lags(ctx, r.b)
	if lag, ok := lags[score.Group(scorerName)]; err != nil || !ok || lag > 0 {
		return fmt.Sprintf("groups of %s: %v", streamIn, lags), err
	}
	return "", nil
}
