package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
)

// The upload may take as long as the deadline, even if that is more than the time to report. No
// attempt takes longer than Longest.
func TestWhatWasMadeHasTimeToArrive(t *testing.T) {
	const deadline, grace = 24 * time.Hour, time.Minute
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		e := newEnds(t.Context())
		defer e.close()
		time.Sleep(deadline + grace) // the command
		e.allowUpload(deadline)
		time.Sleep(deadline)
		synctest.Wait()
		if e.save.Err() != nil || e.last.Err() != nil {
			t.Error("what was made cannot be brought away any more")
		}
		<-e.save.Done()
		if e.last.Err() != nil {
			t.Error("and nobody can be told so")
		}
		<-e.last.Done()
		if took := time.Since(begun); took != Longest(deadline, grace) {
			t.Errorf("it may take %v, and is given %v", took, Longest(deadline, grace))
		}
	})
}

// The agent tries to report the end for an hour, whatever the deadline was.
func TestTheLastWordHasItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t.Context())
		defer e.close()
		e.allowUpload(24 * time.Hour)
		e.allowUpload(0) // no output to upload
		begun := time.Now()
		<-e.last.Done()
		if took := time.Since(begun); took != lastWithin {
			t.Errorf("it has %v", took)
		}
	})
}

// Every attempt ends, whatever its command does, and reports a clear reason.
func TestBadRuns(t *testing.T) {
	cases := map[string]struct {
		script    string
		plan      func(*tidemill.Plan)
		reason    string
		exit      int
		signal    string
		permanent bool
	}{
		"an exit status":        {script: "exit 3", reason: "exit status 3", exit: 3},
		"an error in words":     {script: `echo step 3; echo 'Traceback:' >&2; echo 'ValueError: no column "age"' >&2; echo buffered; exit 1`, reason: `exit status 1: ValueError: no column "age"`, exit: 1},
		"an error on stdout":    {script: `echo no luck; echo; echo ' '; exit 1`, reason: "exit status 1: no luck", exit: 1},
		"an error in colours":   {script: `printf '10%%\r20%%\r\033[1;31mit is\tbad\033[0m\r\n\n' >&2; exit 1`, reason: "exit status 1: it is bad", exit: 1},
		"an error without end":  {script: `printf 'out of %s' luck >&2; exit 1`, reason: "exit status 1: out of luck", exit: 1},
		"a long error":          {script: `printf '%0300d\n' 0 >&2; exit 1`, reason: "exit status 1: " + strings.Repeat("0", shownLine-1) + "…", exit: 1},
		"a signal":              {script: "kill -KILL $$", reason: "killed by SIGKILL (out of memory?)", exit: -1, signal: "SIGKILL"},
		"a fault":               {script: "kill -SEGV $$", reason: "killed by SIGSEGV", exit: -1, signal: "SIGSEGV"},
		"no such command":       {plan: func(p *tidemill.Plan) { p.Command = []string{"no-such-trainer"} }, reason: "command not found: no-such-trainer", exit: -1, permanent: true},
		"no such file":          {plan: func(p *tidemill.Plan) { p.Command = []string{"./train.sh"} }, reason: "there is no such file", exit: -1, permanent: true},
		"no folder":             {plan: func(p *tidemill.Plan) { p.Dir += "/none" }, script: "exit 0", reason: "is not there", exit: -1, permanent: true},
		"no command":            {plan: func(p *tidemill.Plan) { p.Command = nil }, reason: "names no command", exit: -1, permanent: true},
		"not executable":        {plan: file("train.py", "x", 0o644), reason: "chmod +x", exit: -1, permanent: true},
		"no program in it":      {plan: file("train.py", "\x7fnothing", 0o755), reason: "its first line names no program", exit: -1, permanent: true},
		"an unknown first line": {plan: file("train.py", "#!/no/such/python\n", 0o755), reason: "first line names a program that does not exist", exit: -1, permanent: true},
		"a long variable": {plan: func(p *tidemill.Plan) { p.Env = map[string]string{"LONG": strings.Repeat("x", 200_000)} }, script: "exit 0",
			reason: "the variable LONG has", exit: -1, permanent: true},
		"no model": {script: "touch $TIDEMILL_OUT/model.pt", plan: model, reason: `wrote no model.onnx into TIDEMILL_OUT, where there is "model.pt"`, permanent: true},
		"nothing":  {script: "true", plan: model, reason: "where there is nothing", permanent: true},
		"NaN": {script: `printf '{\n "a": "NaN",\n "loss": NaN}' > $TIDEMILL_OUT/metrics.json`,
			reason: "metrics.json line 3: NaN is not JSON", permanent: true},
		"a beyond":              {script: `printf '{"a": 1e999}' > $TIDEMILL_OUT/metrics.json`, reason: "is too large for a number", permanent: true},
		"no JSON":               {script: `printf 'accuracy=1\n' > $TIDEMILL_OUT/metrics.json`, reason: "metrics.json line 1: that is not JSON", permanent: true},
		"no object":             {script: `printf '[1]' > $TIDEMILL_OUT/metrics.json`, reason: "it is not an object", permanent: true},
		"empty metrics":         {script: `: > $TIDEMILL_OUT/metrics.json`, reason: "it is empty", permanent: true},
		"a pipe of metrics":     {script: `mkfifo $TIDEMILL_OUT/metrics.json`, reason: "it is not a regular file", permanent: true},
		"metrics without end":   {script: `ln -s /dev/zero $TIDEMILL_OUT/metrics.json`, reason: "metrics.json", permanent: true},
		"large metrics":         {script: `head -c 5000000 /dev/zero > $TIDEMILL_OUT/metrics.json`, reason: "larger than 4 MiB", permanent: true},
		"a link out":            {script: `ln -s /etc/passwd $TIDEMILL_OUT/data`, reason: "data is a link to a place outside the folder", permanent: true},
		"a link for the folder": {script: `rm -r $TIDEMILL_OUT; ln -s /etc $TIDEMILL_OUT`, plan: func(p *tidemill.Plan) { p.MaxOutput = 10 }, reason: "something else in the place of the folder out", permanent: true},
		"no folder left":        {script: `rm -r $TIDEMILL_OUT`, reason: "the command has removed the folder out", permanent: true},
		"a pipe":                {script: `mkfifo $TIDEMILL_OUT/pipe`, reason: "pipe is a pipe", permanent: true},
		"too much":              {script: `head -c 2000000 /dev/zero > $TIDEMILL_OUT/a`, plan: func(p *tidemill.Plan) { p.MaxOutput = 1 << 20 }, reason: "more than the 1048576 bytes", permanent: true},
		"too deep":              {script: `cd $TIDEMILL_OUT; d=$(printf %0200d); for i in $(seq 30); do mkdir $d; cd ./$d; done; echo > f`, reason: "0…: file name too long", permanent: true},
	}
	for what, c := range cases {
		t.Run(what, func(t *testing.T) {
			g := newGateway(t)
			g.sh(c.script)
			if c.plan != nil {
				c.plan(&g.order.Plan)
			}
			t.Parallel() // after the files are written: a fork of another test during a write would keep the program open, and it could not start
			f := g.run(g.options())
			if f.Outcome != tidemill.OutcomeFailed || !strings.Contains(f.Reason, c.reason) || f.Permanent != c.permanent {
				t.Errorf("it ended %s, for ever %t: %s", f.Outcome, f.Permanent, f.Reason)
			}
			if strings.HasPrefix(c.reason, "exit status 1: ") && f.Reason != c.reason {
				t.Errorf("the reason has more than %q: %q", c.reason, f.Reason)
			}
			if f.Result.Exit != c.exit || f.Result.Signal != c.signal || len(f.Files) > 0 {
				t.Errorf("its exit is %d, its signal %q, its files %v", f.Result.Exit, f.Result.Signal, f.Files)
			}
		})
	}
}

