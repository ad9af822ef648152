package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"

	"tidemill.dev/api"
)

// Tree stores the tree of the files; their objects must be in the store already.
func (s *Store) Tree(ctx context.Context, files []api.File) (api.TreeRef, error) {
	changes := make([]api.Change, len(files))
	for i, f := range files {
		changes[i].File = f
	}
	e, err := s.edit(ctx, "", changes)
	if err == nil {
		err = s.settle(ctx, e)
	}
	if err != nil {
		return api.TreeRef{}, fmt.Errorf("make a tree of %d files: %w", len(files), err)
	}
	return e.root.ref(), nil
}

func (k kid) ref() api.TreeRef { return api.TreeRef{Tree: k.digest, Files: k.files, Bytes: k.bytes} }

// edit checks changes and applies them to a tree, in memory only.
func (s *Store) edit(ctx context.Context, root string, changes []api.Change) (edited, error) {
	changes, err := inOrder(changes)
	if err != nil {
		return edited{}, err
	}
	return edit(root, changes, s.loader(ctx))
}

// inOrder checks changes and sorts them by path.
func inOrder(changes []api.Change) ([]api.Change, error) {
	sorted := slices.SortedFunc(slices.Values(changes), func(a, b api.Change) int { return cmp.Compare(a.Path, b.Path) })
	for i, c := range sorted {
		check := checkFile(c.File)
		if c.Remove {
			check = CheckPath(c.Path)
		}
		if check != nil {
			return nil, check
		}
		if i > 0 && sorted[i-1].Path == c.Path {
			return nil, invalid("path %q is named twice", c.Path)
		}
	}
	return sorted, nil
}

func (s *Store) loader(ctx context.Context) loader {
	return func(digest string) (*node, error) { return s.node(ctx, digest) }
}

