package platform

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/dedupe"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
)

// Watch applies the config whenever the result of load has changed, until the context ends. If a
// config cannot be loaded or applied, the previous one stays in force, and Ready reports that.
// Watch polls, because polling also finds a ConfigMap's swapped link, an editor's renamed file and
// a change on a network file system.
func (p *Platform) Watch(ctx context.Context, load func() (*config.Config, error), every time.Duration) {
	w := configWatcher{p: p, load: load, settled: p.Config().Revision()}
	w.last = w.settled
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			w.poll(ctx)
		}
	}
}

// configWatcher remembers each result of load as a text: the config's revision, or the error.
type configWatcher struct {
	p        *Platform
	load     func() (*config.Config, error)
	read     *config.Config // last result of load
	revision string         // revision of read
	last     string         // last text
	settled  string         // last text that was applied or refused
}

// revisionOf returns the config's revision. It is computed only if load returned another config.
func (w *configWatcher) revisionOf(c *config.Config) string {
	if c != w.read {
		w.read, w.revision = c, c.Revision()
	}
	return w.revision
}

// poll applies a change once two polls have read the same config, because a half-written file may
// be valid and mean something else.
func (w *configWatcher) poll(ctx context.Context) {
	c, err := w.load()
	seen := ""
	if err != nil {
		seen = "error: " + err.Error()
	} else {
		seen = w.revisionOf(c)
	}
	still := seen == w.last
	w.last = seen
	if !still || seen == w.settled {
		return
	}
	if err == nil {
		if err := w.p.applyConfig(ctx, c); err != nil {
			if ctx.Err() == nil {
				w.p.storeRefusal(err) // Kafka may be down: the next look tries again
			}
			w.settled = "" // some parts may have it already, so the config before must be applied if it comes back
			return
		}
	}
	w.settled = seen
	w.p.storeRefusal(err)
}

// applyConfig makes the streams match a new config and puts it in force.
func (p *Platform) applyConfig(ctx context.Context, c *config.Config) error {
	if c.Name != p.names.Install() {
		return fmt.Errorf("name changed from %s to %s, which renames every topic: restart to use it", p.names.Install(), c.Name)
	}
	err := p.ensureStreams(ctx, c)
	if err == nil {
		err = p.applyToParts(ctx, c)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errNotApplied, err)
	}
	p.log.Info("config: applied", "config", c.Hash(), "streams", len(c.Streams))
	return nil
}

// errNotApplied is wrapped by the error of a valid config that is applied again soon, for example when Kafka is back.
var errNotApplied = errors.New("the change is valid, and applying it failed; it is tried again, and some parts may have it already")

// storeRefusal stores the reason why a config is not in force; nil if it is in force. Each reason
// is logged once, not at each poll.
func (p *Platform) storeRefusal(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch known := err == nil || p.refused != nil && p.refused.Error() == err.Error(); {
	case known:
	case errors.Is(err, errNotApplied):
		p.log.Warn("config: applying the change failed; retrying", "config", p.config.Hash(), "reason", err)
	default:
		p.log.Warn("config: the change is invalid; the previous config stays in force", "config", p.config.Hash(), "reason", err)
	}
	p.refused = err
}

// A dead letter holds its record in base64, so it may be larger than any event.
const deadLetterBytes = 9 << 20

// wantedStreams returns the streams that a config has or needs in the present Kafka. The embedded
// Kafka cannot compact streams, and one laptop's groups write few records.
func (p *Platform) wantedStreams(c *config.Config) []broker.StreamSpec {
	all := streamSpecs(c)
	for i := range all {
		all[i].NewestOnly = all[i].NewestOnly && p.kafka != embedded.ClusterID
	}
	return all
}

// streamSpecs returns the streams that a config has or needs.
func streamSpecs(c *config.Config) []broker.StreamSpec {
	streams := slices.Concat(c.Streams, c.Parked())
	held := c.HeldFor()
	all := make([]broker.StreamSpec, 0, len(streams)+len(held))
	for _, s := range streams {
		spec := broker.StreamSpec{Name: s.Name, Partitions: s.Partitions, Retention: s.Retention,
			KeyOrdered: s.KeyOrdered, Builtin: s.Builtin, NewestOnly: s.Name == tidemill.StreamGroupOffsets}
		if s.Name == tidemill.StreamDeadLetters || s.Name == tidemill.Parked(tidemill.StreamDeadLetters) {
			spec.MaxMessageBytes = deadLetterBytes
		}
		all = append(all, spec)
	}
	for _, s := range held {
		all = append(all, broker.StreamSpec{Name: s.Name, Partitions: s.Partitions, Retention: s.Retention,
			KeyOrdered: s.KeyOrdered, Builtin: true, Beside: s.From})
	}
	return all
}

// ensureStreams makes the streams match a config and logs changes and remaining differences.
func (p *Platform) ensureStreams(ctx context.Context, c *config.Config) error {
	report, err := p.broker.EnsureStreams(ctx, p.wantedStreams(c), broker.EnsureOptions{Reorder: p.reorder})
	created := p.logChanges(report.Changes)
	p.forgetRepeats(ctx, created)
	if err != nil {
		return err
	}
	p.logLeft(report)
	return nil
}

// logChanges logs changes to streams in one line for each kind; a start may change dozens. It returns
// the created streams.
func (p *Platform) logChanges(changes []broker.Change) (created []string) {
	altered := 0
	for _, c := range changes {
		if c.What == "created" {
			p.log.Debug("config: stream created", "stream", c.Stream, "to", c.To)
			created = append(created, c.Stream)
			continue
		}
		p.log.Debug("config: stream altered", "stream", c.Stream, "what", c.What, "from", c.From, "to", c.To)
		if !slices.Contains(created, c.Stream) { // a setting that depends on another stream is set after the creation
			altered++
		}
	}
	if len(created) > 0 {
		p.log.Info("config: streams created", "streams", len(created))
	}
	if altered > 0 {
		p.log.Info("config: settings of streams altered; --log debug shows each", "streams", altered)
	}
	return created
}

// forgetWithin limits the wait for Redis, because a process must be able to start while Redis is
// down.
const forgetWithin = time.Second

// forgetRepeats clears the memory of repeats for new streams. Otherwise their events could be taken
// for repeats of events on deleted streams of the same name.
func (p *Platform) forgetRepeats(ctx context.Context, streams []string) {
	if p.redis == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, forgetWithin)
	defer cancel()
	p.mu.Lock()
	memory := p.repeats
	p.mu.Unlock()
	for _, stream := range streams {
		memory.Forget(stream)
	}
	for _, stream := range streams {
		if err := dedupe.Forget(ctx, p.redis, p.names, p.kafka, stream); err != nil {
			p.log.Warn("config: clearing the repeats of new streams failed; their events may be taken for repeats", "stream", stream, "reason", err)
			return
		}
	}
}

func (p *Platform) logLeft(report broker.EnsureReport) {
	for _, d := range report.Drift {
		p.log.Warn("config: a stream cannot be altered; it stays as it is", "stream", d.Stream, "what", d.What, "want", d.Want, "have", d.Have, "reason", d.Why, "next", d.Next)
	}
	for _, stream := range report.Unknown {
		p.log.Debug("config: stream is not in the config; nothing is deleted", "stream", stream)
	}
	if n := len(report.Unknown); n > 0 {
		p.log.Info("config: streams are not in the config; nothing is deleted, and --log debug names them", "streams", n)
	}
	if p.servers != nil {
		return // a single broker is normal on a laptop
	}
	for _, w := range report.Warnings {
		p.log.Warn(w)
	}
}
