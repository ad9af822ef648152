//go:build slow

package client

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev/api"
)

// If a reader pauses, as with a pager, only a limited part of the tail is in memory.
func TestTailOfLargeEventsWaitsWithItsReader(t *testing.T) {
	t.Parallel()
	const events, size = 48, 1 << 20
	synctest.Test(t, func(t *testing.T) {
		var taken atomic.Int64
		r, _, err := tailOf(t, TailOptions{}, func(w http.ResponseWriter, r *http.Request) {
			sseHandler("", false)(w, r)
			writeLarge(countingWriter{w, &taken}, events, size)
			sseHandler(endEvent, false)(w, r)
		})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // no reader yet
		if n := taken.Load(); n < waitingBytes || n > waitingBytes+4*size {
			t.Errorf("%d bytes wait for a reader that does not come", n)
		}
		all, _ := readAllOf(t, r)
		wantEvents(t, all, events)
	})
}

// An event that is larger than the queue's limit still arrives.
func TestTailOfAHugeEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, _, err := tailOf(t, TailOptions{}, func(w http.ResponseWriter, r *http.Request) {
			sseHandler("", false)(w, r)
			writeLarge(w, 2, waitingBytes+1)
			sseHandler(endEvent, false)(w, r)
		})
		if err != nil {
			t.Fatal(err)
		}
		all, _ := readAllOf(t, r)
		wantEvents(t, all, 2)
	})
}

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
