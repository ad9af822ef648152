package embedded

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kfake"
)

// kfake recognizes a producer's retry by the sequences that it has seen, and stores these sequences
// only on Close. After a kill, without the sequences, kfake would store a retried batch a second
// time. With the sequences of an earlier Close, kfake would refuse the next batch. So the file is
// removed after it is read. A start that finds no file comes after a kill, and rebuilds the file
// from the end of the log.
//
// The rebuild must count only batches that kfake keeps. If kfake dropped a counted batch as torn,
// the retry of this batch would be lost. Therefore kfake is first started for a short time, because
// its Close stores the high watermark of each partition.

const (
	sequencesFile = "seq_windows.json"
	windowLen     = 5     // batches that a producer may have in flight
	tailSegments  = 2     // segments in which sequences may be in doubt, all at the end
	batchHead     = 61    // length of a v2 batch head without records
	batchPrefix   = 8 + 4 // bytes of base offset and length, which the length does not count
	maxSequence   = 1<<31 - 1
)

// restoreSequences prepares the folder for a start after a kill.
func (o Options) restoreSequences(dir string) error {
	if !exists(filepath.Join(dir, "meta.json")) || exists(filepath.Join(dir, sequencesFile)) {
		return nil // a new folder, or a folder that was closed in order
	}
	err := completeIndexes(dir)
	if err == nil {
		err = o.abortLeftOpen(dir)
	}
	if err != nil {
		return fmt.Errorf("open %s after a kill: %w", dir, err)
	}
	windows, err := readWindows(dir)
	if err != nil {
		return fmt.Errorf("read the producers' sequences in %s after a kill: %w", dir, err)
	}
	b, err := json.Marshal(map[string]any{"version": 1, "windows": windows})
	if err != nil {
		return fmt.Errorf("encode the producers' sequences: %w", err)
	}
	if err := replaceFile(filepath.Join(dir, sequencesFile), b); err != nil {
		return fmt.Errorf("write the producers' sequences: %w", err)
	}
	return nil
}

