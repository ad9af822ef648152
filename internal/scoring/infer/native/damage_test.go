package native

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// Graphs with mixed-up numbers, names and parts, instead of damaged bytes. Such a file may look
// like a model. It must give an error or an answer.
func TestDamagedGraphs(t *testing.T) {
	loaded, run, others := 0, 0, oddQuestions()
	for seed := range uint64(4000) {
		r := newRandom(seed)
		file := madeUp(r, int(seed)).file
		switch seed % 7 {
		case 0:
			file = intents(seed, 5, 3)
		case 1:
			file = others[seed/7%uint64(len(others))].file
		}
		for range 1 + r.IntN(12) {
			file = damaged(r, file)
		}
		p, err := Load(file)
		if err != nil {
			continue
		}
		loaded++
		p.limits = limits{numbers: 1 << 16, products: 1 << 20}
		if err := p.Run(fed(p, r.IntN(4)), newTensors(len(p.Outputs()))); err == nil {
			run++
		}
	}
	if loaded < 400 || run < 200 || run == loaded {
		t.Errorf("%d are loaded and %d answer: the damage is too great, or none", loaded, run)
	}
}

// damaged changes one thing somewhere in a message.
func damaged(r *rand.Rand, m []byte) []byte {
	var parts [][]byte
	for rest := m; len(rest) > 0; {
		n := partLength(rest)
		if n == 0 {
			return m // not a message
		}
		parts, rest = append(parts, rest[:n]), rest[n:]
	}
	if len(parts) == 0 {
		return m
	}
	i := r.IntN(len(parts))
	switch r.IntN(12) {
	case 0: // remove a part
		parts = append(parts[:i:i], parts[i+1:]...)
	case 1: // repeat a part
		parts = append(parts[:i+1:i+1], parts[i:]...)
	case 2: // change the order
		k := r.IntN(len(parts))
		parts[i], parts[k] = parts[k], parts[i]
	default:
		parts[i] = damagedPart(r, parts[i], parts)
	}
	var all []byte
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// damagedPart changes something inside the part, or a number or a text.
func damagedPart(r *rand.Rand, part []byte, others [][]byte) []byte {
	tag, n := binary.Uvarint(part)
	field := int(tag >> 3)
	switch tag & 7 {
	case 0:
		odd := []int{0, 1, 2, 3, 6, 7, 8, 9, 11, 100, 1 << 20, 1 << 31, 1 << 40, 1 << 62, -1, -2, -1 << 63}
		return *new(message).number(field, odd[r.IntN(len(odd))])
	case 2:
		_, m := binary.Uvarint(part[n:])
		inner := part[n+m:]
		if r.IntN(8) > 0 {
			if changed := damaged(r, inner); len(changed) > 0 && &changed[0] != &inner[0] {
				return *new(message).bytes(field, changed)
			}
		}
		other := others[r.IntN(len(others))]
		if tag, n := binary.Uvarint(other); tag&7 == 2 { // the content of another file
			_, m := binary.Uvarint(other[n:])
			return *new(message).bytes(field, other[n+m:])
		}
		return *new(message).bytes(field, inner[:len(inner)/2])
	}
	return part
}

// partLength returns the length of the first field; 0 if there is none.
func partLength(m []byte) int {
	tag, n := binary.Uvarint(m)
	if n <= 0 || tag>>3 == 0 || tag>>3 > 100 {
		return 0
	}
	size := 0
	switch tag & 7 {
	case 0:
		_, size = binary.Uvarint(m[n:])
	case 1:
		size = 8
	case 2:
		length, k := binary.Uvarint(m[n:])
		if k <= 0 || length > uint64(len(m)) {
			return 0
		}
		size = k + int(length)
	case 5:
		size = 4
	}
	if size <= 0 || n+size > len(m) {
		return 0
	}
	return n + size
}
