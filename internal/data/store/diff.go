package store

import "tidemill.dev/api"

// side is the rest of one of two compared trees, with the next piece last.
type side struct {
	load loader
	left []piece
}

// piece is a node that is not opened yet, or a file.
type piece struct {
	file   *api.File
	digest string
	level  int
}

func newSide(load loader, root string) (*side, error) {
	s := &side{load: load}
	if root == "" {
		return s, nil
	}
	n, err := load(root)
	if err != nil {
		return nil, err
	}
	s.left = []piece{{digest: root, level: n.level}}
	return s, nil
}

func (s *side) next() *piece {
	if len(s.left) == 0 {
		return nil
	}
	return &s.left[len(s.left)-1]
}

func (s *side) drop() { s.left = s.left[:len(s.left)-1] }

// open replaces the next node by the nodes or files in it.
func (s *side) open() error {
	n, err := s.load(s.next().digest)
	if err != nil {
		return err
	}
	s.drop()
	for i := len(n.files) - 1; i >= 0; i-- {
		s.left = append(s.left, piece{file: &n.files[i]})
	}
	for i := len(n.kids) - 1; i >= 0; i-- {
		s.left = append(s.left, piece{digest: n.kids[i].digest, level: n.level - 1})
	}
	return nil
}

// differences calls fn with each difference between two trees, in order. It skips a node that both
// trees share without opening it. Nodes end at places that depend on paths and not on a count, so
// both sides reach shared nodes again soon after a difference.
func differences(load loader, a, b string, fn func(was, is *api.File) error) error {
	was, err := newSide(load, a)
	if err != nil {
		return err
	}
	is, err := newSide(load, b)
	for err == nil {
		x, y := was.next(), is.next()
		switch {
		case x == nil && y == nil:
			return nil
		case opens(x, y):
			err = was.open()
		case opens(y, x):
			err = is.open()
		case x != nil && y != nil && x.file == nil: // two nodes of the same level
			err = same(was, is)
		default:
			err = compare(was, is, fn)
		}
	}
	return err
}

// opens reports whether node x must be opened before it can be compared with other.
func opens(x, other *piece) bool {
	if x == nil || x.file != nil {
		return false
	}
	return other == nil || other.file != nil || x.level > other.level
}

func same(was, is *side) error {
	if was.next().digest == is.next().digest {
		was.drop()
		is.drop()
		return nil
	}
	if err := was.open(); err != nil {
		return err
	}
	return is.open()
}

// compare takes the next file of one side or both.
func compare(was, is *side, fn func(was, is *api.File) error) error {
	var x, y *api.File
	if p := was.next(); p != nil {
		x = p.file
	}
	if p := is.next(); p != nil {
		y = p.file
	}
	if x != nil && y != nil && x.Path != y.Path {
		if x.Path < y.Path {
			y = nil
		} else {
			x = nil
		}
	}
	if x != nil {
		was.drop()
	}
	if y != nil {
		is.drop()
	}
	if x != nil && y != nil && sameFile(*x, *y) {
		return nil
	}
	return fn(x, y)
}
