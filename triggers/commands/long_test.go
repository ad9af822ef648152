//go:build slow

package commands

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// A process keeps few bytes for each forgotten key, and the work for one more command does not grow
// with their number.
func TestForgottenKeysAreSmall(t *testing.T) {
	const keys, most, mostWork = 50_000, 64, 16 << 10
	data := passData(t)
	f := newFollower(nil, true)
	fill := func(from, to int) (kept, allocated uint64) {
		var before, after runtime.MemStats
		all := make([]broker.Incoming, 0, to-from)
		for i := from; i < to; i++ {
			all = append(all, broker.Incoming{Offset: int64(i), View: broker.View{ID: fmt.Sprint("id-", i), Type: tidemill.TypeKeyPassed, Subject: fmt.Sprint("bot-", i), Data: data}})
		}
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range all {
			f.take(&broker.Delivery{Events: all[i : i+1]})
		}
		runtime.ReadMemStats(&after)
		allocated = after.TotalAlloc - before.TotalAlloc
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(all)
		return after.HeapAlloc - min(before.HeapAlloc, after.HeapAlloc), allocated
	}
	kept := uint64(0)
	for from := 0; from < keys; from += keys / 10 {
		more, _ := fill(from, from+keys/10)
		kept += more
	}
	_, allocated := fill(keys, keys+100)
	t.Logf("%d bytes for each of %d forgotten keys; one more command allocates %d bytes", kept/keys, keys, allocated/100)
	if kept/keys > most {
		t.Errorf("a forgotten key takes %d bytes, and %d are the most", kept/keys, most)
	}
	if allocated/100 > mostWork {
		t.Errorf("a command allocates %d bytes after %d others, and %d are the most", allocated/100, keys, mostWork)
	}
	runtime.KeepAlive(f)
}

// passData is the data of a command that ends a key. An install has many partitions, and the command has
// an end for each.
func passData(tb testing.TB) []byte {
	tb.Helper()
	d := tidemill.KeyPassedData{Ends: map[string][]int64{}}
	for stream, partitions := range map[string]int{"events": 12, "facts": 24, "messages": 48, "dead-letters": 6} {
		d.Ends[stream] = slices.Repeat([]int64{12_345_678}, partitions)
	}
	data, err := json.Marshal(d)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}
