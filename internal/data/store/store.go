package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// ErrNotFound says that there is no such object, tree, commit, branch or file.
var ErrNotFound = errors.New("is not in the store")

// ErrCorrupt says that bytes are not those that their digest names.
var ErrCorrupt = errors.New("is corrupt in the store")

// ErrMissing says that objects have to be put before they can be named.
var ErrMissing = errors.New("has to be put first")

// ErrInvalid says that what was asked for cannot be: a path, a name, a file that
// is in the way of a folder. Asking again will not help.
var ErrInvalid = errors.New("cannot be")

// DefaultGrace is how long what nothing names is certainly kept.
const DefaultGrace = 24 * time.Hour

// Options say how to work.
type Options struct {
	URL    string // such as file:///var/lib/tidemill/store or s3://bucket?region=eu-1; a path is a folder
	Logger *slog.Logger
	// Grace is how long an object is kept that nothing names yet; DefaultGrace if
	// it is 0. All who work on a store must have the same.
	Grace time.Duration
	// Watch is told the key before and after each write, in the middle of it:
	// tests end the process there. Nil is nobody.
	Watch func(key string)
}

// Store is open.
type Store struct {
	bucket *bucket
	nodes  *nodeCache
	grace  time.Duration
	log    *slog.Logger
	now    func() time.Time
	small  sync.Pool // of *[]byte, smallObject long

	listsLock sync.Mutex
	lists     map[string]bool // of collections, that are finished; replaced, never changed
}

// Open reaches the store. A folder is made if it is not there.
func Open(ctx context.Context, o Options) (*Store, error) {
	if o.Grace == 0 {
		o.Grace = DefaultGrace
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	b, err := openBucket(ctx, o.URL)
	if err != nil {
		return nil, fmt.Errorf("open the store: %w", err)
	}
	b.watch = o.Watch
	s := &Store{bucket: b, nodes: newNodeCache(cachedBytes), grace: o.Grace, log: o.Logger, now: time.Now}
	s.small.New = func() any { b := make([]byte, smallObject); return &b }
	if err := s.Ping(ctx); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return s, nil
}

// Close ends it.
func (s *Store) Close() error { return s.bucket.close() }

// Ping asks whether it answers.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.bucket.ping(ctx); err != nil {
		return fmt.Errorf("ask the store %s whether it is there: %w", s.bucket.name, err)
	}
	return nil
}

// invalid is an error that asking again will not help against.
func invalid(format string, args ...any) error {
	return &invalidError{fmt.Sprintf(format, args...)}
}

type invalidError struct{ text string }

func (e *invalidError) Error() string        { return e.text }
func (e *invalidError) Is(target error) bool { return target == ErrInvalid }
