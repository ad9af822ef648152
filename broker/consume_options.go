package broker

import (
	"context"
	"strconv"
	"time"
)

// Start is the place where reading begins in a partition for which the group has no offset.
type Start struct {
	kind  startKind
	value int64
}

type startKind int8

const (
	atEarliest startKind = iota
	atLatest
	atOffset
	atTime
)

// Earliest starts at the oldest event of the log.
func Earliest() Start { return Start{kind: atEarliest} }

// Latest starts after the newest event.
func Latest() Start { return Start{kind: atLatest} }

// AtOffset starts each partition at an offset.
func AtOffset(offset int64) Start { return Start{atOffset, offset} }

// Since starts at the first event that reached the log at the given time or later.
func Since(t time.Time) Start { return Start{atTime, t.UnixMilli()} }

// String describes the start: beginning, end, an offset, or a time in UTC.
func (s Start) String() string {
	switch s.kind {
	case atEarliest:
		return "beginning"
	case atLatest:
		return "end"
	case atOffset:
		return strconv.FormatInt(s.value, 10)
	}
	return time.UnixMilli(s.value).UTC().Format(time.RFC3339Nano)
}

// ConsumerOptions name the streams to read and the group that reads them.
type ConsumerOptions struct {
	// Group shares the partitions of Streams among its members and stores how far each partition
	// has been read. Without a group, all partitions are read here and nothing is remembered. A
	// record that cannot be decoded is then handed out with its error; with a group it becomes a
	// dead letter.
	Group   string
	Streams []string
	Start   Start

	// Companions are streams that only this group writes, each event to the partition with the number
	// of the one that the event came from. The group may commit marks there. A member names these
	// streams to Kafka, because in a group with members Kafka deletes the offsets of other topics a
	// week after their last commit (KIP-211). An event there shows that the group is not new.
	Companions []string

	MaxBytes       int           // limit of fetched bytes whose events have not all ended; 64 MiB
	SessionTimeout time.Duration // time after which Kafka removes a silent member; 6 s
	DrainTimeout   time.Duration // time in which a partition that is taken away may finish its open events; 20 s
	CommitEvery    time.Duration // interval between commits; 1 s

	// Rest is the pause before the next fetch after a small answer, so that later events arrive
	// together. The pause saves Kafka and its readers most of the work if many readers read the
	// same stream and few of them need an event at once. A reader that is far from the end of the
	// log does not pause.
	Rest time.Duration

	// Assigned, if set, is called when partitions are about to be read, with the offset at which
	// each would start. The hook may move the offset back, or forward over events that it knows to
	// be done. The moved offset is then committed for the group. Before the partitions of a failed
	// transaction are read again, the goroutine that runs the transaction calls the hook again.
	// Position.Note is the committed note. The note stays until the next note, and the hook cannot
	// change the note. The hook may take minutes: neither a rebalance nor other work waits for it. If the
	// member has to give up one of these partitions meanwhile, the context of the hook ends. It must
	// return soon after that, and is called again later for the others.
	//
	// With a group, the tenure of a partition has this order: Assigned, once or more; Leaving,
	// unless the partition is lost; Gone; and only then Assigned for the next tenure. An Assigned
	// that fails begins no tenure. For one partition, calls of Assigned and Gone never overlap; for
	// different partitions they may. Neither may wait for another hook or for a transaction.
	Assigned func(context.Context, []Position) ([]Position, error)

	// Leaving, if set, is called before partitions are given up in order, because of a rebalance or
	// Close. Leaving is the last moment to commit a transaction for these partitions. Their further
	// events are not handed out, and the partitions cannot come back before Gone and Assigned. The
	// partitions are kept until Leaving has returned and all open events have ended, or until time
	// is up. Time is up after DrainTimeout, or during Close when the context of Close ends, if that
	// is earlier. When time is up or the partitions are lost, the context of the hook ends. All
	// other work continues meanwhile.
	Leaving func(context.Context, []Position)

	// Gone, if set, is called when partitions no longer belong to this consumer: they were given up
	// in order, the session was lost, the consumer was closed, or a transaction was aborted and
	// Kafka did not return the group's offsets. In that last case another goroutine calls Gone soon
	// after Do has returned. Gone must not block. For Leaving and Gone, a position's offset is that
	// of the first event that had not ended.
	Gone func([]Position)
}
