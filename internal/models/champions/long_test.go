//go:build slow

package champions

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger/fold"
)

// 20,000 models with all kept versions take less than a kilobyte each.
func TestAModelIsSmall(t *testing.T) {
	const models = 20_000
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	c := newCells()
	for i := range models {
		name := fmt.Sprint("intent/bot-", i)
		of := c.findOrCreate(strings.Clone(name))
		m := &fold.Model{Name: name, Key: fmt.Sprint("bot-", i), Next: 1e7, Last: 20, Champion: 20, Previous: 19, Turn: 20}
		for v := range 10 {
			m.Versions = append(m.Versions, fold.Held{Number: 11 + v, Run: tidemill.ID("run", name, fmt.Sprint(v)), State: tidemill.VersionPromoted,
				Mark: tidemill.Mark{Partition: int32(i % 24), Offset: 1e7}, Began: time.Now(), At: time.Now()})
		}
		m.Floors = []tidemill.Mark{{Partition: int32(i % 24), Offset: 1e7}}
		of.state = state{packed: pack(m), next: m.Next, files: []files{{20, artifactOf(20)}, {19, artifactOf(19)}}}
		of.show(m)
	}
	if each := (heap() - before) / models; each > 1024 {
		t.Errorf("a model takes %d bytes, more than a kilobyte", each)
	} else {
		t.Logf("a model takes %d bytes", each)
	}
	runtime.KeepAlive(c)
}
