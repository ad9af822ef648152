package brokertest

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"tidemill.dev/broker"
)

// notebook is which note of each partition of "in" was committed last.
type notebook struct {
	mu sync.Mutex
	of map[int32]string
}

func (n *notebook) keep(partition int32, note string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.of == nil {
		n.of = map[int32]string{}
	}
	n.of[partition] = note
}

// check is a hook that fails where it is told another note.
func (n *notebook) check(w *world) func(context.Context, []broker.Position) ([]broker.Position, error) {
	return func(_ context.Context, all []broker.Position) ([]broker.Position, error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, p := range all {
			if p.Note != n.of[p.Partition] {
				w.Errorf("beside %s/%d/%d stands %q, and %q was committed last", p.Stream, p.Partition, p.Offset, p.Note, n.of[p.Partition])
			}
		}
		return nil, nil
	}
}

// noteOf is what stands beside the group's offset in the partition 0 of "in".
func (w *world) noteOf() (offset int64, note string) {
	w.Helper()
	all, err := w.b.Committed(w.ctx(), "g", []broker.Position{{Stream: "in"}})
	w.must(err)
	return all[0].Offset, all[0].Note
}

// A transaction's note becomes visible with its offsets, or not at all, and
// alone moves no offset; whoever reads on is told, before and after an abort.
func notesInTransactions(w *world) {
	w.stream("in", 1)
	asked := make(chan []broker.Position, 10)
	c, t := w.transactorOf(broker.ConsumerOptions{Group: "g", Streams: []string{"in"}, Assigned: tellAssigned(asked), CommitEvery: time.Millisecond})
	if at := <-asked; at[0].Note != "" {
		w.Errorf("nothing was noted, and the reader is told %+v", at)
	}
	w.publish("in", 1, 4)
	d, err := c.Poll(w.ctx())
	w.must(err)
	first, next := d.Events[0].Offset, d.Next()
	note := func(text string, d *broker.Delivery, fail error) error {
		return t.Do(w.ctx(), func(x *broker.Tx) error {
			x.Note("in", 0, text+" overridden")
			x.Note("in", 0, text)
			if d != nil {
				x.Done(d)
			}
			return fail
		})
	}
	w.must(note("alone", nil, nil))
	if at, text := w.noteOf(); at != first || text != "alone" {
		w.Errorf("the group stands at %d with %q, want %d with the note alone", at, text, first)
	}
	w.must(note("with a delivery", d, nil))
	if at, text := w.noteOf(); at != next || text != "with a delivery" {
		w.Errorf("the group stands at %d with %q, want %d", at, text, next)
	}
	w.wantErr(note("lost", nil, errNo), errNo)
	if at := <-asked; len(at) != 1 || at[0] != (broker.Position{Stream: "in", Offset: next, Note: "with a delivery"}) {
		w.Errorf("aborted, and asked where to go on from %+v", at)
	}
	w.publish("in", 1, 4) // ends one by one, with the commits in the background
	w.soon("the offset moves on", func() bool {
		ctx, cancel := context.WithTimeout(w.ctx(), moment)
		defer cancel()
		if d, err := c.Poll(ctx); err == nil {
			d.Done()
		}
		at, text := w.noteOf()
		if text != "with a delivery" {
			w.Fatalf("beside %d stands %q", at, text)
		}
		return at >= 8
	})
	w.must(t.Close(w.ctx()))
	w.close(c)
	w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"in"}, Assigned: tellAssigned(asked)})
	if at := <-asked; at[0].Note != "with a delivery" {
		w.Errorf("the next reader is told %+v", at)
	}
}

// A note without a transaction is committed soon, also if nothing else moves, and
// goes from reader to reader, be it as long as a note may be.
func notesByAndBy(w *world) {
	w.stream("in", 2)
	w.publish("in", 1, 6)
	long := strings.Repeat("é", broker.MaxNote/2)
	was := ""
	for n, text := range []string{"first", long, "third"} {
		asked := make(chan []broker.Position, 10)
		c := w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"in"}, CommitEvery: time.Millisecond, Assigned: tellAssigned(asked)})
		for _, p := range <-asked {
			if p.Partition == 0 && p.Note != was {
				w.Errorf("reader %d is told %+v, want the note %q", n, p, was)
			}
		}
		was = text
		w.soon("it reads", func() bool { return c.Note("in", 0, text) == nil })
		w.soon("it is committed", func() bool { _, note := w.noteOf(); return note == text })
		if n == 2 {
			w.must(c.Note("in", 0, "last"))
			was = "last"
		}
		w.close(c) // which commits what is left
		if _, note := w.noteOf(); note != was {
			w.Errorf("closed, and beside the offset stands %q, want %q", note, was)
		}
	}
}

// A member that the group has put out cannot commit a note, though it has noticed
// nothing.
func notesZombie(w *world) {
	w.stream("in", 1)
	_, t := w.transactorOf(broker.ConsumerOptions{Group: "g", Streams: []string{"in"}, SessionTimeout: patience})
	err, n := errNo, 0
	w.soon("a transaction runs to its end", func() bool {
		err = t.Do(w.ctx(), func(x *broker.Tx) error {
			x.Note("in", 0, "zombie "+strconv.Itoa(n))
			w.expel("g")
			return nil
		})
		n++
		return err == nil || !strings.Contains(err.Error(), "taken away") // not assigned yet
	})
	w.wantErr(err, broker.ErrAborted)
	if _, note := w.noteOf(); note != "" {
		w.Errorf("%q is committed", note)
	}
}
