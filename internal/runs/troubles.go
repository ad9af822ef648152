package runs

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// asideFor is how long a recipe is left out of its pool after its next run could
// not be planned. Otherwise it would be the next again, and nobody behind it
// would ever have a turn.
const asideFor = 5 * time.Second

// troubles are the recipes whose runs cannot begin for now, through no fault of
// theirs: the store does not answer, say.
type troubles struct {
	mu sync.Mutex
	of map[string]trouble
}

type trouble struct {
	err   error
	until time.Time
}

// add puts a recipe aside. It tells whether it was not before.
func (t *troubles) add(recipe string, err error, now time.Time) (news bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of = map[string]trouble{}
	}
	_, was := t.of[recipe]
	t.of[recipe] = trouble{err, now.Add(asideFor)}
	return !was
}

// over says that a run of the recipe could be planned.
func (t *troubles) over(recipe string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.of, recipe)
}

func (t *troubles) aside(recipe string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return now.Before(t.of[recipe].until)
}

// err is what has to be reported: also of a recipe whose turn has just come
// again. If nobody tries it any more, as its run was cancelled, that ends.
func (t *troubles) err(now time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, recipe := range slices.Sorted(maps.Keys(t.of)) {
		if now.After(t.of[recipe].until.Add(asideFor)) {
			delete(t.of, recipe)
			continue
		}
		errs = append(errs, fmt.Errorf("begin a run of recipe %s: %w", recipe, t.of[recipe].err))
	}
	return errors.Join(errs...)
}
