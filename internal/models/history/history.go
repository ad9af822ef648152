package history

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/store"
)

// File is the name of the file in the input's folder.
const File = "outcomes.ndjson"

// ErrTooMany reports that an input would have more than mostRows rows.
var ErrTooMany = errors.New("there are too many outcomes for one input; let it read a shorter time with `last`")

const (
	mostRows                = 2_000_000
	leastAtOnce, mostAtOnce = 64 << 10, 1 << 20 // bytes of one read of a stream
)

// Row is a line of the file.
type Row struct {
	Event *Event               `json:"event"` // event that was answered; null if its stream no longer has it
	Truth string               `json:"truth"`
	Of    tidemill.OutcomeData `json:"outcome"`
}

// Event has the parts of an event that a trainer needs.
type Event struct {
	ID      string          `json:"id"`
	Source  string          `json:"source"`
	Type    string          `json:"type"`
	Subject string          `json:"subject,omitempty"`
	Time    string          `json:"time,omitempty"`
	Data    json.RawMessage `json:"data,omitempty"` // JSON as it is, or a text
}

// Options say which outcomes are written, and where.
type Options struct {
	Broker *broker.Broker
	Store  *store.Store
	Scorer config.Scorer
	Key    string        // key whose models have answered; empty means all
	Last   time.Duration // age of the oldest outcome
}

// Write stores the file as a tree, and returns the input. The input names the ranges of the stream of outcomes
// that were read.
func Write(ctx context.Context, o Options) (in tidemill.Input, err error) {
	in.Outcomes = o.Scorer.Name
	all, err := o.outcomes(ctx, &in)
	if err != nil {
		return in, fmt.Errorf("read the outcomes of scorer %s: %w", o.Scorer.Name, err)
	}
	f, err := os.CreateTemp("", "tidemill-outcomes-*")
	if err != nil {
		return in, err
	}
	defer func() {
		_ = f.Close()
		_ = os.Remove(f.Name())
	}()
	sum := sha256.New()
	to := bufio.NewWriter(io.MultiWriter(f, sum))
	if err := errors.Join(o.write(ctx, all, json.NewEncoder(to)), to.Flush()); err != nil {
		return in, fmt.Errorf("write the outcomes of scorer %s: %w", o.Scorer.Name, err)
	}
	size, err := f.Seek(0, io.SeekCurrent)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	digest := hex.EncodeToString(sum.Sum(nil))
	if err == nil {
		err = o.Store.PutObject(ctx, digest, size, f)
	}
	if err != nil {
		return in, fmt.Errorf("store the outcomes of scorer %s: %w", o.Scorer.Name, err)
	}
	tree, err := o.Store.Tree(ctx, []api.File{{Path: File, Digest: digest, Size: size}})
	in.Tree, in.Files, in.Bytes, in.Rows = tree.Tree, 1, size, len(all)
	return in, err
}

// row is an outcome, and the place and identity of its event. If a stream is created again, other events have the
// places of the old ones.
type row struct {
	at         broker.Position
	data       tidemill.OutcomeData
	id, source string
}

// of reports whether an event is the one that was answered. Outcomes of earlier versions may not name it.
func (r *row) of(e *broker.Incoming) bool {
	return e.Err == nil && e.Offset == r.at.Offset && (r.id == "" || e.ID == r.id && e.Source == r.source)
}

// outcomes returns the newest outcome of each answer, in the order of the answered events.
func (o *Options) outcomes(ctx context.Context, in *tidemill.Input) ([]row, error) {
	from, err := o.Broker.Places(ctx, tidemill.StreamOutcomes, broker.Since(time.Now().Add(-o.Last)))
	if err != nil {
		return nil, err
	}
	ends, err := o.Broker.Ends(ctx, tidemill.StreamOutcomes)
	if err != nil {
		return nil, err
	}
	until := map[int32]int64{}
	for _, end := range ends {
		until[end.Partition] = end.Offset
	}
	newest := map[broker.Position]row{}
	for _, at := range from {
		end := until[at.Partition]
		// All outcomes of a key are in one partition, because their record key is the key, and the stream keeps its
		// number of partitions.
		if at.Offset >= end || o.Key != "" && at.Partition != broker.PartitionOf([]byte(o.Key), len(ends)) {
			continue
		}
		in.Read = append(in.Read, tidemill.Range{Partition: at.Partition, From: at.Offset, To: end})
		if err := o.readOutcomes(ctx, at, end, newest); err != nil {
			return nil, err
		}
	}
	all := make([]row, 0, len(newest))
	for _, r := range newest {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.at.Partition, b.at.Partition), cmp.Compare(a.at.Offset, b.at.Offset))
	})
	return all, nil
}

