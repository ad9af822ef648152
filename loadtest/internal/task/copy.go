package task

import (
	"bytes"
	"strconv"
)

// CopyLinger is how long a copied event may wait for a batch.
const CopyLinger = 5e6 // nanoseconds

// Attributes of Copy's outputs. Together with the input's position they are as large as a scorer's.
const (
	CopySource  = "/tidemill/tidemill/scorer/load"
	CopyType    = "tidemill.scored"
	CopySchema  = "https://tidemill.dev/schemas/tidemill.scored/1"
	CopyModel   = "load/"
	CopyVersion = "1"
)

// Filler is the data of an output of Copy.
func (t Task) Filler() []byte {
	return append(append([]byte(`"`), bytes.Repeat([]byte("x"), max(0, t.Data-2))...), '"')
}

// AppendPosition appends an event's position, which is the id of its output.
func AppendPosition(dst []byte, stream string, partition int32, offset int64) []byte {
	dst = append(append(dst, stream...), '/')
	dst = append(strconv.AppendInt(dst, int64(partition), 10), '/')
	return strconv.AppendInt(dst, offset, 10)
}
