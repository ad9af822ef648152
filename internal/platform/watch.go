package platform

import (
	"context"
	"fmt"
	"time"

	"tidemill.dev/config"
)

// Watch applies the config whenever what load returns has changed, until the
// context ends. A config that does not load or cannot be applied leaves the one
// before in force, and Ready says so.
//
// It looks instead of being told: that finds a ConfigMap's swapped link, an
// editor's renamed file and a change on a network file system alike, and what
// was missed once is found the next time.
func (p *Platform) Watch(ctx context.Context, load func() (*config.Config, error), every time.Duration) {
	w := watcher{p: p, load: load, settled: p.Config().Hash()}
	w.last = w.settled
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			w.look(ctx)
		}
	}
}

// watcher remembers what it saw by a print: the config's hash, or the error's
// text.
type watcher struct {
	p       *Platform
	load    func() (*config.Config, error)
	read    *config.Config // the time before
	hash    string         // of it
	last    string         // seen the time before
	settled string         // dealt with
}

// hashOf spares the hash of what is the same config still.
func (w *watcher) hashOf(c *config.Config) string {
	if c != w.read {
		w.read, w.hash = c, c.Hash()
	}
	return w.hash
}

// look deals with a change when it has seen it twice: a file that is being
// written may well be valid halfway, and mean something else.
func (w *watcher) look(ctx context.Context) {
	c, err := w.load()
	seen := ""
	if err != nil {
		seen = "error: " + err.Error()
	} else {
		seen = w.hashOf(c)
	}
	still := seen == w.last
	w.last = seen
	if !still || seen == w.settled {
		return
	}
	if err == nil {
		if err := w.p.apply(ctx, c); err != nil {
			if ctx.Err() == nil {
				w.p.refuse(err) // Kafka may be away: it tries again the next time
			}
			return
		}
	}
	w.settled = seen
	w.p.refuse(err)
}

// apply brings the streams to a new config and has it apply from now on.
func (p *Platform) apply(ctx context.Context, c *config.Config) error {
	if c.Name != p.names.Install() {
		return fmt.Errorf("name changed from %s to %s, which names every topic anew: restart to use it", p.names.Install(), c.Name)
	}
	if err := p.ensureStreams(ctx, c); err != nil {
		return err
	}
	if err := p.applyToParts(ctx, c); err != nil {
		return err
	}
	p.mu.Lock()
	p.config = c
	p.mu.Unlock()
	p.log.Info("config applied", "config", c.Hash(), "streams", len(c.Streams))
	return nil
}

// refuse remembers why a config does not apply; nil is that it does. It says
// it once, not each time the watcher looks.
func (p *Platform) refuse(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil && (p.refused == nil || p.refused.Error() != err.Error()) {
		p.log.Warn("config refused; the one before stays in force", "config", p.config.Hash(), "reason", err)
	}
	p.refused = err
}
