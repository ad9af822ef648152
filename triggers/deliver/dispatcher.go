// Package deliver sends events to the subscribers of triggers. It keeps the order of
// each key, retries as the policy says, parks events that have to wait, and writes a
// dead letter for an event that cannot be delivered. See DESIGN.md.
package deliver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/network"
	"tidemill.dev/broker/retry"
	"tidemill.dev/config"
	"tidemill.dev/triggers/commands"
	"tidemill.dev/triggers/deadletters"
	"tidemill.dev/triggers/keys"
)

// Dispatcher delivers events to triggers together with the other dispatchers of the
// install. Each has some partitions of every stream that a trigger reads.
type Dispatcher struct {
	o     Options
	names tidemill.Names

	commands    *commands.Follower
	deadLetters *deadLetterWriter
	replies     *replier
	senders     atomic.Pointer[map[string]*sender]
	orphans     *sender // sender of items whose trigger is gone
	counts      counts
	clock       steadyClock

	mu          retry.Mutex
	plans       map[string]*plan
	config      *config.Config
	since       map[string]time.Time // time since which each trigger of the config is known
	pipelines   map[string]*pipeline
	faults      map[string]error         // reason why each stream is not served
	firstUnread int64                    // first command that was not yet checked for streams without a pipeline
	unsearched  map[string]bool          // streams that may have parked events or dead letters to replay although no trigger reads them
	removed     map[string]config.Stream // streams that the config has no longer; nil before Kafka was asked for them
	searchTold  time.Time                // last warning that a search for such streams failed
	ranges      ranges
	repair      chan struct{}
	missing     missingTargets

	stop    context.CancelFunc
	running sync.WaitGroup
	working sync.WaitGroup // workers of the senders
}

// Open starts to deliver. The caller closes the dispatcher.
func Open(ctx context.Context, o Options) (*Dispatcher, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	names, err := o.Config.Names()
	if err != nil {
		return nil, fmt.Errorf("open the dispatcher: %w", err)
	}
	d := &Dispatcher{o: o, names: names, pipelines: map[string]*pipeline{}, faults: map[string]error{}, unsearched: map[string]bool{}, repair: make(chan struct{}, 1), ranges: newRanges(), missing: newMissingTargets()}
	d.senders.Store(&map[string]*sender{})
	d.orphans = newSender(d, "", &target{trigger: config.Trigger{Delivery: config.Delivery{Concurrency: 4, Rate: 500}}})
	if err := d.open(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open the dispatcher: %w", err), d.Close(ctx))
	}
	return d, nil
}

