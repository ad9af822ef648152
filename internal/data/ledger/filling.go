package ledger

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger/fold"
)

// filling is the state of the hash at. Each time that Redis is filled from the beginning of the
// log, the filling gets another id. Makings in memory, and all else that a process knows of one
// filling, must not be used with another.
type filling struct {
	id         string          // empty if Redis was flushed, or is new
	partitions int             // number of partitions that the stream had when the filling began
	applied    map[int32]int64 // next offset of each partition
	lost       bool            // whether keys of the filling are lost
	last       LastFacts
}

// fieldLast is the beginning of the fields of at with the last fact of each partition.
const fieldLast = "last:"

// readFilling reads from Redis how far it is.
func (l *Ledger) readFilling(ctx context.Context) (filling, error) {
	fields, err := l.client.HGetAll(ctx, l.key("at")).Result()
	if err != nil {
		return filling{}, fmt.Errorf("ask redis how far it is: %w", err)
	}
	return parseFilling(fields)
}

func parseFilling(fields map[string]string) (filling, error) {
	f := filling{id: fields["fill"], partitions: int(parseNumber(fields["partitions"])), lost: fields["lost"] != "", applied: map[int32]int64{}, last: LastFacts{}}
	for name, value := range fields {
		name, isLast := strings.CutPrefix(name, fieldLast)
		partition, err := strconv.ParseInt(name, 10, 32)
		if err != nil {
			continue // a field of another kind
		}
		if isLast {
			f.last[int32(partition)] = parseLast(value)
			continue
		}
		if f.applied[int32(partition)], err = strconv.ParseInt(value, 10, 64); err != nil {
			return filling{}, fmt.Errorf("read how far redis is: %w", err)
		}
	}
	return f, nil
}

// isWrong returns the reason why the filling is not complete, or does not belong to a log with these
// ends.
func (f *filling) isWrong(ends map[int32]int64) error {
	if f.lost {
		return errors.New("keys were deleted or evicted")
	}
	for partition, next := range f.applied {
		if next > ends[partition] {
			return fmt.Errorf("%w: Redis has the facts of partition %d up to offset %d, and the log ends at %d", ErrCut, partition, next, ends[partition])
		}
	}
	return nil
}

// startFilling deletes everything in Redis and starts another filling, unless another process has
// done so.
func (l *Ledger) startFilling(ctx context.Context, wrong string, partitions int) error {
	if err := scriptForget.Run(ctx, l.client, []string{l.key("at")}, l.prefix, wrong, rand.Text(), partitions).Err(); err != nil {
		return fmt.Errorf("start to fill redis: %w", err)
	}
	return nil
}

// The keys whose sizes Redis keeps in the field sizes of at, so that a lost key is noticed. The keys
// beats, told and curve:RUN are not from the log and may be lost. See scripts/whole.lua for all other keys.
var (
	sizedHashes = []string{hashMakings, hashModels, hashVersions, hashJudgements, hashOwed, hashListed, hashKeyListed, hashLengths,
		"links", "runs", "counts", "live", "running", "pending", "queued"}
	sizedRoots = []string{"queue", "lists"}
)

// glance is the part of at that each read compares, and the sizes of keys at the same moment.
type glance struct {
	at    *redis.SliceCmd // fill, lost, sizes, sum and ready
	sizes []*redis.IntCmd
}

// glanceAt adds the commands of a glance to a transaction.
func glanceAt(ctx context.Context, pipe redis.Pipeliner, prefix string) *glance {
	g := &glance{at: pipe.HMGet(ctx, prefix+"at", "fill", "lost", "sizes", "sum", "ready")}
	for _, name := range sizedHashes {
		g.sizes = append(g.sizes, pipe.HLen(ctx, prefix+name))
	}
	for _, name := range sizedRoots {
		g.sizes = append(g.sizes, pipe.ZCard(ctx, prefix+name))
	}
	return g
}

// isIntact reports whether Redis has the known filling, and no key is lost.
func (g *glance) isIntact(least known) bool {
	fields := g.at.Val()
	sizes := make([]byte, 0, 64)
	for _, n := range g.sizes {
		sizes = append(strconv.AppendInt(sizes, n.Val(), 10), ' ')
	}
	fill, _ := fields[0].(string)
	sealed, _ := fields[2].(string)
	return fill == least.fill && fields[1] == nil && sealed == string(sizes[:len(sizes)-1])
}

// isCurrent reports whether Redis is intact, has caught up and has all facts that this process
// knows of.
func (g *glance) isCurrent(least known) bool {
	fields := g.at.Val()
	return g.isIntact(least) && fields[4] != nil && numberIn(fields[3]) >= least.sum
}

// StoppedError is the reason why the ledger decides nothing until a person has acted.
type StoppedError struct{ reason string }

// Error returns the reason and the next step.
func (e *StoppedError) Error() string { return e.reason }

func isStopped(err error) bool {
	var stopped *StoppedError
	return errors.As(err, &stopped)
}

const runbook = "see docs/runbooks/ledger-stopped.md"

func partitionsError(had, has int) error {
	return &StoppedError{fmt.Sprintf("stream %s had %d partitions and has %d: newer facts of a key may be on another partition than older ones, so their order is lost; %s",
		tidemill.StreamFacts, had, has, runbook)}
}

func deletedError(partition int32, from, to int64) error {
	return &StoppedError{fmt.Sprintf("the facts from offset %d to %d of partition %d of stream %s were deleted from the log, and Redis does not have them: the state would be wrong without them; %s",
		from, to-1, partition, tidemill.StreamFacts, runbook)}
}

func misplacedError(f fold.Fact, partitions int, own int32) error {
	return &StoppedError{fmt.Sprintf("the fact at offset %d of partition %d of stream %s belongs to partition %d of %d: the stream was given partitions after facts were written, or another program wrote the fact; %s",
		f.Offset, f.Partition, tidemill.StreamFacts, own, partitions, runbook)}
}
