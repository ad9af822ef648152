package platform

import (
	"context"
	"fmt"

	"tidemill.dev/config"
	"tidemill.dev/internal/api"
)

// part is something that runs on the platform and lives through changes of the
// config.
type part struct {
	name  string
	apply func(context.Context, *config.Config) error // nil if the config does not concern it
	check func(context.Context) api.Check             // nil if it is always ready
}

// add has a part told of each new config, and asked whether it is ready.
func (p *Platform) add(with part) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.parts = append(p.parts, with)
}

func (p *Platform) allParts() []part {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.parts[:len(p.parts):len(p.parts)]
}

// applyToParts stops at the first part that cannot have the config; the watcher
// tries again, so a part must bear to be told the same config twice.
func (p *Platform) applyToParts(ctx context.Context, c *config.Config) error {
	for _, each := range p.allParts() {
		if each.apply == nil {
			continue
		}
		if err := each.apply(ctx, c); err != nil {
			return fmt.Errorf("apply the config to %s: %w", each.name, err)
		}
	}
	return nil
}

// checks are the probes of the parts that have one.
func (p *Platform) checks() []func(context.Context) api.Check {
	var all []func(context.Context) api.Check
	for _, each := range p.allParts() {
		if each.check != nil {
			all = append(all, each.check)
		}
	}
	return all
}
