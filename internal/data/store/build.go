package store

import "tidemill.dev/api"

// loader gets a node by its digest.
type loader func(digest string) (*node, error)

// builder makes the nodes of a tree from its files in order, or from nodes of
// another tree where those are as they would become.
type builder struct {
	levels []growing
	made   map[string]made // by digest
}

// growing is the node of a level that is not at its end yet.
type growing struct {
	node
	ended int // nodes of the level before it
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

// aligned reports whether a node of a level may come next as it is: none up to
// it has begun.
func (b *builder) aligned(level int) bool {
	for l := range min(level+1, len(b.levels)) {
		if g := b.levels[l]; len(g.files)+len(g.kids) > 0 {
			return false
		}
	}
	return true
}

// kid takes a node of a level as it is.
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

// end ends the node of a level.
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

// root ends the tree: it is the lowest node that holds all of it.
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

// lowest leaves out nodes on top that have but one below.
func (b *builder) lowest(k kid, load loader) (kid, error) {
	for {
		n, err := b.load(k.digest, load)
		if err != nil || len(n.kids) != 1 {
			return k, err
		}
		k = n.kids[0]
	}
}

// load gets a node from those that were made, or else from where they are kept.
func (b *builder) load(digest string, load loader) (*node, error) {
	if m, ok := b.made[digest]; ok {
		return m.node, nil
	}
	return load(digest)
}

// fresh are the nodes made that a tree consists of, without those that were
// taken as they are.
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
