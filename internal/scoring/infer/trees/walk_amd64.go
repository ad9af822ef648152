package trees

// walk is walkPlain in assembly.
//
//go:noescape
func walk(nodes *node, columns, ends *uint32, groups, stride, steps int)
