package ledger

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
)

// claimLasts is how long a claim keeps a slot if it is neither confirmed nor returned. A
// process that dies with a claim delays its run for so long. If a process takes longer to
// start the run, another process may start it too; the log accepts only one start.
const claimLasts = 5 * time.Second

// Slot is a claim to start one attempt in a pool.
type Slot struct{ Pool, Recipe, Key, Run string }

// Ask is a request for a slot of a pool.
type Ask struct {
	Pool    string
	Slots   int         // number of slots; 0 for no limit
	Recipes []Admission // recipes that use the pool and may start runs
}

// Admission is a recipe that may get a slot.
type Admission struct {
	Recipe     string
	MaxRunning int // limit for attempts of the recipe in all pools; 0 for none
	Priority   int // priority that is added to that of its runs
}

// Claim takes a slot for the next run of a pool: the run of the highest priority; of equal runs,
// the run of the recipe with the fewest attempts in the pool; of these, the run that was due first.
// It returns false if no slot is free or no run is due. The fold of the run's start confirms the
// claim. A claim that is neither confirmed nor returned expires.
func (l *Ledger) Claim(ctx context.Context, a Ask, now time.Time) (Slot, bool, error) {
	least, err := l.progress.known()
	if err != nil {
		return Slot{}, false, err
	}
	args := []any{l.prefix, least.fill, least.sum, now.UnixMilli(), millisUp(now.Add(claimLasts)), escapePool(a.Pool), a.Slots}
	for _, r := range a.Recipes {
		args = append(args, r.Recipe, r.MaxRunning, r.Priority)
	}
	answer, err := scriptClaim.Run(ctx, l.o.Redis, []string{l.key("at"), l.claims}, args...).StringSlice()
	switch {
	case err != nil:
		return Slot{}, false, fmt.Errorf("claim a slot of pool %s in redis: %w", a.Pool, err)
	case answer[0] == "behind":
		return Slot{}, false, l.recheckNow()
	case answer[0] != "claimed":
		return Slot{}, false, nil
	}
	recipe, key, _ := strings.Cut(answer[1], "/")
	return Slot{Pool: a.Pool, Recipe: recipe, Key: key, Run: answer[2]}, true, nil
}

// Return gives back a claim whose run was not started.
func (l *Ledger) Return(ctx context.Context, s Slot) error { return l.giveBack(ctx, s, "") }

// Postpone gives back a claim whose run cannot start for now. It is claimed again after the given time, and other runs of its
// recipe come first.
func (l *Ledger) Postpone(ctx context.Context, s Slot, until time.Time) error {
	return l.giveBack(ctx, s, millisUp(until))
}

func (l *Ledger) giveBack(ctx context.Context, s Slot, due any) error {
	least, _ := l.progress.known() // it fails while it catches up; a claim of an old filling is lost anyway
	err := scriptReturn.Run(ctx, l.o.Redis, []string{l.key("at"), l.claims}, l.prefix, least.fill, tidemill.RunKey(s.Recipe, s.Key), escapePool(s.Pool), s.Recipe, s.Run, due).Err()
	if err != nil {
		return fmt.Errorf("return the slot of run %s in redis; it is free again %s after it was claimed: %w", s.Run, claimLasts, err)
	}
	return nil
}

// NextDue returns the time at which the next run will be due, zero if there is none, and
// the number of runs that are due now. A claimed run is due when its claim ends.
func (l *Ledger) NextDue(ctx context.Context, now time.Time) (next time.Time, due int, err error) {
	next, by, err := l.queues(ctx, now)
	for _, n := range by {
		due += n
	}
	return next, due, err
}

// queues returns the time at which the next run will be due, and the number of runs that
// are due now, by recipe.
func (l *Ledger) queues(ctx context.Context, now time.Time) (next time.Time, due map[string]int, err error) {
	least, err := l.progress.known()
	if err != nil {
		return time.Time{}, nil, err
	}
	answer, err := scriptLook.Run(ctx, l.o.Redis, []string{l.key("at")}, l.prefix, least.fill, least.sum, now.UnixMilli()).StringSlice()
	switch {
	case err != nil:
		return time.Time{}, nil, fmt.Errorf("look at the queues in redis: %w", err)
	case answer[0] == "behind":
		return time.Time{}, nil, l.recheckNow()
	}
	if ms := parseNumber(answer[1]); answer[1] != "" {
		next = time.UnixMilli(ms).UTC()
	}
	due = map[string]int{}
	for i := 2; i+1 < len(answer); i += 2 {
		if n := parseNumber(answer[i+1]); n > 0 {
			due[answer[i]] = int(n)
		}
	}
	return next, due, nil
}

// Busy has the numbers of attempts that are under way or claimed, by pool and by recipe.
type Busy struct{ Pools, Recipes map[string]int }

// Busy counts in the same way as [Ledger.Claim], so that it explains why Claim returns false.
func (l *Ledger) Busy(ctx context.Context, now time.Time) (Busy, error) {
	var running *redis.MapStringStringCmd
	var claims *redis.StringSliceCmd
	err := l.readConsistent(ctx, func(pipe redis.Pipeliner) {
		running, claims = pipe.HGetAll(ctx, l.key("running")), pipe.HVals(ctx, l.claims)
	})
	if err != nil {
		return Busy{}, fmt.Errorf("count the live runs: %w", err)
	}
	b := Busy{Pools: map[string]int{}, Recipes: map[string]int{}}
	for name, n := range running.Val() {
		b.add(name, int(parseNumber(n)))
	}
	for _, claim := range claims.Val() {
		words := strings.SplitN(claim, " ", 4) // end, pool, recipe, run
		if strings.HasSuffix(claim, "/"+l.prefix) || parseNumber(words[0]) <= now.UnixMilli() {
			continue // its run has started, or it has expired
		}
		b.add(words[1], 1)
		b.add(words[1]+"/"+words[2], 1)
		b.add("/"+words[2], 1)
	}
	return b, nil
}

// add adds a field's number. The field is that of a pool, of a recipe in a pool, or of a
// recipe in all pools.
func (b *Busy) add(name string, n int) {
	pool, recipe, of := strings.Cut(name, "/")
	switch {
	case !of:
		b.Pools[pool] += n
	case pool == "":
		b.Recipes[recipe] += n
	}
}
