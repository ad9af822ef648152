package show

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestLinesOfWhatIsCarried(t *testing.T) {
	t.Parallel()
	c := Carried{verb: "uploading", files: 1200, all: 5000, bytes: 1 << 20, sum: 4 << 20}
	if got, want := c.line(2*time.Second), "uploading  1,200 of 5,000 files  1.0 MiB of 4.0 MiB  512.0 KiB/s  [======                  ]  25%"; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	c = Carried{verb: "reading", files: 1, bytes: 10}
	if got, want := c.line(time.Second), "reading  1 file  10 B  10 B/s"; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	c = Carried{verb: "uploading", files: 0, all: 1}
	if got := c.line(0); !strings.HasSuffix(got, "100%") {
		t.Errorf("nothing to move is %q", got)
	}
}

// Of many failures in a short time one is printed, without terminal control characters.
func TestTroubleIsToldOnce(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	c := StartCarried(&out)
	defer c.Stop()
	for range 100 {
		c.Trouble(errors.New("it is \x1b[2J away"))
	}
	if got := out.String(); strings.Count(got, "\n") != 1 || strings.Contains(got, "\x1b[2J") || !strings.Contains(got, "away") {
		t.Errorf("%q", got)
	}
}

func TestProgressLine(t *testing.T) {
	t.Parallel()
	p := &Progress{events: 12345, bytes: 50 << 20, total: 100 << 20}
	if got, want := p.line(time.Second), "12,345 events  12,345/s  50.0 MiB of 100.0 MiB  [============            ]  50%"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	p.total = 0
	if got, want := p.line(time.Second), "12,345 events  12,345/s  50.0 MiB"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