// readOutcomes reads a range of one partition.
func (o *Options) readOutcomes(ctx context.Context, at broker.Position, end int64, newest map[broker.Position]row) error {
	for at.Offset < end {
		var bad error
		next, err := o.Broker.Read(ctx, at, mostAtOnce, func(e *broker.Incoming) bool {
			if e.Offset < end {
				bad = o.take(e, newest)
			}
			return bad == nil && e.Offset < end
		})
		if err = errors.Join(err, bad); err != nil {
			return err
		}
		if next == at.Offset {
			return nil // only markers of transactions are left
		}
		at.Offset = next
	}
	return nil
}

func (o *Options) take(e *broker.Incoming, newest map[broker.Position]row) error {
	if e.Err != nil || o.Key != "" && string(e.Key) != o.Key {
		return nil
	}
	if scorer, _ := e.Attribute(tidemill.AttrScorer); scorer != o.Scorer.Name {
		return nil
	}
	var d tidemill.OutcomeData
	if err := json.Unmarshal(e.Data, &d); err != nil {
		return nil // no reader can do more with it
	}
	at, ok := broker.ParsePlace(d.Place)
	if !ok || newest[at].data.Revision >= d.Revision {
		return nil
	}
	id, _ := e.Attribute(tidemill.AttrCausationID)
	source, _ := e.Attribute(tidemill.AttrCausationSource)
	if newest[at] = (row{at, d, strings.Clone(id), strings.Clone(source)}); len(newest) > mostRows {
		return ErrTooMany
	}
	return nil
}

// write writes the rows, each with its event.
func (o *Options) write(ctx context.Context, all []row, to *json.Encoder) error {
	for len(all) > 0 {
		at := all[0].at
		end := slices.IndexFunc(all, func(r row) bool { return r.at.Stream != at.Stream || r.at.Partition != at.Partition })
		if end < 0 {
			end = len(all)
		}
		ends, err := o.Broker.Ends(ctx, at.Stream)
		if err != nil && !errors.Is(err, broker.ErrNoStream) {
			return err
		}
		last := int64(0) // offset after the last event; a stream that was made again is shorter, and one that was deleted has none
		if i := slices.IndexFunc(ends, func(p broker.Position) bool { return p.Partition == at.Partition }); i >= 0 {
			last = ends[i].Offset
		}
		if err := o.writePartition(ctx, all[:end], last, to); err != nil {
			return err
		}
		all = all[end:]
	}
	return nil
}

// writePartition reads on from each event that is needed, so rows that are close together share a read. Events of one
// key are mostly far apart, so a read is small until it has found several of them.
func (o *Options) writePartition(ctx context.Context, all []row, last int64, to *json.Encoder) error {
	for bytes := leastAtOnce; len(all) > 0; {
		if at := all[0].at.Offset; at >= broker.LifeOf(at)+last {
			if err := to.Encode(Row{nil, all[0].data.Truth, all[0].data}); err != nil {
				return err
			}
			all = all[1:]
			continue
		}
		before := len(all)
		var bad error
		_, err := o.Broker.Read(ctx, all[0].at, bytes, func(e *broker.Incoming) bool {
			for len(all) > 0 && bad == nil && all[0].at.Offset <= e.Offset {
				var of *Event
				if all[0].of(e) {
					of = eventOf(&e.View)
				}
				bad = to.Encode(Row{of, all[0].data.Truth, all[0].data})
				all = all[1:]
			}
			return bad == nil && len(all) > 0
		})
		if err = errors.Join(err, bad); err != nil {
			return err
		}
		if len(all) == before { // no event is there or after it
			if err := to.Encode(Row{nil, all[0].data.Truth, all[0].data}); err != nil {
				return err
			}
			all = all[1:]
		}
		if bytes = min(2*bytes, mostAtOnce); before-len(all) < 2 {
			bytes = leastAtOnce
		}
	}
	return nil
}

func eventOf(v *broker.View) *Event {
	e := &Event{ID: v.ID, Source: v.Source, Type: v.Type, Subject: v.Subject, Time: v.Time}
	switch {
	case len(v.Data) == 0:
	case json.Valid(v.Data):
		e.Data = v.Data
	default:
		e.Data, _ = json.Marshal(string(v.Data)) // a text is always valid
	}
	return e
}
