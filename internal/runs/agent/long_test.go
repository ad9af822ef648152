//go:build slow

package agent

import (
	"strings"
	"testing"

	"tidemill.dev"
)

// A log that is too long is cut, but its true end is reported.
func TestALogThatIsTooLong(t *testing.T) {
	g := newGateway(t)
	g.order.Plan.MaxLog = 1 << 20
	g.sh(`yes some line | head -c 100000000; echo the end`)
	f := g.run(g.options())
	if f.Outcome != tidemill.OutcomeSucceeded || !f.Result.Cut || f.Result.LogBytes > 1<<20+4096 || f.Result.LogBytes < 1<<20-4096 {
		t.Errorf("it ended so: %+v", f)
	}
	log := g.log()
	if len(log) < 3 || !strings.Contains(log[len(log)-2], "has reached its bound of 1048576 bytes") || !strings.Contains(log[len(log)-1], "bytes were not kept") {
		t.Errorf("the log ends with %q", log[len(log)-2:])
	}
	if !strings.Contains(f.Result.LastLines, "some line\nthe end\n") || len(f.Result.LastLines) > lastBytes {
		t.Errorf("its last lines are %q", f.Result.LastLines)
	}
}
