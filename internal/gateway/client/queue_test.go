package client

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"tidemill.dev/api"
)

// countingWriter counts the bytes that its writer has accepted.
type countingWriter struct {
	io.Writer
	taken *atomic.Int64
}

func (c countingWriter) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.taken.Add(int64(n))
	return n, err
}

func writeLarge(w io.Writer, events, size int) {
	data := strings.Repeat("x", size)
	for i := range events {
		body, _ := json.Marshal(api.Tailed{Partition: 1, Offset: int64(i), Received: time.Unix(int64(i), 0),
			Event: json.RawMessage(fmt.Sprintf(`{"specversion":"1.0","id":"%d","source":"/x","type":"t","data":"%s"}`, i, data))})
		fmt.Fprintf(w, "data: %s\n\n", body)
	}
}
