//go:build !amd64

package trees

func walk(nodes *node, columns, ends *uint32, groups, stride, steps int) {
	walkPlain(nodes, columns, ends, groups, stride, steps)
}
