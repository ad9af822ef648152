package store

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"tidemill.dev"
	"tidemill.dev/api"
)

const (
	smallObject = 64 << 10 // up to this it is read whole before anything is written
	copyBuffer  = 256 << 10
	signedFor   = 15 * time.Minute
)

// PutObject stores bytes, which must have the digest (SHA-256, hex) and size.
// Other bytes leave nothing. An object that is there is written again, which
// keeps it from a collection and heals it.
func (s *Store) PutObject(ctx context.Context, digest string, size int64, r io.Reader) error {
	if err := checkDigest(digest); err != nil {
		return err
	}
	put := s.putLarge
	if size <= smallObject {
		put = s.putSmall
	}
	if err := put(ctx, digest, size, r); err != nil {
		return fmt.Errorf("put object %s: %w", digest, err)
	}
	return nil
}

func (s *Store) putSmall(ctx context.Context, digest string, size int64, r io.Reader) error {
	lent := s.small.Get().(*[]byte)
	defer s.small.Put(lent)
	data := (*lent)[:size]
	if n, err := io.ReadFull(r, data); err != nil {
		return shorter(err, int64(n), size)
	}
	if err := ends(r, size); err != nil {
		return err
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != digest {
		return invalid("the bytes have the digest %x", sum)
	}
	return s.bucket.put(ctx, objectKey(digest), data)
}

func (s *Store) putLarge(ctx context.Context, digest string, size int64, r io.Reader) error {
	return s.bucket.write(ctx, objectKey(digest), nil, func(w io.Writer) error {
		h := sha256.New()
		n, err := io.CopyBuffer(io.MultiWriter(w, h), io.LimitReader(r, size), make([]byte, copyBuffer))
		if err == nil && n < size {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return shorter(err, n, size)
		}
		if err := ends(r, size); err != nil {
			return err
		}
		if sum := h.Sum(nil); hex.EncodeToString(sum) != digest {
			return invalid("the bytes have the digest %x", sum)
		}
		return nil
	})
}

// shorter says that bytes ended early, if that is what an error means.
func shorter(err error, have, want int64) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return invalid("%d bytes came of %d", have, want)
	}
	return fmt.Errorf("read its bytes: %w", err)
}

// ends makes sure that nothing follows.
func ends(r io.Reader, size int64) error {
	var one [1]byte
	switch n, err := io.ReadFull(r, one[:]); {
	case n > 0:
		return invalid("more than %d bytes came", size)
	case errors.Is(err, io.EOF):
		return nil
	default:
		return fmt.Errorf("read its bytes: %w", err)
	}
}

// Object opens an object. Its reader fails at the end if the bytes are not those
// that the digest names.
func (s *Store) Object(ctx context.Context, digest string) (r io.ReadCloser, size int64, err error) {
	if err := checkDigest(digest); err != nil {
		return nil, 0, err
	}
	b, err := s.bucket.open(ctx, objectKey(digest))
	if err != nil {
		return nil, 0, fmt.Errorf("object %s: %w", digest, err)
	}
	return verify(b, digest, b.Size()), b.Size(), nil
}