// replaceFile writes a file that is never seen half written: a kill or a full disk leaves the old one.
func replaceFile(path string, content []byte) error {
	temp := path + ".tmp"
	if err := os.WriteFile(temp, content, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

// abortLeftOpen opens and closes the folder with kfake, and aborts the transactions that the
// kill left open.
func (o Options) abortLeftOpen(dir string) error {
	if err := o.withFolder(dir, nil); err != nil {
		return err
	}
	open, err := openTransactions(dir)
	if err != nil || len(open) == 0 {
		return err
	}
	return o.withFolder(dir, func(addr string) error { return o.abortOpen(addr, open) })
}

// withFolder opens the folder with kfake, calls do, and closes it. If the server has users, only this
// package may use the port, because any program of this machine can find it.
func (o Options) withFolder(dir string, do func(addr string) error) error {
	if err := forgetUsers(dir); err != nil {
		return err
	}
	c, err := kfake.NewCluster(append(o.saslOptions(), kfake.NumBrokers(1), kfake.DataDir(dir), kfake.BrokerConfigs(brokerConfigs()),
		kfake.ListenFn(func(string, string) (net.Listener, error) {
			return o.Network.ListenTCP(context.Background(), anyPort)
		}))...)
	if err != nil {
		return err
	}
	if do != nil {
		err = do(c.ListenAddrs()[0])
	}
	c.Close()
	// After a kill from here on there are no sequences, as before. After a kill between the two
	// lines there is the empty list that kfake has just written.
	return errors.Join(err, forgetSequences(dir))
}

// forgetSequences removes the file that the running cluster writes on Close.
func forgetSequences(dir string) error {
	err := os.Remove(filepath.Join(dir, sequencesFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// producerWindow is kfake's record of one producer in one partition.
type producerWindow struct {
	PID       int64            `json:"pid"`
	Topic     string           `json:"topic"`
	Partition int32            `json:"partition"`
	Entries   [windowLen]entry `json:"entries"`
	Count     uint8            `json:"count"`
	At        uint8            `json:"at"`
	Epoch     int16            `json:"epoch"`
	Seen      bool             `json:"seen"`
	NextSeq   int32            `json:"next_seq"`
}

type entry struct {
	FirstSeq int32 `json:"first_seq"`
	NextSeq  int32 `json:"next_seq"`
	Offset   int64 `json:"offset"`
}

func (w *producerWindow) add(epoch int16, e entry) {
	if w.Seen && w.Epoch != epoch {
		w.Entries, w.Count, w.At = [windowLen]entry{}, 0, 0
	}
	w.Epoch, w.Seen, w.NextSeq = epoch, true, e.NextSeq
	w.Entries[w.At] = e
	w.At = (w.At + 1) % windowLen
	w.Count = min(w.Count+1, windowLen)
}

func readWindows(dir string) ([]*producerWindow, error) {
	partitions, err := os.ReadDir(filepath.Join(dir, "partitions"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	all := []*producerWindow{}
	for _, p := range partitions {
		some, err := readPartition(filepath.Join(dir, "partitions", p.Name()))
		if err != nil {
			return nil, fmt.Errorf("partition %s: %w", p.Name(), err)
		}
		all = append(all, some...)
	}
	return all, nil
}

func readPartition(dir string) ([]*producerWindow, error) {
	topic, partition, err := partitionOf(filepath.Base(dir))
	if err != nil {
		return nil, err
	}
	high, err := highWatermark(dir)
	if err != nil {
		return nil, err
	}
	byPID := map[int64]*producerWindow{}
	for _, segment := range lastSegments(dir) {
		if err := readSegment(segment, high, byPID); err != nil {
			return nil, err
		}
	}
	var all []*producerWindow
	for pid, w := range byPID {
		w.PID, w.Topic, w.Partition = pid, topic, partition
		all = append(all, w)
	}
	return all, nil
}

// highWatermark returns the offset up to which kfake found a partition's log intact.
func highWatermark(dir string) (int64, error) {
	var snapshot struct {
		HighWatermark int64 `json:"high_watermark"`
	}
	b, err := os.ReadFile(filepath.Join(dir, "snapshot.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // empty
	}
	if err == nil {
		err = json.Unmarshal(b, &snapshot)
	}
	return snapshot.HighWatermark, err
}

// partitionOf parses a folder's name, topic-partition.
func partitionOf(name string) (string, int32, error) {
	i := strings.LastIndexByte(name, '-')
	if i < 0 {
		return "", 0, fmt.Errorf("folder %q is not a partition's", name)
	}
	topic, err := url.PathUnescape(name[:i])
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseInt(name[i+1:], 10, 32)
	return topic, int32(n), err
}

// lastSegments returns the files at the log's end, oldest first.
func lastSegments(dir string) []string {
	names := logSegments(dir)
	return names[max(0, len(names)-tailSegments):]
}

// logSegments returns a log's files, oldest first.
func logSegments(dir string) []string {
	names, _ := filepath.Glob(filepath.Join(dir, "*.dat")) // the pattern is valid, so there is no error
	base := func(name string) int64 {
		n, _ := strconv.ParseInt(strings.TrimSuffix(filepath.Base(name), ".dat"), 10, 64)
		return n
	}
	slices.SortFunc(names, func(a, b string) int { return int(min(1, max(-1, base(a)-base(b)))) })
	return names
}

// readSegment counts the batches below the high watermark.
func readSegment(name string, high int64, byPID map[int64]*producerWindow) error {
	return eachHead(name, high, func(head [batchHead]byte, offset int64) { takeIn(head, offset, byPID) })
}

// eachHead calls take for the head of each batch below the high watermark.
func eachHead(name string, high int64, take func(head [batchHead]byte, offset int64)) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 1<<16)
	var head [batchHead]byte
	for {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return ignoreEnd(err)
		}
		offset := int64(binary.BigEndian.Uint64(head[0:]))
		body := int(int32(binary.BigEndian.Uint32(head[8:]))) + batchPrefix - batchHead
		if offset >= high || body < 0 {
			return nil
		}
		take(head, offset)
		if _, err := r.Discard(body); err != nil {
			return ignoreEnd(err)
		}
	}
}

func takeIn(head [batchHead]byte, offset int64, byPID map[int64]*producerWindow) {
	const control = 1 << 5
	attributes := binary.BigEndian.Uint16(head[21:])
	pid := int64(binary.BigEndian.Uint64(head[43:]))
	if pid < 0 || attributes&control != 0 {
		return
	}
	first := int32(binary.BigEndian.Uint32(head[53:]))
	count := int32(binary.BigEndian.Uint32(head[57:]))
	w := byPID[pid]
	if w == nil {
		w = &producerWindow{}
		byPID[pid] = w
	}
	w.add(int16(binary.BigEndian.Uint16(head[51:])), entry{
		FirstSeq: first, NextSeq: int32((int64(first) + int64(count)) % maxSequence), Offset: offset})
}

// ignoreEnd accepts a file that ends anywhere: a torn batch is above the high watermark.
func ignoreEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}
