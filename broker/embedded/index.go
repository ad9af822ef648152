package embedded

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
)

// kfake writes a batch and then, in another file, a line about it, by which it
// knows after a kill that the batch belongs to a transaction. Killed between
// the two it would take what nobody committed for committed, and the lines that
// follow for those of the batches before. What is missing is in the batches'
// own heads, so it is written here.

const (
	indexLine    = 15
	indexVersion = 1
)

// completeIndexes gives the last segment of every partition the lines that a
// kill kept it from getting.
func completeIndexes(dir string) error {
	partitions, err := os.ReadDir(filepath.Join(dir, "partitions"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, p := range partitions {
		all := segments(filepath.Join(dir, "partitions", p.Name()))
		if len(all) == 0 {
			continue
		}
		if err := completeIndex(all[len(all)-1]); err != nil {
			return fmt.Errorf("complete the index of partition %s: %w", p.Name(), err)
		}
	}
	return nil
}

func completeIndex(segment string) error {
	var lines []byte
	if err := eachHead(segment, math.MaxInt64, func(head [batchHead]byte, _ int64) { lines = append(lines, lineOf(head)...) }); err != nil {
		return err
	}
	name := strings.TrimSuffix(segment, ".dat") + ".idx"
	info, err := os.Stat(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var have int64
	if err == nil {
		have = info.Size() / indexLine * indexLine
	}
	if have >= int64(len(lines)) {
		return nil
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(lines[have:], have)
	return errors.Join(err, f.Close())
}

// lineOf is kfake's line about a batch. The time in it is worked out anew when
// the folder is opened.
func lineOf(head [batchHead]byte) []byte {
	const transactional, control = 1 << 4, 1 << 5
	line := make([]byte, indexLine)
	line[0] = indexVersion
	binary.LittleEndian.PutUint32(line[2:], binary.BigEndian.Uint32(head[12:])) // the leader's epoch
	if a := binary.BigEndian.Uint16(head[21:]); a&transactional != 0 && a&control == 0 {
		line[14] = 1
	}
	line[1] = byte(crc32.Checksum(line[2:], crc32.MakeTable(crc32.Castagnoli)))
	return line
}