// Missing returns those that have to be put: they are not there. Those that are,
// but so old that a collection could take them before they are used, are made
// young.
func (s *Store) Missing(ctx context.Context, all []api.Part) ([]api.Part, error) {
	var lock sync.Mutex
	absent := map[string]bool{}
	err := each(ctx, s.bucket.ways, unique(all), func(ctx context.Context, p api.Part) error {
		ok, err := s.fresh(ctx, p)
		if err == nil && !ok {
			lock.Lock()
			defer lock.Unlock()
			absent[p.Digest] = true
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var missing []api.Part
	for _, p := range unique(all) {
		if absent[p.Digest] {
			missing = append(missing, p)
		}
	}
	return missing, nil
}

// fresh reports whether an object is there, and will be for half a grace. One of
// another size is broken, so it counts as absent.
func (s *Store) fresh(ctx context.Context, p api.Part) (bool, error) {
	if err := checkDigest(p.Digest); err != nil {
		return false, err
	}
	i, err := s.bucket.stat(ctx, objectKey(p.Digest))
	if err == nil && i.size == p.Size && s.now().Sub(i.time) > s.grace/2 {
		err = s.rejuvenate(ctx, p)
	}
	switch {
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrCorrupt):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look for object %s: %w", p.Digest, err)
	}
	return i.size == p.Size, nil
}

// rejuvenate has an object's age begin anew. Outside a folder it is written
// anew: buckets agree on no other way.
func (s *Store) rejuvenate(ctx context.Context, p api.Part) error {
	if s.bucket.dir != "" {
		return s.bucket.touch(objectKey(p.Digest), s.now())
	}
	r, size, err := s.Object(ctx, p.Digest)
	if err != nil {
		return err
	}
	defer r.Close()
	return s.PutObject(ctx, p.Digest, size, r)
}

func unique(parts []api.Part) []api.Part {
	seen := make(map[string]bool, len(parts))
	var once []api.Part
	for _, p := range parts {
		if !seen[p.Digest] {
			seen[p.Digest] = true
			once = append(once, p)
		}
	}
	return once
}

// SignedGet is where an object may be got directly for some minutes; empty if the
// store cannot sign. Who gets it has to check its digest.
func (s *Store) SignedGet(ctx context.Context, digest string) (string, error) {
	if err := checkDigest(digest); err != nil {
		return "", err
	}
	at, err := s.bucket.sign(ctx, objectKey(digest), signedFor)
	if err != nil {
		return "", fmt.Errorf("sign a URL of object %s: %w", digest, err)
	}
	return at, nil
}

// SignedPut is where an object may be put directly for some minutes; empty if
// the store cannot sign, or cannot have it checked that the bytes are those that
// the digest names. No bucket can, portably: whoever held such a URL could put
// other bytes in an object's place, so all are put through PutObject.
func (s *Store) SignedPut(ctx context.Context, p api.Part) (string, error) {
	return "", checkDigest(p.Digest)
}

// What lies where. A dataset's name may have slashes, and one dataset's may
// begin with another's; the segment "_", which no name has, ends it.
const (
	objectsPrefix  = "objects/"
	treesPrefix    = "trees/"
	refsPrefix     = "refs/"    // DATASET/_/BRANCH/NUMBER: commits, the truth
	headsPrefix    = "heads/"   // DATASET/_/BRANCH: a number at or below the newest
	idsPrefix      = "ids/"     // DATASET/_/ID: where the commit is, if it is
	intentsPrefix  = "intents/" // ID: a commit that may not be announced yet
	runsPrefix     = "runs/"
	condemnsPrefix = "condemned/" // what a collection is about to remove
	notesPrefix    = "notes/"     // NAME: how far somebody has come, who goes on after a crash

	nameEnd = "/_/"
	tempEnd = ".tmp" // what a writer has not finished, on a folder
)

const maxPath = 1024

func checkBranch(dataset, branch string) error {
	if err := tidemill.CheckDataset(dataset); err != nil {
		return invalid("dataset %q: %v", dataset, err)
	}
	if err := tidemill.CheckLabel(branch); err != nil {
		return invalid("branch %q: %v", branch, err)
	}
	return nil
}

func checkRun(run string) error {
	if err := tidemill.CheckLabel(run); err != nil {
		return invalid("run %q: %v", run, err)
	}
	return nil
}

// CheckPath says what is wrong with a file's path, if anything.
func CheckPath(path string) error {
	switch {
	case path == "":
		return invalid("a file without a path cannot be kept")
	case len(path) > maxPath:
		return invalid("path %.40q… is longer than %d bytes", path, maxPath)
	case !utf8.ValidString(path) || strings.ContainsRune(path, 0):
		return invalid("path %q is no text in UTF-8 without NUL", path)
	}
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return invalid("path %q is not relative and plain: it has a segment %q", path, segment)
		}
	}
	return nil
}

