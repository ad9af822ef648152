package commands

import (
	"context"
	"encoding/json"
	"hash/maphash"
	"sync"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// forgotten knows which keys were forgotten. For each key it keeps the hash of the key and the offset
// of the command, 16 bytes in all, because an install may forget millions of keys. The ends of the
// key's events are in the command, and are read from there. It is safe for concurrent use: the
// goroutine that follows the commands adds them, and senders of events ask.
type forgotten struct {
	seed maphash.Seed
	// read returns the event at an offset of the stream commands.
	read func(ctx context.Context, offset int64) (Command, error)

	mu     sync.Mutex
	newest map[uint64]int64   // offset of the newest command, by the key's hash
	older  map[uint64][]int64 // offsets of earlier commands about keys with that hash; most keys have none
	limits map[string][]int64 // furthest end of any key, by stream and partition
	known  map[int64]ends     // commands that were read, by offset
}

// ends has the content of a command that ends a key.
type ends struct {
	key string
	of  map[string][]int64 // end offsets of the partitions, by stream
}

// maxKnown is the number of commands whose ends are kept. With 90 partitions, one takes 1 kB.
const maxKnown = 1024

func newForgotten(read func(ctx context.Context, offset int64) (Command, error)) *forgotten {
	return &forgotten{seed: maphash.MakeSeed(), read: read, newest: map[uint64]int64{}, older: map[uint64][]int64{},
		limits: map[string][]int64{}, known: map[int64]ends{}}
}

// add adds a command that ends a key.
func (f *forgotten) add(c *Command) {
	e, ok := readEnds(c)
	if !ok {
		return
	}
	hash := maphash.String(f.seed, c.Subject)
	f.mu.Lock()
	defer f.mu.Unlock()
	for stream, at := range e.of {
		f.limits[stream] = raise(f.limits[stream], at)
	}
	if before, again := f.newest[hash]; again {
		f.older[hash] = append(f.older[hash], before)
	}
	f.newest[hash] = c.Offset
}

// readEnds returns the ends in a command; false if the command has none.
func readEnds(c *Command) (ends, bool) {
	var d tidemill.KeyPassedData
	if c.Type != tidemill.TypeKeyPassed || c.Subject == "" || json.Unmarshal(c.Data, &d) != nil {
		return ends{}, false
	}
	return ends{c.Subject, d.Ends}, true
}

// raise raises each limit to an end that is further.
func raise(limits, to []int64) []int64 {
	for len(limits) < len(to) {
		limits = append(limits, 0)
	}
	for i, at := range to {
		limits[i] = max(limits[i], at)
	}
	return limits
}

// passed reports whether a command ends a key after an offset. A key may end, begin again and end
// again, and the commands may be in another order than the ends: any command counts. Most events are
// beyond the ends of all keys, or of a key that was never forgotten; then no command is read.
func (f *forgotten) passed(ctx context.Context, key, stream string, partition int32, offset int64) (bool, error) {
	for _, at := range f.candidates(key, stream, partition, offset) {
		e, err := f.endsAt(ctx, at)
		if err != nil {
			return false, err
		}
		if e.key == key && before(offset, e.of[stream], partition) {
			return true, nil
		}
	}
	return false, nil
}

// candidates returns the offsets of the commands that may end the key after the offset, the newest
// first.
func (f *forgotten) candidates(key, stream string, partition int32, offset int64) []int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !before(offset, f.limits[stream], partition) {
		return nil
	}
	hash := maphash.String(f.seed, key)
	newest, there := f.newest[hash]
	if !there {
		return nil
	}
	return append([]int64{newest}, f.older[hash]...)
}

// before reports whether an offset is before the end of its partition.
func before(offset int64, ends []int64, partition int32) bool {
	return int(partition) < len(ends) && offset < ends[partition]
}

// endsAt returns the ends in a command, which it reads from the log unless it has read it lately.
func (f *forgotten) endsAt(ctx context.Context, offset int64) (ends, error) {
	f.mu.Lock()
	e, there := f.known[offset]
	f.mu.Unlock()
	if there {
		return e, nil
	}
	c, err := f.read(ctx, offset)
	if err != nil {
		return e, err
	}
	e, _ = readEnds(&c)
	f.mu.Lock()
	defer f.mu.Unlock()
	for old := range f.known {
		if len(f.known) < maxKnown {
			break
		}
		delete(f.known, old)
	}
	f.known[offset] = e
	return e, nil
}

// command reads the command at an offset.
func (f *Follower) command(ctx context.Context, offset int64) (c Command, err error) {
	err = f.readAt(ctx, offset, func(e *broker.Incoming) error { c = read(e); return nil })
	return c, err
}
