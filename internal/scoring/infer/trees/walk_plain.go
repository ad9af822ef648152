package trees

import "unsafe"

// walkPlain takes groups of lanes a number of steps further, each from the node in ends. The columns
// of the next group are stride bytes after those of a group. Build has checked that each node's
// children and column are there.
func walkPlain(nodes *node, columns, ends *uint32, groups, stride, steps int) {
	for group := range groups {
		at := (*[lanes]uint32)(unsafe.Add(unsafe.Pointer(ends), group*lanes*4))
		x := unsafe.Add(unsafe.Pointer(columns), group*stride)
		for range steps {
			for lane, i := range at {
				n := *(*node)(unsafe.Add(unsafe.Pointer(nodes), 8*uintptr(i)))
				i += n.delta()
				if *(*uint32)(unsafe.Add(x, 4*(lanes*uintptr(n.column())+uintptr(lane)))) > n.key() {
					i++
				}
				at[lane] = i
			}
		}
	}
}
