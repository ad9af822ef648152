//go:build !amd64

package trees

func walk(nodes []node, columns []uint32, at *[lanes]uint32, steps int) {
	walkPlain(nodes, columns, at, steps)
}
