package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
)

func TestTailTellsNothingFromNoMatch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	startUp(t, dir)
	ok(t, "publish", "a", "--data", dir)
	for args, says := range map[string]string{
		"dead-letters --from beginning":            "There are no events on dead-letters.",
		"dead-letters --from -1h":                  "There are no events on dead-letters from -1h on.",
		"events --from beginning -w type=order":    "No event on events matches --where. In it order is the name of an attribute; a text is written in quotes: 'order'.",
		"events --from beginning -w type='a'":      "",
		"events --from -1h -w type=order":          "No event on events from -1h on matches --where. In it order is the name of an attribute; a text is written in quotes: 'order'.",
		"dead-letters --from beginning -o json":    "",
		"events --from beginning --where type='a'": "",
	} {
		o := call(t, "", append(append([]string{"tail"}, strings.Fields(args)...), "--no-follow", "--data", dir)...)
		if o.code != 0 || strings.TrimSpace(o.err) != says {
			t.Errorf("tail %s: exit %d, %q; want %q", args, o.code, o.err, says)
		}
	}
}

// Ctrl-C ends a tail that has many events in memory.
func TestTailEndsWhenInterrupted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	startUp(t, dir)
	if o := call(t, "", "tail", "nosuch", "--data", dir); o.code == 0 || !strings.HasPrefix(o.err, "tidemill: tail stream nosuch: ") {
		t.Errorf("tail of no stream: %+v", o)
	}
	var lines strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&lines, "{\"specversion\":\"1.0\",\"id\":\"%d\",\"source\":\"/x\",\"type\":\"a\"}\n", i)
	}
	if o := call(t, lines.String(), "publish", "--file", "-", "--data", dir); o.code != 0 {
		t.Fatal(o.err)
	}
	for args, fails := range map[string]bool{"": false, " --no-follow": true} {
		ctx, interrupt := context.WithCancel(t.Context())
		out := &interrupting{by: interrupt}
		err := run(ctx, strings.Fields("tail events --from beginning --data "+dir+args), strings.NewReader(""), out, io.Discard)
		if out.writes != 1 || (err != nil) != fails {
			t.Errorf("tail%s: %d lines after Ctrl-C at the first, %v", args, out.writes, err)
		}
	}
}

// interrupting is an output that interrupts the command at its first write.
type interrupting struct {
	by     func()
	writes int
}

func (i *interrupting) Write(p []byte) (int, error) {
	i.writes++
	i.by()
	return len(p), nil
}
