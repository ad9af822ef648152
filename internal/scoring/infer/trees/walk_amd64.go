package trees

// walk is walkPlain. Build has checked that every node's children and column are there, so the
// assembly does not.
//
//go:noescape
func walk(nodes []node, columns []uint32, at *[lanes]uint32, steps int)
