package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"tidemill.dev/broker/network"
)

// ErrNotFound is returned for an object, tree, commit, branch or file that does not exist.
var ErrNotFound = errors.New("is not in the store")

// ErrCorrupt is returned for bytes that do not have the digest that names them.
var ErrCorrupt = errors.New("is corrupt in the store")

// ErrMissing is returned if a tree or commit names objects that have not been put yet.
var ErrMissing = errors.New("has to be put first")

// ErrInvalid is returned for a request that cannot succeed: a bad path or name, or a file where a
// folder is. Retrying does not help.
var ErrInvalid = errors.New("cannot be")

// DefaultGrace is the time for which an unreferenced object is certainly kept.
const DefaultGrace = 24 * time.Hour

// Options configure a store.
type Options struct {
	URL string // file:///var/lib/tidemill/store or s3://bucket?region=eu-1; a plain path names a folder
	// Grace is the time for which an unreferenced object is kept; 0 means DefaultGrace. All
	// processes that use a store must have the same value.
	Grace time.Duration
	// Watch is called with the key before, during and after each write: tests end the process
	// there. It may be nil.
	Watch func(key string)
	// Network is the network of the connections to a bucket.
	Network network.Network
}

// Store is an open store.
type Store struct {
	bucket *bucket
	nodes  *nodeCache
	grace  time.Duration
	now    func() time.Time
	small  sync.Pool     // pool of *[]byte, each smallObject long
	large  chan struct{} // full while as many large objects are written again as the memory allows
	many   chan struct{} // full while as many large trees are settled as a bucket answers in time

	listsLock sync.Mutex
	lists     map[string]bool // keys of the condemned lists that are finished; the map is replaced, never changed
}

// Open opens a store. It creates the folder if the folder does not exist.
func Open(ctx context.Context, o Options) (*Store, error) {
	if o.Grace == 0 {
		o.Grace = DefaultGrace
	}
	b, err := openBucket(o.URL, o.Network)
	if err != nil {
		return nil, fmt.Errorf("open the store: %w", err)
	}
	b.watch = o.Watch
	s := &Store{bucket: b, nodes: newNodeCache(cachedBytes), grace: o.Grace, now: time.Now, large: make(chan struct{}, rewrites),
		many: make(chan struct{}, manyTrees)}
	s.small.New = func() any { b := make([]byte, smallObject); return &b }
	err = s.Ping(ctx)
	if c, ok := b.backend.(interface {
		check(ctx context.Context) error
	}); ok && err == nil {
		if err = c.check(ctx); err != nil {
			err = fmt.Errorf("check the store %s: %w", b.name, err)
		}
	}
	if err != nil {
		b.close()
		return nil, err
	}
	return s, nil
}

// Close closes the store.
func (s *Store) Close() error {
	s.bucket.close()
	return nil
}

// Ping checks that the store answers.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.bucket.ping(ctx); err != nil {
		return fmt.Errorf("ask the store %s whether it is there: %w", s.bucket.name, err)
	}
	return nil
}

// invalid returns an error that is ErrInvalid: retrying does not help.
func invalid(format string, args ...any) error {
	return &invalidError{fmt.Sprintf(format, args...)}
}

type invalidError struct{ text string }

func (e *invalidError) Error() string        { return e.text }
func (e *invalidError) Is(target error) bool { return target == ErrInvalid }
