//go:build linux

package box

import (
	"os"
	"strings"
	"testing"
)

func TestStartIn(t *testing.T) {
	line := "64 (a (bad) name) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21\n"
	if got, err := startIn([]byte(line)); got != "4711" || err != nil {
		t.Errorf("the start is %q, %v", got, err)
	}
	for _, bad := range []string{"", "64 (name", "64 (name) S 1 2"} {
		if got, err := startIn([]byte(bad)); err == nil {
			t.Errorf("%q has the start %q", bad, got)
		}
	}
}

func TestRecordOfAnotherProcessIsNone(t *testing.T) {
	place := Place{Name: "mine", Dir: t.TempDir()}
	if _, err := place.read(); !strings.Contains(err.Error(), ErrNone.Error()) {
		t.Errorf("without a record: %v", err)
	}
	started, err := startOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	r := record{Up: 1, Init: os.Getpid(), Started: started}
	if err := place.write(r); err != nil {
		t.Fatal(err)
	}
	if got, err := place.read(); got != r || err != nil {
		t.Errorf("of a process that runs: %v, %v", got, err)
	}
	r.Started = "1"
	if err := place.write(r); err != nil {
		t.Fatal(err)
	}
	if _, err := place.read(); err == nil {
		t.Error("a process that has the number of one that ended is taken for it")
	}
}

func TestPlaceOf(t *testing.T) {
	for _, bad := range []string{"", "A", "1a", "a/b", "..", "a-", strings.Repeat("a", 41)} {
		if place, err := PlaceOf(bad); err == nil {
			t.Errorf("%q is a name, at %s", bad, place.Dir)
		}
	}
	if place, err := PlaceOf("e2e-1"); err != nil || place.Cgroup() != "tidemill-e2e-1" {
		t.Errorf("%+v, %v", place, err)
	}
}
