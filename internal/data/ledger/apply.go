package ledger

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// errAhead says that another process has applied facts to the same partitions.
var errAhead = errors.New("others have applied facts")

// apply folds a batch and writes the changes. The partitions of a large batch are divided
// among a few lanes, so that some facts are folded while others are written.
func (l *Ledger) apply(ctx context.Context, b *batch) error {
	for partition := range b.parts {
		l.cache(partition) // lanes must not create caches concurrently
	}
	lanes := b.deal()
	if len(lanes) == 1 {
		return l.applyLane(ctx, lanes[0])
	}
	errs := make([]error, len(lanes))
	var working sync.WaitGroup
	for i, lane := range lanes {
		working.Go(func() { errs[i] = l.applyLane(ctx, lane) })
	}
	working.Wait()
	return firstWorst(errs)
}

// firstWorst returns the error of a batch. If Redis has forgotten facts, firstWorst returns
// errForgotten, because it explains all other errors. errAhead is returned only if there is no
// other error.
func firstWorst(errs []error) (worst error) {
	for _, err := range errs {
		if errors.Is(err, errForgotten) || worst == nil || err != nil && errors.Is(worst, errAhead) {
			worst = err
		}
	}
	return worst
}

// applyLane applies some facts at a time. If another process applies some of these facts first,
// applyLane continues after these facts. If unwritten changes were lost, applyLane returns the
// error, because the facts of these changes must be read again.
func (l *Ledger) applyLane(ctx context.Context, b *batch) error {
	for {
		parts := b.cut(l.o.atOnce, l.upTo)
		if len(parts) == 0 {
			return nil
		}
		err := l.applyOnce(ctx, parts)
		if err == nil {
			continue
		}
		for _, p := range parts { // their caches were changed, but Redis was not
			l.cache(p.partition).clear()
		}
		if !errors.Is(err, errAhead) || b.hasGap(parts, l.upTo) {
			return err
		}
	}
}

// applyOnce folds some facts, and writes the changes that are due.
func (l *Ledger) applyOnce(ctx context.Context, parts []*batchPart) error {
	began := time.Now()
	if err := l.load(ctx, parts); err != nil {
		return err
	}
	var due []*unwritten
	for _, p := range parts {
		u := l.cache(p.partition).unwritten
		u.fold(p)
		l.progress.fold(p.partition, u.next)
		if end, far := l.far[p.partition]; u.isDue(end, far, l.o.rows) {
			due = append(due, u)
		}
	}
	if len(due) == 0 {
		return nil
	}
	if err := l.write(ctx, due); err != nil {
		return err
	}
	l.metrics.batches.Observe(time.Since(began).Seconds())
	return nil
}

func (l *Ledger) write(ctx context.Context, due []*unwritten) error {
	all, facts := make([]*changes, len(due)), 0
	for i, u := range due {
		var err error
		if all[i], err = u.changes(); err != nil {
			return err
		}
		facts += u.facts
	}
	at, err := scriptApply.Run(ctx, l.client, []string{l.key("at"), l.claims}, l.scriptArguments(all)...).StringSlice()
	if err != nil {
		return fmt.Errorf("write %d facts to redis: %w", facts, err)
	}
	if len(at) == 1 && at[0] == "lost" {
		return errForgotten
	}
	if len(at) > 0 {
		return l.checkOffsets(partitionsOf(due), at)
	}
	steps := make([]step, len(all))
	for i, c := range all {
		steps[i] = step{c.partition, c.next, c.states}
		l.cache(c.partition).unwritten = nil
	}
	l.metrics.facts.Add(float64(facts)) // before the callers that wait for them are released
	l.progress.advance(steps...)
	return nil
}

func partitionsOf(all []*unwritten) []int32 {
	partitions := make([]int32, len(all))
	for i, u := range all {
		partitions[i] = u.partition
	}
	return partitions
}

// checkOffsets handles offsets of Redis that differ from the expected ones. The error is errForgotten
// if one is lower, and errAhead if another process was faster.
func (l *Ledger) checkOffsets(partitions []int32, at []string) error {
	var steps []step
	for i, partition := range partitions {
		next, err := strconv.ParseInt(at[i], 10, 64)
		if err != nil {
			return fmt.Errorf("read how far redis is: %w", err)
		}
		known := l.progress.reached(partition)
		if next < known {
			return errForgotten
		}
		if next > known {
			steps = append(steps, step{partition: partition, next: next})
		}
	}
	l.progress.advance(steps...)
	return errAhead
}

