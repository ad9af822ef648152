package deliver

// chainHeap orders chains by when they are due. A chain knows its place, so
// that it can be moved. It is written out, for container/heap costs a second
// indirection that a million chains feel.
type chainHeap []*chain

func (h *chainHeap) push(c *chain) {
	*h = append(*h, c)
	h.up(len(*h) - 1)
}

func (h *chainHeap) pop() *chain {
	old := *h
	c := old[0]
	last := len(old) - 1
	old[0] = old[last]
	old[last] = nil
	*h = old[:last]
	if last > 0 {
		h.down(0)
	}
	c.at = loading
	if cap(*h) > 1024 && last < cap(*h)/4 {
		*h = append(make(chainHeap, 0, cap(*h)/2), *h...)
	}
	return c
}

// all makes every chain due at once.
func (h chainHeap) all(due moment) {
	for _, c := range h {
		c.due = due
	}
}

// order makes a heap of it again.
func (h chainHeap) order() {
	for i := len(h)/2 - 1; i >= 0; i-- {
		h.down(i)
	}
}

func (h chainHeap) up(i int) {
	c := h[i]
	for i > 0 && c.due < h[(i-1)/2].due {
		h.set(i, h[(i-1)/2])
		i = (i - 1) / 2
	}
	h.set(i, c)
}

func (h chainHeap) down(i int) {
	c := h[i]
	for {
		child := 2*i + 1
		if child+1 < len(h) && h[child+1].due < h[child].due {
			child++
		}
		if child >= len(h) || c.due <= h[child].due {
			h.set(i, c)
			return
		}
		h.set(i, h[child])
		i = child
	}
}

func (h chainHeap) set(i int, c *chain) {
	h[i] = c
	c.at = int32(i)
}

// itemHeap orders resting items by when they are due.
type itemHeap []*item

func (h itemHeap) Len() int           { return len(h) }
func (h itemHeap) Less(i, j int) bool { return h[i].due < h[j].due }
func (h itemHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *itemHeap) Push(x any)        { *h = append(*h, x.(*item)) }
func (h *itemHeap) Pop() any {
	old := *h
	i := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return i
}
