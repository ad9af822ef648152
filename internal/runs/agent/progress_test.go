package agent

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tidemill.dev/api"
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
			read = s.readLastLine
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

// A metrics file that is a device or a pipe is not read.
func TestStepsThatAreNoFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/dev/zero", filepath.Join(dir, stepsName)); err != nil {
		t.Fatal(err)
	}
	if _, news := (&steps{folder: dir}).read(); news {
		t.Error("a device was read")
	}
}

// The report of a step stays within the gateway's limits, however many metrics it has.
func TestAStepIsBounded(t *testing.T) {
	var step api.Progress
	line := `{"step": 1`
	for i := range 5000 {
		line += `, "` + strings.Repeat("m", 30) + time.Duration(i).String() + `": 1.2345678901234567`
	}
	next, _, ok := ReadStep([]byte(line+"}"), 1)
	if !ok {
		t.Fatal("it was not read")
	}
	merge(&step, next)
	text, err := stepLine(step, 1, time.Now())
	if err != nil || len(text) > api.MaxStep || len(step.Metrics) != stepMetrics {
		t.Errorf("the line has %d bytes and %d metrics (%v)", len(text), len(step.Metrics), err)
	}
}

// However fast a command writes, reports of progress are rare, and include the last value.
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

// However a text is split into pieces, the lines are the same, and the lines together are the text.
func TestSplit(t *testing.T) {
	text := "one\n\ntwo\r\n" + strings.Repeat("x", 3*maxText+5) + "\n" + strings.Repeat("y", maxText) + "\nend"
	want := ""
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		var s splitter
		var lines []string
		for rest := text; rest != ""; {
			n := min(1+random.IntN(maxText*2), len(rest))
			s.split([]byte(rest[:n]), func(text []byte, whole bool) {
				if len(text) > maxText {
					t.Fatalf("a text of %d bytes", len(text))
				}
				lines = append(lines, fmt.Sprintf("%t %s", whole, text))
			})
			rest = rest[n:]
		}
		lines = append(lines, "open "+string(s.unfinishedLine()))
		got := strings.Join(lines, "\n")
		if want == "" {
			want = got
		}
		if got != want {
			t.Fatalf("seed %d: other lines", seed)
		}
	}
	if !strings.HasPrefix(want, "true one\ntrue \ntrue two\r\nfalse xxx") || !strings.HasSuffix(want, "\nopen end") || strings.Count(want, "false ") != 3 {
		t.Errorf("the lines are %.80q…", want)
	}
}

func TestAppendLine(t *testing.T) {
	at := time.Date(2026, 9, 1, 12, 0, 0, 120, time.FixedZone("", 7200))
	got := string(appendLine(appendLine(nil, at, "stdout", true, []byte("a b")), at, "stderr", false, nil))
	if want := "2026-09-01T10:00:00.00000012Z stdout F a b\n2026-09-01T10:00:00.00000012Z stderr P \n"; got != want {
		t.Errorf("got %q", got)
	}
}

func TestLastWords(t *testing.T) {
	var many lastWords
	for i := range 1000 {
		many.add("stdout", fmt.Appendf(nil, "line %d", i), true)
	}
	long := lastWords{}
	long.add("stdout", []byte(strings.Repeat("é", lastBytes)), true)
	longer := lastWords{}
	for range 40 {
		longer.add("stdout", []byte(strings.Repeat("a", 1000)), true)
	}
	mixed := lastWords{}
	mixed.add("stdout", []byte("50%"), false)
	mixed.add("stderr", []byte("warning"), true)
	mixed.add("stdout", []byte("100%"), false)
	for what, c := range map[string]struct {
		is    *lastWords
		lines int
		first string
		last  string
	}{
		"none":          {&lastWords{}, 1, "", ""},
		"many":          {&many, lastLines, "line 950", "line 999"},
		"one too long":  {&long, 1, "é", "é"},
		"long ones":     {&longer, 8, "aaa", "aaa"},
		"of two mouths": {&mixed, 3, "50%", "100%"},
	} {
		got := strings.Split(c.is.String(), "\n")
		if len(got) != c.lines || !strings.HasPrefix(got[0], c.first) || !strings.HasSuffix(got[len(got)-1], c.last) || len(c.is.String()) > lastBytes+4 {
			t.Errorf("%s: %d lines, %.30q … %.30q", what, len(got), got[0], got[len(got)-1])
		}
	}
}

// A stream with blank lines only does not hide the last line of the other.
func TestTheLastLineIsNotBlank(t *testing.T) {
	l := newLogbook(t.Context(), nil, 0, time.Now)
	l.line(time.Now(), stdout, []byte("no such file: train.csv"), true)
	l.line(time.Now(), stderr, nil, true)
	if got := l.lastLine(); got != "no such file: train.csv" {
		t.Errorf("the last line is %q", got)
	}
}

func TestKeepLast(t *testing.T) {
	for text, want := range map[string]string{"": "", "\n\n": "", "a": "a\n", "a\nb\n": "b\n", "a\nb\n\n": "b\n", "a\nbc": "bc\n"} {
		for piece := 1; piece <= 3; piece++ {
			k := &keepLast{}
			for rest := text; rest != ""; {
				n := min(piece, len(rest))
				_, _ = k.Write([]byte(rest[:n])) // Write cannot fail
				rest = rest[n:]
			}
			if got := string(k.line()); got != want {
				t.Errorf("%q in pieces of %d: %q", text, piece, got)
			}
		}
	}
}

func TestVerdict(t *testing.T) {
	exit := exitedWith(3, nil).err
	for _, c := range []struct {
		early, err error
		want       string
	}{
		{nil, nil, "succeeded  false"},
		{&Stopping{}, nil, "succeeded  false"}, // the command succeeded before the machine stopped
		{&Stopping{}, exit, "left the machine stopped false"},
		{&runCancelled{"ada"}, exit, "cancelled ada false"},
		{&deadlinePassed{90 * time.Minute}, exit, "failed deadline of 90m passed false"},
		{&deadlinePassed{2 * time.Hour}, exit, "failed deadline of 2h passed false"},
		{nil, exit, "failed exit status 3 false"},
		{nil, fmt.Errorf("fetch: %w", permanent("no address")), "failed fetch: no address true"},
	} {
		o, reason, forever := verdict(c.early, c.err)
		if got := fmt.Sprint(o, " ", reason, " ", forever); got != c.want {
			t.Errorf("%v, %v: %s", c.early, c.err, got)
		}
	}
}

func TestExitOfAContainer(t *testing.T) {
	p := planOfImage()
	for code, want := range map[int]string{
		1: "1  exit status 1", 125: "125  the container of trainer:3 was not started: the log has the reason",
		127: `127  the image trainer:3 has no command that could be run as ["python" "train.py"] (exit status 127)`,
		137: "-1 SIGKILL killed by SIGKILL (out of memory?)", 143: "-1 SIGTERM killed by SIGTERM",
	} {
		e := exitedWith(code, p)
		if got := fmt.Sprint(e.exit, " ", e.signal, " ", e.err); got != want {
			t.Errorf("%d: %s", code, got)
		}
	}
}