func checkDigest(digest string) error {
	if _, ok := rawDigest(digest); !ok {
		return invalid("digest %q is no SHA-256 in lower-case hex", digest)
	}
	return nil
}

func rawDigest(digest string) (raw [32]byte, ok bool) {
	if len(digest) != 64 || strings.ToLower(digest) != digest {
		return raw, false
	}
	_, err := hex.Decode(raw[:], []byte(digest))
	return raw, err == nil
}

func objectKey(digest string) string { return objectsPrefix + digest[:2] + "/" + digest }

func treeKey(digest string) string { return treesPrefix + digest[:2] + "/" + digest }

func headKey(dataset, branch string) string { return headsPrefix + dataset + nameEnd + branch }

func refKey(dataset, branch string, number int64) string {
	return fmt.Sprintf("%s%s%s%s/%012d", refsPrefix, dataset, nameEnd, branch, number)
}

func idKey(dataset, id string) string { return idsPrefix + dataset + nameEnd + id }

func intentKey(id string) string { return intentsPrefix + id }

func logKey(run string, attempt, seq int) string {
	return fmt.Sprintf("%s%s/log-%04d-%08d", runsPrefix, run, attempt, seq)
}

func checkpointKey(run string, attempt int) string {
	return checkpointsOf(run) + fmt.Sprintf("%04d", attempt)
}

func checkpointsOf(run string) string { return runsPrefix + run + "/checkpoints/" }

// cutCheckpoint is the run and the attempt of a checkpoint's key.
func cutCheckpoint(key string) (run string, attempt int, ok bool) {
	run, text, found := strings.Cut(strings.TrimPrefix(key, runsPrefix), "/checkpoints/")
	attempt, err := strconv.Atoi(text)
	return run, attempt, found && err == nil
}

// cutName takes the key of a head or an id apart: the dataset, and what is behind.
func cutName(key, prefix string) (dataset, rest string, ok bool) {
	return strings.Cut(strings.TrimPrefix(key, prefix), nameEnd)
}

// isTemp reports whether a key is what a writer on a folder has not finished.
func isTemp(key string) bool { return strings.HasSuffix(key, tempEnd) }

// cachedBytes bounds what the nodes in memory take, by estimate.
const cachedBytes = 32 << 20

// nodeCache keeps the nodes that were used last. A node never changes, so
// nothing is ever out of date.
type nodeCache struct {
	lock   sync.Mutex
	most   int
	used   int
	newest *list.List // of *cached
	all    map[string]*list.Element
}

type cached struct {
	digest string
	node   *node
	cost   int
}

func newNodeCache(most int) *nodeCache {
	return &nodeCache{most: most, newest: list.New(), all: map[string]*list.Element{}}
}

func (c *nodeCache) get(digest string) *node {
	c.lock.Lock()
	defer c.lock.Unlock()
	e := c.all[digest]
	if e == nil {
		return nil
	}
	c.newest.MoveToFront(e)
	return e.Value.(*cached).node
}

func (c *nodeCache) add(digest string, n *node) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.all[digest] != nil {
		return
	}
	k := &cached{digest, n, n.cost()}
	c.all[digest] = c.newest.PushFront(k)
	c.used += k.cost
	for c.used > c.most && c.newest.Len() > 1 {
		oldest := c.newest.Remove(c.newest.Back()).(*cached)
		delete(c.all, oldest.digest)
		c.used -= oldest.cost
	}
}

// cost is about what a node takes in memory.
func (n *node) cost() int {
	cost := 256
	for _, f := range n.files {
		cost += 160 + len(f.Path) + 96*len(f.Parts)
	}
	for _, k := range n.kids {
		cost += 128 + len(k.last)
	}
	return cost
}
