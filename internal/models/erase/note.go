package erase

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/triggers/deadletters"
)

// note is the progress of a forgetting. The note is kept in the store because removed data cannot
// be listed afterwards. After a crash the next call reads here which logs to remove, and the
// contents of the receipt. Each step saves what it is about to remove before it removes it.
type note struct {
	tidemill.KeyForgotten
	Live    map[string]string  `json:"live,omitempty"`    // run whose attempt has to end, by recipe
	Ends    map[string][]int64 `json:"ends,omitempty"`    // offsets before which events are not delivered any more, by stream
	Topics  map[string]string  `json:"topics,omitempty"`  // ids of these streams
	Passed  bool               `json:"passed,omitempty"`  // whether Ends has been published
	Taken   bool               `json:"taken,omitempty"`   // whether only the receipt is missing; present data belongs to the key's next life then
	Receipt *tidemill.Mark     `json:"receipt,omitempty"` // position of the receipt; the rest of the note is empty then
}

// newNote returns a note without null lists, so that a reader of the receipt finds empty lists.
func newNote(r tidemill.KeyForgotten) *note {
	r.Runs, r.Models, r.Datasets, r.Remains = []tidemill.GoneRuns{}, []tidemill.GoneModel{}, []tidemill.GoneDataset{}, []tidemill.Remains{}
	return &note{KeyForgotten: r}
}

func noteName(id string) string { return "forgetting-" + id }

// note reads the progress of a forgetting; a new note if none has begun.
func (f *Forgetter) note(ctx context.Context, o Order) (*note, error) {
	n, err := f.readNote(ctx, o.ID)
	if errors.Is(err, ErrUnknown) {
		return newNote(tidemill.KeyForgotten{Key: o.Key, Forgetting: o.ID, Asked: o.At, By: o.By, Reason: o.Reason}), nil
	}
	return n, err
}

func (f *Forgetter) readNote(ctx context.Context, id string) (*note, error) {
	data, err := f.o.Store.Note(ctx, noteName(id))
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrInvalid) {
		return nil, fmt.Errorf("forgetting %q: %w", id, ErrUnknown)
	}
	var n note
	if err == nil {
		err = json.Unmarshal(data, &n)
	}
	if errors.As(err, new(*json.SyntaxError)) { // a power cut has emptied it, or cut it off
		return nil, fmt.Errorf("forgetting %q, whose note is unreadable: %w", id, ErrUnknown)
	}
	if err != nil {
		return nil, fmt.Errorf("read how far forgetting %s has come: %w", id, err)
	}
	return &n, nil
}

// errSlow reports that another forgetter has removed everything meanwhile. To continue would remove
// data of the key's next life.
var errSlow = errors.New("another has forgotten it meanwhile")

// stillOurs returns errSlow if another forgetter has removed everything.
func (f *Forgetter) stillOurs(ctx context.Context, n *note) error {
	now, err := f.readNote(ctx, n.Forgetting)
	switch {
	case errors.Is(err, ErrUnknown):
		return nil
	case err != nil:
		return err
	case now.Receipt != nil, now.Taken && !n.Taken && n.Receipt == nil:
		return errSlow
	}
	return nil
}

func (f *Forgetter) save(ctx context.Context, n *note) error {
	if err := f.stillOurs(ctx, n); err != nil {
		return err
	}
	data, err := json.Marshal(n)
	if err == nil {
		err = f.o.Store.PutNote(ctx, noteName(n.Forgetting), data)
	}
	if err != nil {
		return fmt.Errorf("write down how far the forgetting of key %s has come: %w", n.Key, err)
	}
	return nil
}

// runsOf returns the entry of a recipe, and adds it if it does not exist.
func (n *note) runsOf(recipe string) *tidemill.GoneRuns {
	i, found := slices.BinarySearchFunc(n.Runs, recipe, func(r tidemill.GoneRuns, name string) int { return cmp.Compare(r.Recipe, name) })
	if !found {
		n.Runs = slices.Insert(n.Runs, i, tidemill.GoneRuns{Recipe: recipe, Runs: []string{}, At: unknownMark})
	}
	return &n.Runs[i]
}