func model(p *tidemill.Plan) { p.Model = "m" }

func file(name, text string, mode os.FileMode) func(*tidemill.Plan) {
	return func(p *tidemill.Plan) {
		if err := os.WriteFile(filepath.Join(p.Dir, name), []byte(text), mode); err != nil {
			p.Dir = err.Error()
		}
		p.Command = []string{"./" + name}
	}
}

// A report that the gateway refuses is replaced once, and then not sent again.
func TestRefusedLastWord(t *testing.T) {
	g := newGateway(t)
	g.sh("echo hello")
	g.fault = func(w http.ResponseWriter, r *http.Request, route string) bool {
		if route != "/finish" || count(g, "/finish") > 1 {
			return false
		}
		problem(w, http.StatusRequestEntityTooLarge, api.TooLarge)
		return true
	}
	f := g.run(g.options())
	if f.Outcome != tidemill.OutcomeFailed || !f.Permanent || !strings.Contains(f.Reason, "does not take how it ended: the test says too-large") {
		t.Errorf("it ended so: %+v", f)
	}
	refuses := func(w http.ResponseWriter, r *http.Request, route string) bool {
		if route == "/finish" {
			problem(w, http.StatusBadRequest, api.InvalidRequest)
		}
		return route == "/finish"
	}
	g.set(func() { g.fault = refuses }) // a late beat may still be answered, so set needs the lock
	if err := Run(context.Background(), g.options()); err == nil || !strings.Contains(err.Error(), "report the end of attempt run1-1") {
		t.Errorf("nobody took its last word, and its error is %v", err)
	}
}

