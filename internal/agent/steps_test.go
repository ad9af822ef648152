package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tidemill.dev/internal/api"
)

func TestSteps(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, stepsName)
	s := steps{folder: dir}
	put := func(flag int, text string) {
		t.Helper()
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|flag, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range []struct {
		flag     int
		text     string
		want     string
		newest   bool
		atTheEnd bool
	}{
		{os.O_APPEND, `{"step": 1, "total": 10, "loss": 2.5}` + "\n", `{"step":1,"total":10,"metrics":{"loss":2.5}}`, true, false},
		{os.O_APPEND, "", "", false, false},
		{os.O_APPEND, `{"step": 2, "los`, "", false, false},
		{os.O_APPEND, `s": 2}` + "\n" + `{"step": 2, "eval": {"f1": 0.5}}` + "\n", `{"step":2,"metrics":{"eval.f1":0.5,"loss":2}}`, true, false},
		{os.O_APPEND, "garbage\n[1]\n\n\x00\xff\n{\"a\":}\n", "", false, false},
		{os.O_APPEND, `{"step": 3, "loss": NaN, "grad": -Infinity, "note": "NaN", "lr": 1}` + "\n", `{"step":3,"metrics":{"lr":1}}`, true, false},
		{os.O_APPEND, `{"loss": 1e999}` + "\n" + `{"loss": 7}` + "\n", `{"step":11,"metrics":{"loss":7}}`, true, false},
		{os.O_TRUNC, `{"step": 1, "loss": 9}` + "\n", `{"step":1,"metrics":{"loss":9}}`, true, false},
		{os.O_APPEND, strings.Repeat("x", maxStepLine+2), "", false, false},
		{os.O_APPEND, "more of it\n" + `{"step": 5}` + "\n", `{"step":5}`, true, false},
		{os.O_APPEND, strings.Repeat(`{"step": 6}`+"\n", 600_000) + `{"step": 7}` + "\n", `{"step":7}`, true, false},
		{os.O_APPEND, `{"step": 8}`, `{"step":8}`, true, true},
	} {
		put(c.flag, c.text)
		read := s.read
		if c.atTheEnd {
			read = s.rest
		}
		got, newest := read()
		if newest != c.newest {
			t.Fatalf("%d: news: %t", i, newest)
		}
		if text := strings.Replace(asJSON(got), `"time":"0001-01-01T00:00:00Z","attempt":0,`, "", 1); newest && text != c.want {
			t.Errorf("%d: %s", i, text)
		}
	}
}

// What is no file is not opened, or not waited for.
func TestStepsThatAreNoFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/dev/zero", filepath.Join(dir, stepsName)); err != nil {
		t.Fatal(err)
	}
	if _, news := (&steps{folder: dir}).read(); news {
		t.Error("a device was read")
	}
}

// A step is told within the bounds of the door, however much it measures.
func TestAStepIsBounded(t *testing.T) {
	var step api.Progress
	line := `{"step": 1`
	for i := range 5000 {
		line += `, "` + strings.Repeat("m", 30) + time.Duration(i).String() + `": 1.2345678901234567`
	}
	next, ok := readStep([]byte(line+"}"), 1)
	if !ok {
		t.Fatal("it was not read")
	}
	merge(&step, next)
	text, err := stepLine(step, 1, time.Now())
	if err != nil || len(text) > api.MaxStep || len(step.Metrics) != stepMetrics {
		t.Errorf("the line has %d bytes and %d metrics (%v)", len(text), len(step.Metrics), err)
	}
}

// However fast a command writes, progress is told seldom, and its last value is
// told.
func TestProgressIsToldSeldom(t *testing.T) {
	g := newGateway(t)
	g.sh(`i=0; while test $i -lt 1500; do i=$((i+1)); echo "{\"step\": $i, \"total\": 1500}"; if test $((i % 500)) = 0; then sleep 0.3; fi; done > $TIDEMILL_OUT/metrics.jsonl
		printf '{"step": 1501}' >> $TIDEMILL_OUT/metrics.jsonl`)
	f := g.run(g.options())
	seconds := f.Result.Stages[1].Seconds
	if n := float64(len(g.progress)); n > 2*seconds+2 {
		t.Errorf("it was told %v times in %v s", n, seconds)
	}
	if last := g.progress[len(g.progress)-1]; last.Step != 1501 || last.Total != 1500 && len(g.progress) == 1 || last.Attempt != 1 || last.Time.IsZero() {
		t.Errorf("the last is %+v", last)
	}
}