// unknownMark is the mark of a fact that is not on the log yet.
var unknownMark = tidemill.Mark{Partition: -1, Offset: -1}

func (n *note) addRun(recipe, id string) {
	if r := n.runsOf(recipe); !slices.Contains(r.Runs, id) {
		r.Runs = append(r.Runs, id)
		slices.Sort(r.Runs)
	}
}

// addModel notes a model with the largest number of versions seen, because after a crash some
// versions may have been removed.
func (n *note) addModel(m tidemill.GoneModel) {
	i, found := slices.BinarySearchFunc(n.Models, m.Model, func(is tidemill.GoneModel, name string) int { return cmp.Compare(is.Model, name) })
	if !found {
		n.Models = slices.Insert(n.Models, i, m)
	}
	n.Models[i].Versions = max(n.Models[i].Versions, m.Versions)
}

func (n *note) addDataset(d tidemill.GoneDataset) {
	i, found := slices.BinarySearchFunc(n.Datasets, d.Dataset, func(is tidemill.GoneDataset, name string) int { return cmp.Compare(is.Dataset, name) })
	if !found {
		n.Datasets = slices.Insert(n.Datasets, i, d)
	}
	n.Datasets[i].Branches = max(n.Datasets[i].Branches, d.Branches)
	n.Datasets[i].Commits = max(n.Datasets[i].Commits, d.Commits)
}

// marks returns the places after which runs count again.
func (n *note) marks() (all []tidemill.Mark) {
	for i := range n.Runs {
		if n.Runs[i].At != unknownMark {
			all = append(all, n.Runs[i].At)
		}
	}
	return all
}

// lettersOf returns the open dead letters of a key.
func (f *Forgetter) lettersOf(ctx context.Context, key string) (places []broker.Position, book *deadletters.Book, err error) {
	if book, err = f.o.Letters(ctx); err != nil {
		return nil, nil, fmt.Errorf("look for dead letters of key %s: %w", key, err)
	}
	book.ByKey(deadletters.Selection{Key: key}, func(e deadletters.Entry) { places = append(places, e.At) })
	return places, book, nil
}

// dropLetters resolves the key's dead letters without a delivery, also dead letters with a
// requested replay: of two receipts the first counts.
func (f *Forgetter) dropLetters(ctx context.Context, n *note) error {
	places, book, err := f.lettersOf(ctx, n.Key)
	if err != nil || len(places) == 0 {
		return err
	}
	d := &letterDrop{f: f, n: n, ctx: ctx, book: book}
	err = book.At(ctx, places, d.send)
	d.sent.Wait()
	if err = errors.Join(err, d.failed); err != nil {
		return fmt.Errorf("drop the dead letters of key %s: %w", n.Key, err)
	}
	return nil
}

// letterDrop is one call of dropLetters.
type letterDrop struct {
	f    *Forgetter
	n    *note
	ctx  context.Context
	book *deadletters.Book
	sent sync.WaitGroup

	mu     sync.Mutex
	failed error
}

// send writes a dead letter's receipt to the dead letter's own partition.
func (d *letterDrop) send(at broker.Position, e *broker.Incoming) error {
	r := deadletters.Receipt{Letter: strings.Clone(e.ID), Partition: at.Partition, Offset: at.Offset,
		Action: deadletters.Dropped, Outcome: deadletters.DroppedByAct, Reason: d.n.reasonText(), By: d.n.By}
	v, err := deadletters.Resolved(d.f.o.Names, &e.View, r, d.f.now())
	if err != nil {
		return err
	}
	d.sent.Add(1)
	d.f.o.Producer.SendTo(d.ctx, at.Stream, at.Partition, &v, func(lies broker.Receipt, err error) {
		defer d.sent.Done()
		if err == nil {
			d.book.Resolved(broker.Position{Stream: at.Stream, Partition: lies.Partition, Offset: lies.Offset}, &r)
			return
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.failed = err
	})
	return nil
}

// reasonText returns the reason, for readers who see only a part of the forgetting.
func (n *note) reasonText() string {
	if n.Reason == "" {
		return "the key was forgotten"
	}
	return "the key was forgotten: " + n.Reason
}
