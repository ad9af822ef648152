package score

import (
	"fmt"

	"tidemill.dev"
	"tidemill.dev/config"
	"tidemill.dev/internal/infer"
	"tidemill.dev/internal/served"
)

// target is a model that events are meant for, by its name.
type target struct {
	name string
	slot *served.Slot // nil until the model has a champion: names may come from anybody

	batch uint64 // of which group is meant
	group int32

	waiting []item // for the model to be loaded, in the order they came
	queued  bool   // the session knows that something waits
	version int    // that text is of
	text    string

	asked   []asked      // keys whose events are parked until it is there
	kept    *infer.Model // for the present batch
	watched bool         // something wakes the pipeline when the slot may have changed
}

// keyed is a key that events have come with.
type keyed struct {
	key    string
	target *target
	// The last event of the key was scored here and by this version: the next
	// one of the same says nothing new.
	tenure  *tenure
	model   string
	version int
}

// cache finds the model of a key. It forgets what has not been asked for in the
// time of so many other keys.
type cache struct {
	template    string
	most        int
	keys, older map[string]*keyed
	targets     map[string]*target
}

const mostKeys = 1 << 16

func newCache(template string, most int) *cache {
	return &cache{template: template, most: most, keys: map[string]*keyed{}, targets: map[string]*target{}}
}

// of is what is known of a key, which may point into an event.
func (c *cache) of(key string) (*keyed, error) {
	if k := c.keys[key]; k != nil {
		return k, nil
	}
	k := c.older[key]
	if k == nil {
		name, err := config.Expand(c.template, func(string) (string, bool) { return key, true })
		if err == nil {
			err = tidemill.CheckDataset(name)
		}
		if err != nil {
			return nil, fmt.Errorf("its key names no model: %w", err)
		}
		k = &keyed{key: string([]byte(key)), target: c.target(name)}
	}
	c.keep(k)
	return k, nil
}

func (c *cache) keep(k *keyed) {
	if len(c.keys) >= c.most {
		c.older, c.keys = c.keys, make(map[string]*keyed, c.most)
		c.sweep()
	}
	c.keys[k.key] = k
}

// sweep forgets the models of keys that were forgotten, unless events wait for
// them.
func (c *cache) sweep() {
	used := map[*target]bool{}
	for _, k := range c.older {
		used[k.target] = true
	}
	for name, t := range c.targets {
		if !used[t] && len(t.waiting)+len(t.asked) == 0 {
			delete(c.targets, name)
		}
	}
}

// target is the one of a model's name.
func (c *cache) target(name string) *target {
	t := c.targets[name]
	if t == nil {
		t = &target{name: name}
		c.targets[name] = t
	}
	return t
}
