package task

import (
	"bytes"
	"strconv"
)

// CopyLinger is how long what is copied may wait for company.
const CopyLinger = 5e6 // nanoseconds

// What outputs of Copy say beside their inputs' positions: as much as a scorer's.
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

// AppendPosition is where an event stands, as the id of what was made of it.
func AppendPosition(dst []byte, stream string, partition int32, offset int64) []byte {
	dst = append(append(dst, stream...), '/')
	dst = append(strconv.AppendInt(dst, int64(partition), 10), '/')
	return strconv.AppendInt(dst, offset, 10)
}
