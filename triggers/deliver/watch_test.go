package deliver

import (
	"testing"
	"time"
)

func TestAClockThatIsSet(t *testing.T) {
	var w watch
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	start := w.read(at, 0, 0)
	for _, step := range []struct {
		what          string
		passed, moved time.Duration
		want          time.Duration // since the start
	}{
		{"a second passes", time.Second, time.Second, time.Second},
		{"it is set back by three hours", time.Second, time.Second - 3*time.Hour, 2 * time.Second},
		{"an hour passes", time.Hour, time.Hour, time.Hour + 2*time.Second},
		{"it is set right", time.Second, time.Second + 3*time.Hour, time.Hour + 3*time.Second},
		{"the machine sleeps", 0, 8 * time.Hour, 9*time.Hour + 3*time.Second},
		{"it is set back by an hour", 0, -time.Hour, 9*time.Hour + 3*time.Second},
		{"and sleeps for two", 0, 2 * time.Hour, 10*time.Hour + 3*time.Second},
	} {
		at = at.Add(step.moved)
		if got := time.Duration(w.read(at, step.passed, step.moved)-start) * time.Millisecond; got != step.want {
			t.Errorf("%s: %s since the start, want %s", step.what, got, step.want)
		}
	}
	if a, b := w.now(), w.now(); b < a {
		t.Errorf("from %d to %d", a, b)
	}
}
