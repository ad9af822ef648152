package ledger

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
)

// claimLasts is how long a claim keeps a slot that is neither confirmed nor
// returned. Who dies with one holds up its run for as long; who takes longer may find
// that another has started it, and the log lets one of them.
const claimLasts = 5 * time.Second

// Slot is a claim to start one attempt in a pool.
type Slot struct{ Pool, Recipe, Key, Run string }

// Ask is what is admitted to a pool.
type Ask struct {
	Pool    string
	Slots   int         // 0 is no bound
	Recipes []Admission // that use the pool and may start
}

// Admission is a recipe that asks for slots.
type Admission struct {
	Recipe     string
	MaxRunning int // 0 is no bound
	Priority   int // added to that of its runs
}

// Claim takes the slot of the run that is next in a pool: the highest priority,
// then the recipe with the fewest attempts under way there, then the oldest. It
// is false if there is no slot or nothing is due. A claim that is neither
// confirmed, by the fold of the run's start, nor returned ends by itself.
func (l *Ledger) Claim(ctx context.Context, a Ask, now time.Time) (Slot, bool, error) {
	sum, err := l.decidable()
	if err != nil {
		return Slot{}, false, err
	}
	args := []any{l.prefix, sum, now.UnixMilli(), millisUp(now.Add(claimLasts)), field(a.Pool), a.Slots}
	for _, r := range a.Recipes {
		args = append(args, r.Recipe, r.MaxRunning, r.Priority)
	}
	answer, err := scriptClaim.Run(ctx, l.o.Redis, []string{l.key("at")}, args...).StringSlice()
	switch {
	case err != nil:
		return Slot{}, false, fmt.Errorf("claim a slot of pool %s in redis: %w", a.Pool, err)
	case answer[0] == "behind":
		return Slot{}, false, l.behind()
	case answer[0] != "claimed":
		return Slot{}, false, nil
	}
	recipe, key, _ := strings.Cut(answer[1], "/")
	return Slot{Pool: a.Pool, Recipe: recipe, Key: key, Run: answer[2]}, true, nil
}

// Return gives a claim back that led to no start.
func (l *Ledger) Return(ctx context.Context, s Slot) error {
	err := scriptReturn.Run(ctx, l.o.Redis, []string{l.key("at")}, l.prefix, tidemill.RunKey(s.Recipe, s.Key), field(s.Pool), s.Recipe, s.Run).Err()
	if err != nil {
		return fmt.Errorf("return the slot of run %s in redis; it is free again %s after it was claimed: %w", s.Run, claimLasts, err)
	}
	return nil
}

// NextDue is when the earliest run that is not due yet will be, zero if there is
// none, and how many are due. A run that is claimed is due when its claim ends.
func (l *Ledger) NextDue(ctx context.Context, now time.Time) (next time.Time, due int, err error) {
	next, by, err := l.queues(ctx, now)
	for _, n := range by {
		due += n
	}
	return next, due, err
}

// queues tells what waits: when the next is due, and how many are, by recipe.
func (l *Ledger) queues(ctx context.Context, now time.Time) (next time.Time, due map[string]int, err error) {
	sum, err := l.decidable()
	if err != nil {
		return time.Time{}, nil, err
	}
	answer, err := scriptLook.Run(ctx, l.o.Redis, []string{l.key("at")}, l.prefix, sum, now.UnixMilli()).StringSlice()
	switch {
	case err != nil:
		return time.Time{}, nil, fmt.Errorf("look at the queues in redis: %w", err)
	case answer[0] == "behind":
		return time.Time{}, nil, l.behind()
	}
	if ms := number(answer[1]); answer[1] != "" {
		next = time.UnixMilli(ms).UTC()
	}
	due = map[string]int{}
	for i := 2; i+1 < len(answer); i += 2 {
		if n := number(answer[i+1]); n > 0 {
			due[answer[i]] = int(n)
		}
	}
	return next, due, nil
}

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