func (l *Ledger) cache(partition int32) *caches {
	s := l.caches[partition]
	if s == nil {
		s = &caches{}
		l.caches[partition] = s
	}
	return s
}

// upTo returns the offset up to which the facts of a partition have been folded. It is the
// offset in Redis, or a later one if there are unwritten changes.
func (l *Ledger) upTo(partition int32) int64 {
	if s := l.caches[partition]; s != nil && s.unwritten != nil {
		return s.unwritten.next
	}
	return l.progress.reached(partition)
}

// scriptArguments returns the arguments of the script, section by section.
func (l *Ledger) scriptArguments(all []*changes) []any {
	least, _ := l.progress.known() // facts are applied while it catches up too
	args := []any{l.prefix, least.fill, len(all)}
	for _, c := range all {
		last := ""
		if c.last != nil {
			last = c.last.String()
		}
		args = append(args, c.partition, c.from, c.next, last)
	}
	args = appendHashes(args, all)
	args = section(args, all, 3, (*changes).runs)
	args = section(args, all, 2, func(c *changes) []string { return c.live })
	args = section(args, all, 3, func(c *changes) []string { return c.pending })
	args = section(args, all, 3, func(c *changes) []string { return c.keys })
	return section(args, all, 3, func(c *changes) []string { return c.made })
}

// appendHashes appends the fields that the script writes unchanged: the number of hashes, then
// the name and the section of each.
func appendHashes(args []any, all []*changes) []any {
	rows := map[string][]any{}
	for _, c := range all {
		for at, whole := range c.states {
			rows[at.hash] = append(rows[at.hash], at.member, whole)
		}
		for hash, fields := range c.records {
			for _, f := range fields {
				rows[hash] = append(rows[hash], f)
			}
		}
	}
	args = append(args, len(rows))
	for hash, of := range rows {
		args = append(slices.Grow(args, 2+len(of)), hash, len(of)/2)
		args = append(args, of...)
	}
	return args
}

func section(args []any, all []*changes, width int, of func(*changes) []string) []any {
	first := len(args)
	args = append(args, 0)
	for _, c := range all {
		for _, a := range of(c) {
			args = append(args, a)
		}
	}
	args[first] = (len(args) - first - 1) / width
	return args
}

//go:embed scripts/whole.lua
var luaWholeOf string

// luaWhole begins with the names of the keys whose sizes the scripts compare.
var luaWhole = "local hashes, roots = {'" + strings.Join(sizedHashes, "', '") + "'}, {'" + strings.Join(sizedRoots, "', '") + "'}\n" + luaWholeOf

//go:embed scripts/trie.lua
var luaTrie string

//go:embed scripts/change.lua
var luaChange string

//go:embed scripts/links.lua
var luaLinks string

//go:embed scripts/apply.lua
var luaApply string

//go:embed scripts/ready.lua
var luaReady string

//go:embed scripts/forget.lua
var luaForget string

//go:embed scripts/check.lua
var luaCheck string

//go:embed scripts/lost.lua
var luaLost string

//go:embed scripts/claim.lua
var luaClaim string

//go:embed scripts/return.lua
var luaReturn string

//go:embed scripts/look.lua
var luaLook string

//go:embed scripts/page.lua
var luaPage string

// The Lua scripts. The variables must not be changed.
var (
	scriptApply  = redis.NewScript(luaWhole + luaTrie + luaChange + luaLinks + luaApply)
	scriptReady  = redis.NewScript(luaWhole + luaReady)
	scriptCheck  = redis.NewScript(luaWhole + luaCheck)
	scriptLost   = redis.NewScript(luaWhole + luaLost)
	scriptForget = redis.NewScript(luaWhole + luaForget)
	scriptClaim  = redis.NewScript(luaWhole + luaTrie + luaChange + luaClaim)
	scriptReturn = redis.NewScript(luaWhole + luaTrie + luaChange + luaReturn)
	scriptLook   = redis.NewScript(luaWhole + luaTrie + luaLook)
	scriptPage   = redis.NewScript(luaWhole + luaTrie + luaPage)
)
