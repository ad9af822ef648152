package store

import (
	"cmp"
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
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
	smallObject = 64 << 10 // size up to which an object is read whole before it is written
	copyBuffer  = 256 << 10
	signedFor   = 15 * time.Minute
	rewrites    = 8 // large objects that are written again at a time; each takes up to s3Part of memory
)

// PutObject stores bytes that must have the given size and digest (SHA-256, hex); otherwise it
// stores nothing. An existing object is written again, which protects it from a collection and
// heals it.
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
	return s.bucket.write(ctx, objectKey(digest), size, &upload{r: r, digest: digest, left: size, size: size, hash: sha256.New()})
}

// upload reads the bytes of an object, and fails at their end if they do not have the size or the
// digest that they should have.
type upload struct {
	r          io.Reader
	digest     string
	left, size int64
	hash       hash.Hash
}

func (u *upload) Read(p []byte) (int, error) {
	if u.left == 0 {
		return 0, u.verdict()
	}
	n, err := u.r.Read(p[:min(int64(len(p)), u.left)])
	u.hash.Write(p[:n])
	u.left -= int64(n)
	if err == nil || u.left == 0 { // the next read returns the verdict
		return n, nil
	}
	return n, shorter(err, u.size-u.left, u.size)
}

func (u *upload) verdict() error {
	if err := ends(u.r, u.size); err != nil {
		return err
	}
	if sum := u.hash.Sum(nil); hex.EncodeToString(sum) != u.digest {
		return invalid("the bytes have the digest %x", sum)
	}
	return io.EOF
}

// shorter describes a read error; it is ErrInvalid if the bytes ended early.
func shorter(err error, have, want int64) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return invalid("got only %d of %d bytes", have, want)
	}
	return fmt.Errorf("read its bytes: %w", err)
}

// ends checks that no bytes follow.
func ends(r io.Reader, size int64) error {
	var one [1]byte
	switch n, err := io.ReadFull(r, one[:]); {
	case n > 0:
		return invalid("got more than %d bytes", size)
	case errors.Is(err, io.EOF):
		return nil
	default:
		return fmt.Errorf("read its bytes: %w", err)
	}
}

// Object opens an object. Its reader fails at the end if the bytes do not have the object's digest.
func (s *Store) Object(ctx context.Context, digest string) (r io.ReadCloser, size int64, err error) {
	if err := checkDigest(digest); err != nil {
		return nil, 0, err
	}
	b, size, err := s.bucket.open(ctx, objectKey(digest))
	if errors.Is(err, ErrNotFound) {
		err = cmp.Or(s.bucket.gone(ctx, objectKey(digest)), err)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("object %s: %w", digest, err)
	}
	return verify(b, digest, size), size, nil
}

// Missing returns the objects that must be put because they do not exist. An existing object gets a
// new time if it is so old that a collection could remove it before it is used.
func (s *Store) Missing(ctx context.Context, all []api.Part) ([]api.Part, error) {
	var lock sync.Mutex
	absent := map[api.Part]bool{}
	err := each(ctx, s.bucket.ways, unique(all), func(ctx context.Context, p api.Part) error {
		ok, err := s.fresh(ctx, p)
		if err == nil && !ok {
			lock.Lock()
			defer lock.Unlock()
			absent[p] = true
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var missing []api.Part
	for _, p := range unique(all) {
		if absent[p] {
			missing = append(missing, p)
		}
	}
	return missing, nil
}

// fresh reports whether an object exists and will still exist after half of the grace period. An
// object of another size is broken and counts as absent.
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

// rejuvenate resets the age of an object. Outside a folder it writes the object again, because no
// other way works on all buckets.
func (s *Store) rejuvenate(ctx context.Context, p api.Part) error {
	if err := s.bucket.touch(ctx, objectKey(p.Digest), s.now()); !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	if p.Size > smallObject {
		select {
		case s.large <- struct{}{}:
			defer func() { <-s.large }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	r, size, err := s.Object(ctx, p.Digest)
	if err != nil {
		return err
	}
	defer r.Close()
	return s.PutObject(ctx, p.Digest, size, r)
}

// unique keeps an object that is named with two sizes twice, because one of them is wrong.
func unique(parts []api.Part) []api.Part {
	seen := make(map[api.Part]bool, len(parts))
	var once []api.Part
	for _, p := range parts {
		if !seen[p] {
			seen[p] = true
			once = append(once, p)
		}
	}
	return once
}

// SignedGet returns a URL from which an object can be read directly for some minutes; empty if the
// store cannot sign URLs. The reader must check the digest.
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

// Prefixes of keys. A dataset's name may contain slashes and may begin with another dataset's name;
// the segment "_", which no name contains, ends it.
const (
	objectsPrefix  = "objects/"
	treesPrefix    = "trees/"
	refsPrefix     = "refs/"    // DATASET/_/BRANCH/NUMBER: commits, the authoritative data
	headsPrefix    = "heads/"   // DATASET/_/BRANCH: a number at or below the newest commit's
	idsPrefix      = "ids/"     // DATASET/_/ID: place of the commit, if there is one
	intentsPrefix  = "intents/" // ID: a commit that may not have been announced yet
	runsPrefix     = "runs/"
	condemnsPrefix = "condemned/" // lists of keys that a collection is about to remove
	notesPrefix    = "notes/"     // NAME: progress of work that continues after a crash

	nameEnd = "/_/"
	tempEnd = ".tmp" // suffix of an unfinished file in a folder
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

// CheckPath returns an error if a file's path is invalid.
func CheckPath(path string) error {
	switch {
	case path == "":
		return invalid("a file without a path cannot be kept")
	case len(path) > maxPath:
		return invalid("path %.40q… is longer than %d bytes", path, maxPath)
	case !utf8.ValidString(path) || strings.ContainsRune(path, 0):
		return invalid("path %q is not UTF-8 text without NUL", path)
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

// logOf is the beginning of the keys of a log's chunks. The first worker's log has no name of a process.
func logOf(run string, attempt int, process string) string {
	if process != "" {
		process += "-"
	}
	return fmt.Sprintf("%s%s/log-%04d-%s", runsPrefix, run, attempt, process)
}

func chunkKey(log string, seq int) string { return fmt.Sprintf("%s%08d", log, seq) }

func checkpointKey(run string, attempt int) string {
	return checkpointsOf(run) + fmt.Sprintf("%04d", attempt)
}

func checkpointsOf(run string) string { return runsPrefix + run + "/checkpoints/" }

// cutCheckpoint returns the run and the attempt of a checkpoint's key.
func cutCheckpoint(key string) (run string, attempt int, ok bool) {
	run, text, found := strings.Cut(strings.TrimPrefix(key, runsPrefix), "/checkpoints/")
	attempt, err := strconv.Atoi(text)
	return run, attempt, found && err == nil
}

// cutName splits the key of a head or an id into the dataset and the rest.
func cutName(key, prefix string) (dataset, rest string, ok bool) {
	return strings.Cut(strings.TrimPrefix(key, prefix), nameEnd)
}

// isTemp reports whether a key is an unfinished file of a folder.
func isTemp(key string) bool { return strings.HasSuffix(key, tempEnd) }

// cachedBytes is the estimated memory that cached nodes may use.
const cachedBytes = 32 << 20

// nodeCache keeps the nodes that were used last. Nodes never change, so no entry is ever out of
// date.
type nodeCache struct {
	lock   sync.Mutex
	most   int
	used   int
	newest *list.List // list of *cached
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

// cost estimates a node's memory in bytes.
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