// node reads a node of a tree and verifies its digest.
func (s *Store) node(ctx context.Context, digest string) (*node, error) {
	if n := s.nodes.get(digest); n != nil {
		return n, nil
	}
	if err := checkDigest(digest); err != nil {
		return nil, err
	}
	data, err := s.bucket.find(ctx, treeKey(digest))
	if err != nil {
		return nil, fmt.Errorf("tree %s: %w", digest, err)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != digest {
		return nil, fmt.Errorf("tree %s %w", digest, ErrCorrupt)
	}
	n, err := decodeNode(data)
	if err != nil {
		return nil, fmt.Errorf("tree %s: %w; a newer version may have written it", digest, err)
	}
	s.nodes.add(digest, n)
	return n, nil
}

// Walk calls fn with the files at or below a path of a tree, in path order, until fn returns an
// error. It begins with the first path that sorts after the parameter after.
func (s *Store) Walk(ctx context.Context, tree, path, after string, fn func(api.File) error) error {
	return below(s.loader(ctx), tree, path, after, fn)
}

// File returns the file of a tree that has the path. The error is fs.ErrNotExist, and also ErrNotFound,
// if the tree was read and has no such file. It is ErrNotFound alone if a node of the tree is not in
// the store. That may pass, because a copy of a store may lag.
func (s *Store) File(ctx context.Context, tree, path string) (api.File, error) {
	f, ok, err := findFile(s.loader(ctx), tree, path)
	if err == nil && !ok {
		err = &noFileError{path: path, tree: tree}
	}
	return f, err
}

// noFileError reports that a tree has no file with a path.
type noFileError struct{ path, tree string }

func (e *noFileError) Error() string        { return fmt.Sprintf("tree %s has no file %q", e.tree, e.path) }
func (e *noFileError) Is(target error) bool { return target == fs.ErrNotExist || target == ErrNotFound }

// TreeRef returns a tree's number of files and bytes.
func (s *Store) TreeRef(ctx context.Context, tree string) (api.TreeRef, error) {
	n, err := s.node(ctx, tree)
	if err != nil {
		return api.TreeRef{}, err
	}
	k := n.totals()
	k.digest = tree
	return k.ref(), nil
}

// Diff calls fn with each difference between two trees, in path order; was is nil for an added
// file, is for a removed one. An empty string means the empty tree.
func (s *Store) Diff(ctx context.Context, a, b string, fn func(was, is *api.File) error) error {
	return differences(s.loader(ctx), a, b, fn)
}

// A tree is a list of files in path order. It is cut into nodes at places that depend only on the
// hashes of the paths. Nodes of level 0 hold files; a node of a higher level holds short forms of
// the nodes of the level below, cut by the same rule. The same files therefore give the same
// digests, in whatever order they were added.
type node struct {
	level int
	files []api.File // files of a node of level 0
	kids  []kid      // nodes below a node of a higher level
}

// kid is the short form of a node in the node above it.
type kid struct {
	last   string // last path in the node
	digest string
	files  int
	bytes  int64
}

const (
	nodeVersion = 1
	// One path in 128 ends a node; one in 128 of those also ends a node of the next level.
	rankBits = 7

	isExecutable = 1
	hasParts     = 2
)

var errNode = errors.New("the bytes are not a node of a tree")

// rank returns the number of levels whose nodes end after a path. It must never change.
func rank(path string) int {
	sum := sha256.Sum256([]byte(path))
	return bits.TrailingZeros64(binary.BigEndian.Uint64(sum[:8])) / rankBits
}

// encode returns a node's encoding, which is unique.
func (n *node) encode() []byte {
	b := append(make([]byte, 0, 64*(len(n.files)+len(n.kids))), nodeVersion, byte(n.level))
	b = binary.AppendUvarint(b, uint64(len(n.files)+len(n.kids)))
	before := ""
	for _, f := range n.files {
		b = appendPath(b, before, f.Path)
		b = appendFile(b, f)
		before = f.Path
	}
	for _, k := range n.kids {
		b = appendPath(b, before, k.last)
		b = appendDigest(b, k.digest)
		b = binary.AppendUvarint(b, uint64(k.files))
		b = binary.AppendUvarint(b, uint64(k.bytes))
		before = k.last
	}
	return b
}

// appendPath writes the length of the prefix that a path shares with the one before, and the rest.
func appendPath(b []byte, before, path string) []byte {
	shared := 0
	for shared < min(len(before), len(path)) && before[shared] == path[shared] {
		shared++
	}
	b = binary.AppendUvarint(b, uint64(shared))
	b = binary.AppendUvarint(b, uint64(len(path)-shared))
	return append(b, path[shared:]...)
}

func appendFile(b []byte, f api.File) []byte {
	flags := byte(0)
	if f.Executable {
		flags |= isExecutable
	}
	if len(f.Parts) > 0 {
		flags |= hasParts
	}
	b = append(b, flags)
	b = appendPart(b, api.Part{Digest: f.Digest, Size: f.Size})
	if len(f.Parts) > 0 {
		b = binary.AppendUvarint(b, uint64(len(f.Parts)))
	}
	for _, p := range f.Parts {
		b = appendPart(b, p)
	}
	return b
}

func appendPart(b []byte, p api.Part) []byte {
	return binary.AppendUvarint(appendDigest(b, p.Digest), uint64(p.Size))
}

func appendDigest(b []byte, digest string) []byte {
	raw, _ := rawDigest(digest) // valid, because input is checked
	return append(b, raw[:]...)
}

// decodeNode reads a node that encode wrote. The bytes have the requested digest, so an error in
// them was written by their writer.
func decodeNode(b []byte) (*node, error) {
	d := decoder{b: b}
	if d.byte() != nodeVersion {
		return nil, errNode
	}
	n := &node{level: int(d.byte())}
	count := d.count()
	for range count {
		path := d.path()
		if n.level > 0 {
			n.kids = append(n.kids, kid{last: path, digest: d.digest(), files: int(d.size()), bytes: d.size()})
		} else {
			n.files = append(n.files, d.file(path))
		}
	}
	if d.bad || len(d.b) > 0 || n.level > 0 && count == 0 {
		return nil, errNode
	}
	return n, nil
}

// decoder reads values until one is invalid; then it reads nothing more.
type decoder struct {
	b      []byte
	before []byte
	bad    bool
}

func (d *decoder) take(n uint64) []byte {
	if d.bad || n > uint64(len(d.b)) {
		d.bad = true
		return nil
	}
	taken := d.b[:n]
	d.b = d.b[n:]
	return taken
}

func (d *decoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || n > 1 && d.b[n-1] == 0 {
		d.bad = true
		return 0
	}
	d.take(uint64(n))
	return v
}

// count reads the number of items that follow; each has at least one byte.
func (d *decoder) count() uint64 {
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		d.bad = true
		return 0
	}
	return n
}

func (d *decoder) size() int64 {
	n := int64(d.uvarint())
	d.bad = d.bad || n < 0
	return n
}

