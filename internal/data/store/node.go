package store

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/bits"
	"unicode/utf8"

	"tidemill.dev/api"
)

// A tree is a list of files in the order of their paths, cut into nodes where
// the paths' own hashes say so. Nodes of level 0 hold files; a node of the next
// level holds what the nodes below it hold in short, cut by the same rule. Same
// files, same cuts, same digests, in whatever order they came.
type node struct {
	level int
	files []api.File // of level 0
	kids  []kid      // of all others
}

// kid is a node as the one above knows it.
type kid struct {
	last   string // path in it
	digest string
	files  int
	bytes  int64
}

const (
	nodeVersion = 1
	// One path in 128 ends a node; one in 128 of those ends a node of the next
	// level as well.
	rankBits = 7

	isExecutable = 1
	hasParts     = 2
)

var errNode = errors.New("the bytes are no node of a tree")

// rank is how many levels end behind a path. It must never change.
func rank(path string) int {
	sum := sha256.Sum256([]byte(path))
	return bits.TrailingZeros64(binary.BigEndian.Uint64(sum[:8])) / rankBits
}

// encode is the one way to write a node.
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

// appendPath writes a path as what it shares with the one before and the rest.
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
	raw, _ := rawDigest(digest) // checked where it came in
	return append(b, raw[:]...)
}

// decodeNode reads what encode wrote. The bytes have the digest that was asked
// for, so what is wrong with them was written so.
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

// decoder reads on until something is wrong, and then reads nothing.
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

// count is how many things follow, each of a byte at least.
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

// path must come behind the one before, and share with it all that it can.
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

// short is the node as the one above knows it; data is its encoding.
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
