package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strconv"
	"strings"

	"tidemill.dev/api"
)

// PutLog stores a chunk of an attempt's log; seq counts from 0. A chunk that is put twice is stored
// once.
func (s *Store) PutLog(ctx context.Context, run string, attempt, seq int, chunk []byte) error {
	if err := checkRun(run); err != nil {
		return err
	}
	if attempt < 1 || seq < 0 {
		return invalid("chunk %d of the log of attempt %d of run %s cannot be: they count from 0 and 1", seq, attempt, run)
	}
	if err := s.bucket.put(ctx, chunkKey(logOf(run, attempt, ""), seq), chunk); err != nil {
		return fmt.Errorf("put chunk %d of the log of attempt %d of run %s: %w", seq, attempt, run, err)
	}
	return nil
}

// ReadLog calls fn with the chunks of an attempt's log from a number on, up to the first that does not exist. With gaps, it also
// looks for later chunks, because the store may have lost one. Then fn sees that a number is missing.
func (s *Store) ReadLog(ctx context.Context, run string, attempt, from int, gaps bool, fn func(seq int, chunk []byte) error) error {
	if err := checkRun(run); err != nil {
		return err
	}
	return s.readLog(ctx, logOf(run, attempt, ""), from, gaps, fn)
}

func (s *Store) readLog(ctx context.Context, log string, from int, gaps bool, fn func(seq int, chunk []byte) error) error {
	read := func(seq int) (found bool, err error) {
		chunk, err := s.bucket.get(ctx, chunkKey(log, seq))
		switch {
		case errors.Is(err, ErrNotFound):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("read chunk %d of the log %s: %w", seq, log, err)
		}
		return true, fn(seq, chunk)
	}
	next := max(from, 0)
	for ; ; next++ {
		if found, err := read(next); err != nil {
			return err
		} else if !found {
			break
		}
	}
	if !gaps {
		return nil
	}
	var later []int
	err := s.bucket.list(ctx, log, func(i item) error {
		if seq, err := strconv.Atoi(strings.TrimPrefix(i.key, log)); err == nil && seq >= next { // the others are of other workers
			later = append(later, seq)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list the chunks of the log %s: %w", log, err)
	}
	slices.Sort(later)
	for _, seq := range later {
		if _, err := read(seq); err != nil {
			return err
		}
	}
	return nil
}

// SetCheckpoint stores the tree from which a run continues. Each attempt has its own key, and the
// highest attempt's counts, so a superseded attempt changes nothing.
func (s *Store) SetCheckpoint(ctx context.Context, run string, attempt int, t api.TreeRef) error {
	if err := checkRun(run); err != nil {
		return err
	}
	if attempt < 1 || checkDigest(t.Tree) != nil {
		return invalid("checkpoint %q of attempt %d of run %s cannot be", t.Tree, attempt, run)
	}
	data, err := json.Marshal(t)
	if err == nil {
		err = s.bucket.put(ctx, checkpointKey(run, attempt), data)
	}
	if err != nil {
		return fmt.Errorf("put the checkpoint of attempt %d of run %s: %w", attempt, run, err)
	}
	return nil
}

// HasAdvanced reports whether an attempt has stored a checkpoint other than the one that was there.
func (s *Store) HasAdvanced(ctx context.Context, run string, attempt int) (bool, error) {
	all, err := s.checkpoints(ctx, run)
	at, found := slices.BinarySearch(all, attempt)
	if err != nil || !found {
		return false, err
	}
	own, err := s.checkpoint(ctx, checkpointKey(run, attempt))
	if err != nil || at == 0 {
		return err == nil, err
	}
	before, err := s.checkpoint(ctx, checkpointKey(run, all[at-1]))
	return err == nil && own.Tree != before.Tree, err
}

// checkpoints returns the attempts of a run that have stored a checkpoint, in order.
func (s *Store) checkpoints(ctx context.Context, run string) (attempts []int, err error) {
	if err := checkRun(run); err != nil {
		return nil, err
	}
	err = s.bucket.list(ctx, checkpointsOf(run), func(i item) error {
		if _, attempt, ok := cutCheckpoint(i.key); ok {
			attempts = append(attempts, attempt)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("checkpoints of run %s: %w", run, err)
	}
	slices.Sort(attempts)
	return attempts, nil
}

// Checkpoint returns the newest checkpoint of a run; ErrNotFound if there is none. A power cut can empty the newest:
// then it is the newest that can be read, and ErrCorrupt if there is none.
func (s *Store) Checkpoint(ctx context.Context, run string) (t api.TreeRef, err error) {
	attempts, err := s.checkpoints(ctx, run)
	if err != nil {
		return api.TreeRef{}, err
	}
	if len(attempts) == 0 {
		return api.TreeRef{}, fmt.Errorf("checkpoint of run %s: %w", run, ErrNotFound)
	}
	for _, attempt := range slices.Backward(attempts) {
		if t, err = s.checkpoint(ctx, checkpointKey(run, attempt)); !errors.Is(err, ErrCorrupt) {
			break
		}
	}
	return t, err
}

func (s *Store) checkpoint(ctx context.Context, key string) (t api.TreeRef, err error) {
	data, err := s.bucket.find(ctx, key)
	if err == nil && json.Unmarshal(data, &t) != nil {
		err = ErrCorrupt
	}
	if err != nil {
		return t, fmt.Errorf("checkpoint %s: %w", key, err)
	}
	return t, nil
}

// OpenFile reads a file, whole or in parts. Its reader fails at the end if the bytes do not have
// the file's digest.
func (s *Store) OpenFile(ctx context.Context, f api.File) (io.ReadCloser, error) {
	if len(f.Parts) == 0 {
		r, _, err := s.Object(ctx, f.Digest)
		return r, err
	}
	p := &parts{ctx: ctx, store: s, left: f.Parts}
	if err := p.next(); err != nil {
		return nil, err
	}
	return verify(p, f.Digest, f.Size), nil
}

// parts reads several objects one after the other.
type parts struct {
	ctx   context.Context // context of OpenFile, because Read has none
	store *Store
	left  []api.Part
	now   io.ReadCloser
}

func (p *parts) next() error {
	r, _, err := p.store.Object(p.ctx, p.left[0].Digest)
	if err == nil {
		p.now, p.left = r, p.left[1:]
	}
	return err
}

func (p *parts) Read(b []byte) (int, error) {
	n, err := p.now.Read(b)
	if !errors.Is(err, io.EOF) || len(p.left) == 0 {
		return n, err
	}
	return n, errors.Join(p.now.Close(), p.next())
}

func (p *parts) Close() error { return p.now.Close() }

// checkFile returns an error if a file is invalid.
func checkFile(f api.File) error {
	if err := CheckPath(f.Path); err != nil {
		return err
	}
	if err := checkDigest(f.Digest); err != nil {
		return invalid("file %q: %v", f.Path, err)
	}
	if len(f.Parts) == 0 {
		if f.Size < 0 || f.Size > api.PartSize {
			return invalid("file %q of %d bytes: one larger than %d must name its parts", f.Path, f.Size, api.PartSize)
		}
		return nil
	}
	return checkParts(f)
}

func checkParts(f api.File) error {
	sum := int64(0)
	for i, p := range f.Parts {
		if err := checkDigest(p.Digest); err != nil {
			return invalid("file %q: part %d: %v", f.Path, i, err)
		}
		if p.Size < 1 || p.Size > api.PartSize {
			return invalid("file %q: part %d has %d bytes: a part has 1 to %d", f.Path, i, p.Size, api.PartSize)
		}
		sum += p.Size
	}
	if sum != f.Size {
		return invalid("file %q has %d bytes, but its parts have %d", f.Path, f.Size, sum)
	}
	return nil
}

// objectsOf returns the objects of which files consist.
func objectsOf(files []api.File) []api.Part {
	all := make([]api.Part, 0, len(files))
	for _, f := range files {
		if len(f.Parts) == 0 {
			all = append(all, api.Part{Digest: f.Digest, Size: f.Size})
		}
		all = append(all, f.Parts...)
	}
	return unique(all)
}

// verified checks at the end of the bytes that they have the digest.
type verified struct {
	r      io.ReadCloser
	digest string
	left   int64
	hash   hash.Hash
	err    error // error that later reads return again
}

func verify(r io.ReadCloser, digest string, size int64) io.ReadCloser {
	return &verified{r: r, digest: digest, left: size, hash: sha256.New()}
}

func (v *verified) Read(p []byte) (int, error) {
	if v.err != nil {
		return 0, v.err
	}
	n, err := v.r.Read(p)
	v.hash.Write(p[:n])
	v.left -= int64(n)
	if errors.Is(err, io.EOF) {
		err = v.verdict()
	}
	v.err = err
	return n, err
}

func (v *verified) verdict() error {
	if v.left != 0 || hex.EncodeToString(v.hash.Sum(nil)) != v.digest {
		return fmt.Errorf("object %s %w: put it again to heal it", v.digest, ErrCorrupt)
	}
	return io.EOF
}

func (v *verified) Close() error { return v.r.Close() }