func (d *decoder) digest() string {
	raw := d.take(32)
	return hex.EncodeToString(raw)
}

// path reads a path. It must sort after the path before and share the longest prefix with it.
func (d *decoder) path() string {
	shared := d.uvarint()
	rest := d.take(d.uvarint())
	if d.bad || shared > uint64(len(d.before)) || len(rest) == 0 || d.backward(int(shared), rest[0]) {
		d.bad = true
		return ""
	}
	d.before = append(d.before[:shared:len(d.before)], rest...)
	if !utf8.Valid(d.before) {
		d.bad = true
	}
	return string(d.before)
}

func (d *decoder) backward(shared int, next byte) bool {
	return shared < len(d.before) && next <= d.before[shared]
}

func (d *decoder) file(path string) api.File {
	flags := d.byte()
	f := api.File{Path: path, Executable: flags&isExecutable != 0}
	p := d.part()
	f.Digest, f.Size = p.Digest, p.Size
	if flags&hasParts != 0 {
		f.Parts = make([]api.Part, d.count())
		for i := range f.Parts {
			f.Parts[i] = d.part()
		}
	}
	d.bad = d.bad || flags&^(isExecutable|hasParts) != 0 || flags&hasParts != 0 && len(f.Parts) == 0
	return f
}

func (d *decoder) part() api.Part { return api.Part{Digest: d.digest(), Size: d.size()} }

// short returns a node's short form for the node above it; data is the node's encoding.
func (n *node) short(data []byte) kid {
	sum := sha256.Sum256(data)
	k := n.totals()
	k.digest = hex.EncodeToString(sum[:])
	return k
}

func (n *node) totals() (k kid) {
	for _, f := range n.files {
		k.last, k.files, k.bytes = f.Path, k.files+1, k.bytes+f.Size
	}
	for _, below := range n.kids {
		k.last, k.files, k.bytes = below.last, k.files+below.files, k.bytes+below.bytes
	}
	return k
}

// errEnough ends a walk without being an error.
var errEnough = errors.New("enough")

// walker calls fn with the files of a tree from one path up to another, in order.
type walker struct {
	load     loader
	from, to string // first path and exclusive end; an empty end means no end
	fn       func(api.File) error
}

func (w *walker) node(digest string) error {
	n, err := w.load(digest)
	if err != nil {
		return err
	}
	first, _ := slices.BinarySearchFunc(n.files, w.from, comparePath)
	for _, f := range n.files[first:] {
		if w.to != "" && f.Path >= w.to {
			return errEnough
		}
		if err := w.fn(f); err != nil {
			return err
		}
	}
	first, _ = slices.BinarySearchFunc(n.kids, w.from, compareLast)
	for _, k := range n.kids[min(first, len(n.kids)):] {
		if err := w.node(k.digest); err != nil {
			return err
		}
		if w.to != "" && k.last >= w.to {
			return errEnough
		}
	}
	return nil
}

func compareLast(k kid, path string) int { return strings.Compare(k.last, path) }

// between walks the files from one path, inclusive, to another, exclusive.
func between(load loader, root, from, to string, fn func(api.File) error) error {
	if root == "" || to != "" && from >= to {
		return nil
	}
	w := walker{load: load, from: from, to: to, fn: fn}
	if err := w.node(root); !errors.Is(err, errEnough) {
		return err
	}
	return nil
}

// below walks the file at a path and all files below it. "a-b" sorts between "a" and "a/b", so
// these are two ranges.
func below(load loader, root, path, after string, fn func(api.File) error) error {
	least := ""
	if after != "" {
		least = after + "\x00" // next possible path
	}
	if path == "" {
		return between(load, root, least, "", fn)
	}
	if err := between(load, root, max(path, least), path+"\x00", fn); err != nil {
		return err
	}
	return between(load, root, max(path+"/", least), path+"0", fn) // '0' follows '/' in ASCII
}

// findFile finds the file of a path.
func findFile(load loader, root, path string) (found api.File, ok bool, err error) {
	err = between(load, root, path, path+"\x00", func(f api.File) error {
		found, ok = f, true
		return errEnough
	})
	return found, ok, err
}

// firstBelow returns the first path below another path.
func firstBelow(load loader, root, path string) (first string, ok bool, err error) {
	err = between(load, root, path+"/", path+"0", func(f api.File) error {
		first, ok = f.Path, true
		return errEnough
	})
	return first, ok, err
}
