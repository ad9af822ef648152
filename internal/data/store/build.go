package store

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"tidemill.dev/api"
)

// loader gets a node by its digest.
type loader func(digest string) (*node, error)

// builder makes the nodes of a tree from its files in order. It reuses nodes of another tree if
// they would be the same.
type builder struct {
	levels []growing
	made   map[string]made // by digest
}

// growing is the unfinished node of a level.
type growing struct {
	node
	ended int // number of finished nodes of the level
}

type made struct {
	node *node
	data []byte
}

func newBuilder() *builder {
	return &builder{levels: make([]growing, 1), made: map[string]made{}}
}

func (b *builder) file(f api.File) {
	b.levels[0].files = append(b.levels[0].files, f)
	if rank(f.Path) > 0 {
		b.end(0)
	}
}

// aligned reports whether a finished node of a level can be added: no node up to its level has
// begun.
func (b *builder) aligned(level int) bool {
	for l := range min(level+1, len(b.levels)) {
		if g := b.levels[l]; len(g.files)+len(g.kids) > 0 {
			return false
		}
	}
	return true
}

// kid adds a finished node of a level.
func (b *builder) kid(level int, k kid) {
	for len(b.levels) < level+2 {
		b.levels = append(b.levels, growing{node: node{level: len(b.levels)}})
	}
	b.levels[level].ended++
	up := &b.levels[level+1]
	up.kids = append(up.kids, k)
	if rank(k.last) > level+1 {
		b.end(level + 1)
	}
}

// end finishes the node of a level.
func (b *builder) end(level int) {
	n := b.levels[level].node
	b.levels[level].node = node{level: level}
	b.kid(level, b.make(&n))
}

func (b *builder) make(n *node) kid {
	data := n.encode()
	k := n.short(data)
	b.made[k.digest] = made{n, data}
	return k
}

// root finishes the tree and returns its root, the lowest node that holds all of it.
func (b *builder) root(load loader) (kid, error) {
	if len(b.levels) == 1 && len(b.levels[0].files) == 0 {
		return b.make(&node{}), nil
	}
	for l := 0; ; l++ {
		g := &b.levels[l]
		if g.ended == 0 && len(g.kids) == 1 {
			return b.lowest(g.kids[0], load)
		}
		if len(g.files)+len(g.kids) > 0 {
			b.end(l)
		}
	}
}

// lowest skips top nodes that have only one node below.
func (b *builder) lowest(k kid, load loader) (kid, error) {
	for {
		n, err := b.load(k.digest, load)
		if err != nil || len(n.kids) != 1 {
			return k, err
		}
		k = n.kids[0]
	}
}

// load returns a node that the builder has made, or else calls the loader.
func (b *builder) load(digest string, load loader) (*node, error) {
	if m, ok := b.made[digest]; ok {
		return m.node, nil
	}
	return load(digest)
}

// fresh returns the nodes of a tree that the builder has made, without reused ones.
func (b *builder) fresh(root string) map[string]made {
	all := map[string]made{}
	var visit func(digest string)
	visit = func(digest string) {
		m, ok := b.made[digest]
		if _, seen := all[digest]; seen || !ok {
			return
		}
		all[digest] = m
		for _, k := range m.node.kids {
			visit(k.digest)
		}
	}
	visit(root)
	return all
}

// part matches the name of a worker or parameter server of an attempt: w1 is the second worker, ps0
// the first parameter server.
var part = regexp.MustCompile(`^(w|ps)(0|[1-9][0-9]{0,4})$`)

// PutPartLog stores a chunk of the log of one worker or parameter server. The first worker's log is
// the attempt's log. Each process has a separate log because they cannot number chunks together.
func (s *Store) PutPartLog(ctx context.Context, run string, attempt int, process string, seq int, chunk []byte) error {
	if err := checkPart(run, attempt, process); err != nil {
		return err
	}
	if seq < 0 {
		return invalid("chunk %d of a log cannot be: they count from 0", seq)
	}
	if seq == 0 { // the name is registered before the first chunk
		if err := s.bucket.put(ctx, partsOf(run, attempt)+process, nil); err != nil {
			return fmt.Errorf("note that attempt %d of run %s has %s: %w", attempt, run, process, err)
		}
	}
	if err := s.bucket.put(ctx, chunkKey(logOf(run, attempt, process), seq), chunk); err != nil {
		return fmt.Errorf("put chunk %d of the log of %s, attempt %d of run %s: %w", seq, process, attempt, run, err)
	}
	return nil
}

// ReadPartLog is like ReadLog, for the log of one worker or parameter server.
func (s *Store) ReadPartLog(ctx context.Context, run string, attempt int, process string, from int, gaps bool, fn func(seq int, chunk []byte) error) error {
	if err := checkPart(run, attempt, process); err != nil {
		return err
	}
	return s.readLog(ctx, logOf(run, attempt, process), from, gaps, fn)
}

// LogParts returns the workers and parameter servers of an attempt that have a log, in order and
// without the first worker.
func (s *Store) LogParts(ctx context.Context, run string, attempt int) (all []string, err error) {
	if err := checkRun(run); err != nil {
		return nil, err
	}
	prefix := partsOf(run, attempt)
	err = s.bucket.list(ctx, prefix, func(i item) error {
		if process := strings.TrimPrefix(i.key, prefix); part.MatchString(process) {
			all = append(all, process)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the logs of attempt %d of run %s: %w", attempt, run, err)
	}
	slices.SortFunc(all, byPart)
	return all, nil
}

// byPart puts workers before servers, and 2 before 10.
func byPart(a, b string) int {
	switch server := strings.HasPrefix(a, "ps"); {
	case server && !strings.HasPrefix(b, "ps"):
		return 1
	case !server && strings.HasPrefix(b, "ps"):
		return -1
	case len(a) != len(b):
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}

func checkPart(run string, attempt int, process string) error {
	if err := checkRun(run); err != nil {
		return err
	}
	if attempt < 1 || !part.MatchString(process) {
		return invalid("%q of attempt %d of run %s cannot be", process, attempt, run)
	}
	return nil
}

func partsOf(run string, attempt int) string {
	return fmt.Sprintf("%s%s/parts-%04d/", runsPrefix, run, attempt)
}

// each calls fn for all items, several in parallel, and returns the first error. After an error it
// starts no further call.
func each[T any](ctx context.Context, ways int, items []T, fn func(context.Context, T) error) error {
	if len(items) == 1 || ways < 2 {
		return oneByOne(ctx, items, fn)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan T)
	var all sync.WaitGroup
	for range min(ways, len(items)) {
		all.Go(func() {
			for i := range next {
				if err := fn(ctx, i); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	feed(ctx, next, items)
	all.Wait()
	return context.Cause(ctx)
}

func feed[T any](ctx context.Context, next chan<- T, items []T) {
	defer close(next)
	for _, i := range items {
		select {
		case next <- i:
		case <-ctx.Done():
			return
		}
	}
}

func oneByOne[T any](ctx context.Context, items []T, fn func(context.Context, T) error) error {
	for _, i := range items {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := fn(ctx, i); err != nil {
			return err
		}
	}
	return nil
}
