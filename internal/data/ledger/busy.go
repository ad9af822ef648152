package ledger

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Busy is how many attempts are under way or about to be, in each pool and of
// each recipe.
type Busy struct{ Pools, Recipes map[string]int }

// Busy counts as [Ledger.Claim] does, so that it tells why that claims nothing.
func (l *Ledger) Busy(ctx context.Context) (Busy, error) {
	var running, held *redis.MapStringStringCmd
	err := l.consistent(ctx, func(pipe redis.Pipeliner) {
		running, held = pipe.HGetAll(ctx, l.key("running")), pipe.HGetAll(ctx, l.key("held"))
	})
	if err != nil {
		return Busy{}, fmt.Errorf("count what is under way: %w", err)
	}
	b := Busy{Pools: map[string]int{}, Recipes: map[string]int{}}
	for _, fields := range []map[string]string{running.Val(), held.Val()} {
		for name, n := range fields {
			b.add(name, int(number(n)))
		}
	}
	return b, nil
}

// add takes in a field: of a pool, of a pool's recipe, or of a recipe in all.
func (b *Busy) add(name string, n int) {
	pool, recipe, of := strings.Cut(name, "/")
	switch {
	case !of:
		b.Pools[pool] += n
	case pool == "":
		b.Recipes[recipe] += n
	}
}
