package deliver

// replays gives the replays whose items a partition holds small numbers.
type replays struct {
	names   []string
	numbers map[string]uint32
}

func newReplays() replays { return replays{names: []string{""}, numbers: map[string]uint32{"": 0}} }

func (r *replays) number(name string) uint32 {
	n, known := r.numbers[name]
	if !known {
		n = uint32(len(r.names))
		r.names = append(r.names, name)
		r.numbers[name] = n
	}
	return n
}

func (r *replays) name(number uint32) string { return r.names[number] }
