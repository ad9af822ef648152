package runs

import (
	"maps"
	"sync"
	"time"
)

// crowdedFor is how long a recipe is taken to find no slot without another look.
const crowdedFor = 100 * time.Millisecond

// crowds are the recipes for whose due runs there was no slot. Of ten thousand
// wishes that come at once all but the first need not ask again: each end of an
// attempt looks who is next. What that misses, a slot that was freed elsewhere
// say, is found by who watches, or by the next wish after a moment.
type crowds struct {
	mu sync.Mutex
	of map[string]crowd
}

type crowd struct {
	pool  string
	until time.Time
}

func (c *crowds) at(recipe string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.Before(c.of[recipe].until)
}

func (c *crowds) note(recipe, pool string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string]crowd{}
	}
	c.of[recipe] = crowd{pool, now.Add(crowdedFor)}
}

// over says that a slot of a pool has become free that nobody wanted.
func (c *crowds) over(pool string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.of, func(_ string, one crowd) bool { return one.pool == pool })
}