func (d *Dispatcher) open(ctx context.Context) error {
	written, err := d.o.Broker.Producer(broker.ProducerOptions{MaxEvent: deadletters.MaxBytes, Compression: broker.Zstd, AsRead: true})
	if err != nil {
		return err
	}
	d.deadLetters = &deadLetterWriter{p: written, names: d.names, log: d.o.Logger}
	replies, err := d.o.Broker.Producer(broker.ProducerOptions{})
	if err != nil {
		return err
	}
	d.replies = &replier{p: replies}
	if d.commands, err = commands.FollowKeys(ctx, d.o.Broker, d.o.Logger); err != nil {
		return err
	}
	if err := d.register(); err != nil {
		return err
	}
	if err := d.Apply(ctx, d.o.Config); err != nil {
		return err
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	d.stop = stop
	d.running.Go(func() { d.run(life) })
	d.running.Go(func() { d.retryMissing(life) })
	return nil
}

// Apply applies a config to future and waiting events. If it fails, the previous config
// stays in force.
func (d *Dispatcher) Apply(ctx context.Context, c *config.Config) error {
	plans, err := compilePlans(c)
	if err != nil {
		return fmt.Errorf("apply the config's triggers: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	targets, err := d.targets(c)
	if err != nil {
		return fmt.Errorf("apply the config's triggers: %w", err)
	}
	first := d.config == nil
	before := cmp.Or(d.config, new(config.Config))
	for stream := range d.plans { // its pipeline may not be open, so nothing else would end its parked events
		d.unsearched[stream] = true
	}
	for _, s := range c.Streams {
		if _, known := before.Stream(s.Name); !known {
			d.unsearched[s.Name] = true
		}
	}
	for _, s := range before.Streams {
		if _, known := c.Stream(s.Name); !known && d.removed != nil {
			d.removed[s.Name] = s
		}
	}
	since := make(map[string]time.Time, len(c.Triggers))
	for _, t := range c.Triggers {
		if since[t.Name] = d.since[t.Name]; since[t.Name].IsZero() {
			since[t.Name] = time.Now()
		}
	}
	d.config, d.plans, d.since = c, plans, since
	d.replies.config.Store(c)
	d.replies.takers.Store(keys.NewTakers(c))
	dismissed := d.aim(targets)
	if first {
		d.firstUnread = d.commands.Now().Next() // findLeft finds the streams of earlier commands
	}
	for stream, l := range d.pipelines {
		if d.plans[stream] == nil {
			d.plans[stream] = deserted()
		}
		l.apply(d.settingsOf(stream), d.retentionOf(l))
	}
	d.ranges.changed = time.Now()
	d.applyRanges()
	d.dismiss(dismissed) // the items that wait with them find their trigger gone
	d.reconcile(ctx)
	return nil
}

// settingsOf returns the settings of a stream. Called with the lock held.
func (d *Dispatcher) settingsOf(stream string) *triggerSettings {
	now := d.commands.Now()
	p := d.plans[stream]
	if p == nil {
		p = deserted()
	}
	return &triggerSettings{plan: p, triggers: byName(d.config), since: d.since, paused: func(trigger string) bool { return now.TriggerPaused(trigger) || d.missing.has(trigger) },
		open: func(trigger string) bool { return d.senderOf(trigger).isOpen() }}
}

// streamOf returns a stream of the config, or one that the config had. Called with the lock held.
func (d *Dispatcher) streamOf(name string) (s config.Stream, known bool) {
	if s, known = d.config.Stream(name); !known {
		s, known = d.removed[name]
	}
	return s, known
}

// retentionOf returns the retention of a pipeline's stream by the present config.
// Called with the lock held.
func (d *Dispatcher) retentionOf(l *pipeline) time.Duration {
	if s, known := d.streamOf(l.stream.Name); known {
		return s.Retention
	}
	return l.stream.Retention
}

// findLeft finds streams that no trigger reads any more but that may have parked events. After an error it
// searches the stream again at its next call. Called with the lock held.
func (d *Dispatcher) findLeft(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, searchWithin)
	defer cancel()
	if err := d.search(ctx); err != nil && time.Since(d.searchTold) >= searchTellEvery {
		d.searchTold = time.Now()
		d.o.Logger.Warn("dispatcher: looking for parked events failed; retrying", "reason", err)
	}
}

// search is findLeft without the limit of time. Called with the lock held.
func (d *Dispatcher) search(ctx context.Context) error {
	if d.removed == nil {
		if err := d.findRemoved(ctx); err != nil {
			return err
		}
	}
	for stream := range d.unsearched {
		if s, known := d.streamOf(stream); known && d.plans[stream] == nil {
			left, err := d.hasParked(ctx, s)
			if err != nil {
				return fmt.Errorf("stream %s: %w", stream, err)
			}
			if left {
				d.plans[stream] = deserted()
			}
		}
		delete(d.unsearched, stream)
	}
	return nil
}

// findRemoved finds the streams that left the config while no dispatcher ran. Called with the lock held.
func (d *Dispatcher) findRemoved(ctx context.Context) error {
	all, err := d.o.Broker.StreamNames(ctx)
	if err != nil {
		return err
	}
	d.removed = map[string]config.Stream{}
	for name := range all {
		stream, parked := tidemill.CutParked(name)
		s, exists := all[stream]
		if _, known := d.config.Stream(stream); parked && exists && !known {
			d.removed[stream] = config.Stream{Name: stream, Partitions: s.Partitions, Retention: s.Retention}
			d.unsearched[stream] = true
		}
	}
	return nil
}

// hasParked reports whether a stream's triggers have ever parked anything. Kafka may have
// forgotten the marks, so a parked log without a mark counts, too.
func (d *Dispatcher) hasParked(ctx context.Context, s config.Stream) (bool, error) {
	of := make([]broker.Position, s.Partitions)
	for n := range of {
		of[n] = broker.Position{Stream: tidemill.Parked(s.Name), Partition: int32(n)}
	}
	marks, err := d.o.Broker.Committed(ctx, tidemill.TriggersGroup(s.Name), of)
	for _, m := range marks {
		if m.Offset != none {
			return true, nil
		}
	}
	if err != nil {
		return false, err
	}
	ends, err := d.o.Broker.Ends(ctx, tidemill.Parked(s.Name))
	if errors.Is(err, broker.ErrNoStream) {
		return false, nil
	}
	return slices.ContainsFunc(ends, func(p broker.Position) bool { return p.Offset > 0 }), err
}

// reconcile opens missing pipelines, replaces failed ones and closes those that are no
// longer needed. Called with the lock held.
func (d *Dispatcher) reconcile(ctx context.Context) {
	d.findLeft(ctx)
	for stream := range d.plans {
		l := d.pipelines[stream]
		if l != nil && l.failed() {
			if time.Since(l.opened) < mendEvery {
				continue // a permanent error would fail each new pipeline at once; run comes again within mendEvery
			}
			d.drop(ctx, l)
			l = nil
		}
		if l == nil {
			d.openPipeline(ctx, stream)
		}
	}
	for stream, l := range d.pipelines {
		l.checkParkedPartitions(ctx)
		if len(d.plans[stream].triggers) == 0 && l.isDone(ctx) {
			d.drop(ctx, l)
			delete(d.plans, stream)
		}
	}
	maps.DeleteFunc(d.faults, func(stream string, _ error) bool { return d.plans[stream] == nil })
	d.computeShares()
	d.replayRanges(ctx)
}

func (d *Dispatcher) openPipeline(ctx context.Context, stream string) {
	s, known := d.streamOf(stream)
	if !known {
		d.faults[stream] = fmt.Errorf("stream %s is not in the config", stream)
		return
	}
	l, err := openPipeline(ctx, d, s, d.settingsOf(stream))
	if err != nil {
		if was := d.faults[stream]; was == nil || was.Error() != err.Error() { // the readiness shows it all the time
			d.o.Logger.Warn("dispatcher: starting the triggers of a stream failed; retrying", "stream", stream, "reason", err)
		}
		d.faults[stream] = err
		return
	}
	delete(d.faults, stream)
	d.pipelines[stream] = l
}

// drop closes a pipeline. Called with the lock held.
func (d *Dispatcher) drop(ctx context.Context, l *pipeline) {
	delete(d.pipelines, l.stream.Name)
	ctx, cancel := context.WithTimeout(ctx, dropWithin)
	defer cancel()
	if err := l.close(ctx); err != nil {
		d.o.Logger.Warn("dispatcher: closing a stream's triggers failed; their events may be delivered twice", "stream", l.stream.Name, "reason", err)
	}
}

const (
	mendEvery = time.Second
	// dropWithin is how long a failed pipeline may take to close. The rest of the
	// dispatcher waits meanwhile.
	dropWithin = 4 * time.Second
	// searchWithin is how long a look for parked events and dead letters may take. The rest waits for it, too: also the
	// end of the process.
	searchWithin = 4 * time.Second
	// searchTellEvery is the shortest time between two warnings that this look failed.
	searchTellEvery = time.Minute
)

// run follows the commands and repairs failed pipelines.
func (d *Dispatcher) run(ctx context.Context) {
	t := time.NewTicker(mendEvery)
	defer t.Stop()
	var known *commands.State
	for {
		changed := d.commands.Changed() // before the commands are read, so that none is missed
		d.mu.Lock()
		if now := d.commands.Now(); now != known {
			known = now
			d.followCommands(ctx)
		}
		if ctx.Err() == nil {
			d.reconcile(ctx)
		}
		d.mu.Unlock()
		select {
		case <-changed:
		case <-d.repair:
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// followCommands applies the commands everywhere. Called with the lock held.
func (d *Dispatcher) followCommands(ctx context.Context) {
	d.findAsked(ctx)
	d.applyRanges()
	for _, l := range d.pipelines {
		l.apply(d.settingsOf(l.stream.Name), d.retentionOf(l))
	}
}

// fail reports that a pipeline has stopped reading.
func (d *Dispatcher) fail(stream string, err error) {
	d.o.Logger.Error("dispatcher: serving a stream's triggers failed; retrying", "stream", stream, "reason", err)
	notify(d.repair)
}

// Close stops in this order: reading ends, attempts end or their items are parked, the
// results are committed, the groups are left, and all connections close.
func (d *Dispatcher) Close(ctx context.Context) error {
	if d.stop != nil {
		d.stop()
		d.running.Wait()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.ranges.running {
		d.leaveRange(r)
	}
	errs := d.closePipelines(ctx)
	d.dismiss(d.aim(nil))
	d.orphans.stopSending()
	d.working.Wait()
	if d.replies != nil {
		errs = append(errs, d.replies.p.Close(ctx))
	}
	if d.deadLetters != nil {
		errs = append(errs, d.deadLetters.p.Close(ctx))
	}
	if d.commands != nil {
		errs = append(errs, d.commands.Close(ctx))
	}
	d.unregister()
	return errors.Join(errs...)
}

func (d *Dispatcher) closePipelines(ctx context.Context) []error {
	all := d.pipelines
	d.pipelines = map[string]*pipeline{}
	errs := make(chan error, len(all))
	for _, l := range all {
		go func() { errs <- l.close(ctx) }()
	}
	var failed []error
	for range all {
		failed = append(failed, <-errs)
	}
	return failed
}

// Options configure a dispatcher.
type Options struct {
	Broker     *broker.Broker
	Config     *config.Config // first config; see Dispatcher.Apply
	Logger     *slog.Logger
	Registerer prometheus.Registerer // may be nil
	Tracer     trace.Tracer          // may be nil
	Network    network.Network       // network of the subscribers
	Resolve    Resolver              // may be nil; then attempts to a service or a function fail
	// Bearer is the token that only Tidemill's own functions get; empty sends none.
	Bearer  string
	Version string // version of Tidemill, for User-Agent
	// Skew is how long another dispatcher may have a newer config than this one. For
	// that time an unknown trigger does not count as removed.
	Skew time.Duration
	// SessionTimeout is after how long a silent dispatcher counts as dead; 0 is the
	// broker's default.
	SessionTimeout time.Duration
}

func (o *Options) check() error {
	if o.Broker == nil || o.Config == nil {
		return errors.New("open the dispatcher: it needs a broker and a config")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}
