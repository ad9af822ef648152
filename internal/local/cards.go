package local

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"tidemill.dev/internal/agent"
)

// card is a GPU.
type card struct {
	index           int
	product, driver string
}

// cards are the machine's GPUs, handed out by their indexes, in the order in
// which they are asked for.
type cards struct {
	all []card

	mu    sync.Mutex
	free  []card
	queue []*wish
}

// wish waits for cards.
type wish struct {
	n   int
	got chan []card
}

func newCards(all []card) *cards { return &cards{all: all, free: slices.Clone(all)} }

// lookForCards asks nvidia-smi; a machine without it has none.
func lookForCards(ctx context.Context) (*cards, error) {
	found, err := agent.LookForCards(ctx)
	return newCards(cardsOf(found)), err
}

func cardsOf(found []agent.Card) (all []card) {
	for _, c := range found {
		all = append(all, card{c.Index, c.Product, c.Driver})
	}
	return all
}

// take waits until so many are free. Who came first is served first, so that
// one who wants many is not passed by for ever.
func (c *cards) take(ctx context.Context, n int) ([]card, error) {
	if n == 0 {
		return nil, nil
	}
	if n > len(c.all) {
		return nil, fmt.Errorf("the run wants %d GPUs and this machine has %d: lower run.gpus, or run it where there are more", n, len(c.all))
	}
	w := &wish{n, make(chan []card, 1)}
	c.mu.Lock()
	c.queue = append(c.queue, w)
	c.serve()
	c.mu.Unlock()
	select {
	case got := <-w.got:
		return got, nil
	case <-ctx.Done():
		c.leave(w)
		return nil, fmt.Errorf("wait for %d GPUs: %w", n, context.Cause(ctx))
	}
}

// leave gives up a wish, and what came for it at the last moment.
func (c *cards) leave(w *wish) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = slices.DeleteFunc(c.queue, func(o *wish) bool { return o == w })
	select {
	case got := <-w.got:
		c.free = append(c.free, got...)
	default:
	}
	c.serve()
}

// give takes cards back.
func (c *cards) give(back []card) {
	if len(back) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.free = append(c.free, back...)
	c.serve()
}

// serve serves those who wait, the first first.
func (c *cards) serve() {
	slices.SortFunc(c.free, func(a, b card) int { return a.index - b.index })
	for len(c.queue) > 0 && c.queue[0].n <= len(c.free) {
		w := c.queue[0]
		c.queue = c.queue[1:]
		w.got <- slices.Clone(c.free[:w.n])
		c.free = slices.Delete(c.free, 0, w.n)
	}
}

// visible are the variables that show a command its cards and no others. The
// order is set too: by itself CUDA puts the fastest first, and nvidia-smi does not.
func (c *cards) visible(given []card) []string {
	if len(c.all) == 0 {
		return nil
	}
	texts := make([]string, len(given))
	for i, g := range given {
		texts[i] = strconv.Itoa(g.index)
	}
	return []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=" + strings.Join(texts, ",")}
}
