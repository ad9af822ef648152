package trees

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"
)

// FuzzBuild packs forests that are read from any bytes. One that is accepted answers as its nodes say.
func FuzzBuild(f *testing.F) {
	f.Add([]byte{1, 0, 1, 2, 0, 0, 0, 0}, []byte{1, 0, 2, 1}, uint8(0))
	f.Add([]byte{5, 0, 1, 2, 0, 0, 3, 1, 5, 0, 1, 3, 0, 0, 4, 0}, []byte{1, 0, 2, 1, 3, 1}, uint8(2))
	f.Add([]byte{7, 1, 1, 2, 9, 9, 9, 9}, []byte{}, uint8(3))
	f.Fuzz(func(t *testing.T, nodes, votes []byte, aggregate uint8) {
		if len(nodes) > 1<<12 || len(votes) > 1<<12 {
			return
		}
		forest := readForest(nodes, votes, aggregate)
		checkAccepted[float32](t, forest)
		checkAccepted[float64](t, forest)
	})
}

// readForest reads eight bytes for each node and two for each vote. A node after the last is a leaf.
func readForest(nodes, votes []byte, aggregate uint8) *Forest {
	f := &Forest{Targets: 3, Aggregate: Aggregate(aggregate % 4), Sets: [][]float64{{}, {1, 2}, {-1, 0, 0.5}}}
	for ; len(nodes) >= 8; nodes = nodes[8:] {
		n := Node{Mode: Mode(nodes[0] % 8), Feature: int32(nodes[1] % 4), True: int32(int8(nodes[2])), False: int32(int8(nodes[3])), Missing: nodes[7]&1 != 0}
		n.Value = float64(int16(binary.LittleEndian.Uint16(nodes[4:]))) / 2
		if nodes[6] == 255 {
			n.Value = math.NaN()
		}
		if n.Mode == Member {
			n.Set = int32(nodes[6] % 3)
		}
		if nodes[7]&2 != 0 {
			f.Roots = append(f.Roots, int32(len(f.Nodes)))
		}
		f.Nodes = append(f.Nodes, n)
	}
	f.Roots = append(f.Roots, 0)
	for range 4 {
		f.Nodes = append(f.Nodes, Node{})
	}
	for ; len(votes) >= 2; votes = votes[2:] {
		f.Votes = append(f.Votes, Vote{Node: int32(int8(votes[0])), Target: int32(votes[1] % 4), Value: float64(votes[1]) / 4})
	}
	return f
}

func checkAccepted[T Number](t *testing.T, f *Forest) {
	e, err := Build[T](f)
	if err != nil {
		return
	}
	const rows = 9
	var x []T
	for i := range 4 * rows {
		x = append(x, []T{0, 1, -1, 0.5, 2, T(math.NaN()), T(math.Inf(1)), -64, 100}[i*7%9])
	}
	sums, seen := make([]T, rows*f.Targets), make([]bool, rows*f.Targets)
	e.Run(new(Scratch), rows, 4, x, sums, seen)
	for row := range rows {
		want, wantSeen := naive(f, x[4*row:4*row+4])
		if at := row * f.Targets; !slices.Equal(sums[at:at+f.Targets], want) || !slices.Equal(seen[at:at+f.Targets], wantSeen) {
			t.Fatalf("row %d: %v %v, want %v %v, of %+v", row, sums[at:at+f.Targets], seen[at:at+f.Targets], want, wantSeen, f)
		}
	}
}
