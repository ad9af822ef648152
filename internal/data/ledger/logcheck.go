package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger/fold"
)

// The log may be deleted and created again, and an election of a server that lacks facts cuts it. A
// new log may be as long as the old one, or longer. So Redis has the print of the last fact of each
// partition. The print is compared with the log
//   - when a session begins, and each minute,
//   - before the first facts of another leader are folded; then the last fact that was read from the
//     leader before is compared too.
//
// A fact that was folded before it was read is compared when it is read.

// ErrCut says that Redis has facts that are not on the log.
var ErrCut = errors.New("the log is not the one that Redis was filled from")

// errGone says that facts were deleted from the log before this process has read them.
var errGone = errors.New("facts were deleted from the log before they were read")

// lastFact is the last fact of a partition that was folded or read.
type lastFact struct {
	offset int64
	print  string
}

// lastOf returns a fact's offset and its print: a digest of all that the fold reads.
func lastOf(f *fold.Fact) lastFact {
	h := sha256.New()
	for _, s := range []string{f.ID, f.Type, f.Recipe, f.Model, f.Key, f.Run, f.By, strconv.FormatInt(f.At.UnixNano(), 10)} {
		_, _ = io.WriteString(h, s+"\n") // a digest takes everything
	}
	_, _ = h.Write(f.Data)
	return lastFact{f.Offset, hex.EncodeToString(h.Sum(nil)[:8])}
}

func (f lastFact) String() string { return strconv.FormatInt(f.offset, 10) + " " + f.print }

func parseLast(text string) lastFact {
	offset, print, _ := strings.Cut(text, " ")
	return lastFact{parseNumber(offset), print}
}

// LastFacts are the last facts that a reader has folded, one of each partition.
type LastFacts map[int32]lastFact

// Note remembers the last fact of a delivery.
func (l LastFacts) Note(d *broker.Delivery) {
	for i := len(d.Events) - 1; i >= 0; i-- {
		if f, kind := read(&d.Events[i], d.Partition); kind == legible {
			l[d.Partition] = lastOf(&f)
			return
		}
	}
}

// Merge takes the facts of another reader that are newer.
func (l LastFacts) Merge(other LastFacts) {
	for partition, f := range other {
		if had, known := l[partition]; !known || f.offset > had.offset {
			l[partition] = f
		}
	}
}

// Filling returns the id of the filling of Redis that this process knows. After each change of it the
// log may be another one; see [Ledger.CheckLog].
func (l *Ledger) Filling() string {
	now, _ := l.progress.known() // the error only says that the ledger catches up
	return now.fill
}

// CheckLog returns ErrCut with the reason if the log does not have some facts, one of each partition.
func (l *Ledger) CheckLog(ctx context.Context, facts LastFacts) error {
	const atOnce = 8
	var all sync.WaitGroup
	turns, errs := make(chan struct{}, atOnce), make(chan error, len(facts))
	for partition, f := range facts {
		turns <- struct{}{}
		all.Go(func() {
			errs <- l.checkFact(ctx, partition, f)
			<-turns
		})
	}
	all.Wait()
	close(errs)
	var worst error
	for err := range errs {
		if worst == nil || errors.Is(err, ErrCut) {
			worst = err
		}
	}
	return worst
}

// checkFact returns ErrCut if the log has another record at a fact's offset. A fact that was deleted
// from the beginning of the log cannot be compared.
func (l *Ledger) checkFact(ctx context.Context, partition int32, want lastFact) error {
	var got lastFact
	at := broker.Position{Stream: tidemill.StreamFacts, Partition: partition, Offset: want.offset}
	_, err := l.o.Broker.Read(ctx, at, 1, func(e *broker.Incoming) bool {
		if f, kind := read(e, partition); kind == legible {
			got = lastOf(&f)
		}
		return false
	})
	if err != nil {
		return fmt.Errorf("compare Redis with the log: %w", err)
	}
	if got == want {
		return nil
	}
	starts, err := l.o.Broker.Places(ctx, tidemill.StreamFacts, broker.Earliest())
	if err != nil {
		return fmt.Errorf("compare Redis with the log: %w", err)
	}
	for _, start := range starts {
		if start.Partition == partition && start.Offset > want.offset {
			return nil
		}
	}
	return fmt.Errorf("%w: partition %d has another record at offset %d: the stream was created again, or a server without all facts became its leader", ErrCut, partition, want.offset)
}

// checkFilling compares Redis with the log. It returns ErrCut if Redis has facts that the log does
// not have.
func (l *Ledger) checkFilling(ctx context.Context) error {
	f, err := l.readFilling(ctx)
	if err != nil {
		return err
	}
	ends, err := l.ends(ctx)
	if err != nil {
		return err
	}
	if err := f.isWrong(ends); err != nil {
		return err
	}
	l.checked = time.Now()
	return l.CheckLog(ctx, f.last)
}

// memory has the facts of a session that are compared with the log later. Only the goroutine of run uses
// it.
type memory struct {
	leaders map[int32]int32              // number of the leadership of the last delivery
	read    LastFacts                    // last facts that were read
	own     map[int32]map[int64]lastFact // facts that were folded and not read yet
	suspect map[int32]lastFact           // facts to compare before further facts are folded
}

func newMemory() *memory {
	return &memory{map[int32]int32{}, LastFacts{}, map[int32]map[int64]lastFact{}, map[int32]lastFact{}}
}

// note remembers a delivery. If it has another leader than the delivery before, the last fact of
// the earlier leader has to be compared.
func (m *memory) note(d *broker.Delivery) {
	if leaders, known := m.leaders[d.Partition]; !known || leaders != d.Leadership() {
		m.suspect[d.Partition] = m.read[d.Partition]
	}
	m.leaders[d.Partition] = d.Leadership()
	m.read.Note(d)
}

// fold remembers an own fact that is folded before it is read.
func (m *memory) fold(f *fold.Fact) {
	if m.own[f.Partition] == nil {
		m.own[f.Partition] = map[int64]lastFact{}
	}
	m.own[f.Partition][f.Offset] = lastOf(f)
}

// readBack compares an own fact with the record that was read at its offset.
func (m *memory) readBack(e *broker.Incoming, partition int32) error {
	want, own := m.own[partition][e.Offset]
	if !own {
		return nil
	}
	delete(m.own[partition], e.Offset)
	if f, kind := read(e, partition); kind != legible || lastOf(&f) != want {
		return fmt.Errorf("%w: partition %d has another record at offset %d than this process has written there", ErrCut, partition, e.Offset)
	}
	return nil
}

// checkLeaders compares the last facts of earlier leaders with the log, if there are new leaders.
func (l *Ledger) checkLeaders(ctx context.Context) error {
	if len(l.memory.suspect) == 0 {
		return nil
	}
	read := map[int32]lastFact{}
	for partition, f := range l.memory.suspect {
		if f.print != "" {
			read[partition] = f
		}
	}
	clear(l.memory.suspect)
	if err := l.CheckLog(ctx, read); err != nil {
		return err
	}
	return l.checkFilling(ctx)
}