// A store that fails over may lack the output that it has taken. The agent uploads it again.
func TestOutputThatTheStoreLoses(t *testing.T) {
	g := newGateway(t)
	g.sh("echo hello > $TIDEMILL_OUT/a")
	g.fault = func(w http.ResponseWriter, r *http.Request, route string) bool {
		if route != "/finish" || count(g, "/finish") > 2 {
			return false
		}
		g.set(func() { clear(g.objects) })
		problem(w, http.StatusNotFound, api.UnknownData)
		return true
	}
	if f := g.run(g.options()); f.Outcome != tidemill.OutcomeSucceeded || len(f.Files) != 1 {
		t.Errorf("it ended so: %+v", f)
	}
}

// A store that fails over may hide the files of an input. The attempt waits for them.
func TestInputThatTheStoreHides(t *testing.T) {
	for _, hidden := range []string{"/files", "/object"} {
		g := newGateway(t)
		g.sh("cat $TIDEMILL_IN/i/a")
		g.order.Plan.Inputs = []tidemill.Input{{Name: "i", Tree: g.addTree(map[string]string{"a": "seen later"}).Tree}}
		g.fault = func(w http.ResponseWriter, _ *http.Request, route string) bool {
			if route != hidden || count(g, route) > 2 {
				return false
			}
			problem(w, http.StatusNotFound, api.UnknownData)
			return true
		}
		f := g.run(g.options())
		if log := strings.Join(g.log(), "\n"); f.Outcome != tidemill.OutcomeSucceeded || !strings.Contains(log, "seen later") || strings.Count(log, "may hide it") != 1 {
			t.Errorf("without %s it ended so: %+v\n%s", hidden, f, log)
		}
	}
}

func count(g *gateway, route string) (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.asked {
		if r == route {
			n++
		}
	}
	return n
}

func TestEquipmentThatIsNotThere(t *testing.T) {
	for _, c := range []struct {
		err       error
		permanent bool
	}{{errors.New("no such secret"), true}, {fmt.Errorf("docker sleeps: %w", ErrPassing), false}} {
		g := newGateway(t)
		g.sh("exit 0")
		o := g.options()
		o.Equip = func(context.Context, tidemill.Plan) (Equipment, error) { return Equipment{}, c.err }
		f := g.run(o)
		if f.Outcome != tidemill.OutcomeFailed || f.Permanent != c.permanent || f.Reason != c.err.Error() || f.Result.Exit != -1 {
			t.Errorf("it ended so: %+v", f)
		}
		if !strings.Contains(f.Result.LastLines, c.err.Error()) {
			t.Errorf("its log does not say why: %q", f.Result.LastLines)
		}
	}
}

// The response to any request may say that the attempt is superseded. Then no report follows.
func TestSupersededAtEveryStep(t *testing.T) {
	for _, at := range []string{"", "/events", "/files", "/object", "/beat", "/log", "/progress", "/objects/missing", "/objects", "/checkpoint", "/finish"} {
		t.Run("at "+at, func(t *testing.T) {
			t.Parallel()
			g := newGateway(t)
			tree := g.addTree(map[string]string{"a": "b"})
			g.order.Causes = 2
			g.order.Plan.Inputs = []tidemill.Input{{Name: "i", Tree: tree.Tree}}
			script := `echo '{"step":1}' > $TIDEMILL_OUT/metrics.jsonl; echo hello; echo state > $TIDEMILL_CHECKPOINT/s; `
			switch at {
			case "/beat", "/progress", "/log":
				script += `trap "" TERM; sleep 600`
			case "/checkpoint":
				script += `exit 1`
			}
			g.sh(script)
			g.fault = func(w http.ResponseWriter, r *http.Request, route string) bool {
				if route == at {
					problem(w, http.StatusConflict, api.Superseded)
				}
				return route == at
			}
			o := g.options()
			if err := g.wait(g.begin(t.Context(), o)); !errors.Is(err, ErrSuperseded) {
				t.Errorf("its error is %v", err)
			}
			if len(g.finished) > 0 || count(g, at) != 1 {
				t.Errorf("it said %v, and asked %q", g.finished, g.asked)
			}
		})
	}
}
