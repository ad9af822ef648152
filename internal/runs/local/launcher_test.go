//go:build linux

package local

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/config"
	"tidemill.dev/internal/runs/scheduler"
)

// An attempt is launched once, even if Launch is called several times. Has returns true until the
// attempt has reported its end.
func TestLaunch(t *testing.T) {
	d := newDoor(t)
	l := d.open(t, t.TempDir(), nil)
	marks := t.TempDir()
	a := d.plan(t, "run1-1", fmt.Sprintf(`touch %s/$$; echo at work; while ! test -e %s/go; do sleep 0.02; done`, marks, marks), nil)
	launch(t, l, a, a)
	d.waitForLog(t, a.Name, "at work")
	launch(t, l, a)
	if has, err := l.Has(t.Context(), a.Name); !has || err != nil {
		t.Errorf("it has the attempt: %t, %v", has, err)
	}
	if err := os.WriteFile(filepath.Join(marks, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w := d.word(t, a.Name)
	node, _ := os.Hostname()
	if w.Outcome != tidemill.OutcomeSucceeded || w.Where.Node != node || !strings.HasPrefix(w.Where.Image, "sha256:") {
		t.Errorf("it ended so: %+v", w)
	}
	l.all.Wait()
	if has, _ := l.Has(t.Context(), a.Name); has {
		t.Error("it still has an attempt that has ended")
	}
	if all, _ := filepath.Glob(marks + "/[0-9]*"); len(all) != 1 {
		t.Errorf("it ran %d times", len(all))
	}
	if l.Slots(config.Pool{}) != runtime.NumCPU() || l.Slots(config.Pool{Slots: 3}) != 3 {
		t.Error("other slots")
	}
}

// Stop ends an attempt, which then reports no end.
func TestStop(t *testing.T) {
	d := newDoor(t)
	l := d.open(t, t.TempDir(), nil)
	mark := filepath.Join(t.TempDir(), "pid")
	a := d.plan(t, "run1-1", `trap "" TERM; echo $$ > `+mark+`; echo at work; sleep 600; sleep 600`, nil)
	launch(t, l, a)
	d.waitForLog(t, a.Name, "at work")
	for range 2 {
		if err := l.Stop(t.Context(), a.Name); err != nil {
			t.Fatal(err)
		}
	}
	dead(t, pid(t, mark))
	if _, said := d.words[a.Name]; said {
		t.Error("it had a last word")
	}
}

// Close lets the commands save and exit, and ends processes that have left their groups. After
// Close, Launch fails.
func TestClose(t *testing.T) {
	d := newDoor(t)
	dir := t.TempDir()
	l := d.open(t, dir, nil)
	marks := t.TempDir()
	patient := d.plan(t, "run1-1", `trap 'exit 0' TERM; setsid sleep 600 >/dev/null 2>&1 & echo $! > `+marks+`/apart; echo at work; sleep 600 & wait`, nil)
	stubborn := d.plan(t, "run2-1", `trap "" TERM; echo $$ > `+marks+`/stubborn; echo at work; sleep 600; sleep 600`, func(p *tidemill.Plan) { p.Grace = 200 * time.Millisecond })
	launch(t, l, patient, stubborn)
	d.waitForLog(t, patient.Name, "at work")
	d.waitForLog(t, stubborn.Name, "at work")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := l.Close(ctx); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{patient.Name, stubborn.Name} {
		if w := d.words[name]; w.Outcome != tidemill.OutcomeLeft || w.Reason != "the machine stopped" {
			t.Errorf("%s ended so: %+v", name, w)
		}
	}
	dead(t, pid(t, marks+"/apart"))
	dead(t, pid(t, marks+"/stubborn"))
	if err := l.Launch(t.Context(), patient); err == nil {
		t.Error("it launches still")
	}
	if _, err := os.Stat(filepath.Join(dir, workName)); !os.IsNotExist(err) {
		t.Errorf("its work folder is left: %v", err)
	}
}

// A process that has left its group is ended soon after its attempt. Processes of running attempts
// are not ended.
func TestWhatHasLeftItsGroup(t *testing.T) {
	d := newDoor(t)
	l := d.open(t, t.TempDir(), nil)
	marks := t.TempDir()
	script := `setsid sleep 600 >/dev/null 2>&1 & echo $! > ` + marks + `/`
	launch(t, l, d.plan(t, "run1-1", script+"a; true", nil), d.plan(t, "run2-1", script+"b; echo at work; while ! test -e "+marks+"/go; do sleep 0.02; done", nil))
	d.word(t, "run1-1")
	d.waitForLog(t, "run2-1", "at work")
	dead(t, pid(t, marks+"/a"))
	if !isAlive(pid(t, marks+"/b")) {
		t.Error("a process of an attempt at work was ended")
	}
	if err := os.WriteFile(marks+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d.word(t, "run2-1")
	dead(t, pid(t, marks+"/b"))
}

// stubbornCommand is a command whose processes are hard to end.
func stubbornCommand(marks string) string {
	return `trap "" TERM HUP
		sleep 600 & echo $! > ` + marks + `/child
		setsid sh -c 'trap "" TERM; sleep 600 & echo $! > ` + marks + `/grandchild; wait' >/dev/null 2>&1 &
		while ! test -s ` + marks + `/grandchild; do sleep 0.02; done
		echo $$ > ` + marks + `/self; echo at work; sleep 600; sleep 600`
}

var broodMarks = []string{"/self", "/child", "/grandchild"}

// If a launcher is killed, its guard ends the remaining processes, even if the guard got SIGTERM
// before.
func TestKilledLauncher(t *testing.T) {
	d := newDoor(t)
	marks := t.TempDir()
	a := d.plan(t, "run1-1", stubbornCommand(marks), nil)
	launcher, guard := d.startOther(t, t.TempDir(), a)
	d.waitForLog(t, a.Name, "at work")
	left := []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP}
	ignores(t, guard, left...)
	for _, sig := range left {
		if err := syscall.Kill(guard, sig); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range broodMarks {
		if !isAlive(pid(t, marks+m)) {
			t.Fatalf("%s is not there before", m)
		}
	}
	if err := launcher.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, m := range broodMarks {
		dead(t, pid(t, marks+m))
	}
	dead(t, guard)
}

// If the guard is killed together with its launcher, the next launcher of the folder ends the
// remaining processes.
func TestKilledLauncherAndGuard(t *testing.T) {
	d := newDoor(t)
	marks, dir := t.TempDir(), t.TempDir()
	a := d.plan(t, "run1-1", stubbornCommand(marks), nil)
	launcher, guard := d.startOther(t, dir, a)
	d.waitForLog(t, a.Name, "at work")
	if err := syscall.Kill(guard, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	dead(t, guard)
	if err := launcher.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	dead(t, pid(t, marks+"/self")) // the kernel has killed it
	if !isAlive(pid(t, marks+"/grandchild")) {
		t.Error("nothing is left: that tells nothing of the next launcher")
	}
	stranger := filepath.Join(dir, "work", "run1-1")
	if _, err := os.Stat(stranger); err != nil {
		t.Errorf("its folder is not left: %v", err)
	}
	l := d.open(t, dir, nil)
	for _, m := range broodMarks {
		dead(t, pid(t, marks+m))
	}
	if _, err := os.Stat(stranger); !os.IsNotExist(err) {
		t.Errorf("its folder is left: %v", err)
	}
	again := d.plan(t, "run1-2", "exit 0", nil)
	launch(t, l, again)
	if w := d.word(t, again.Name); w.Outcome != tidemill.OutcomeSucceeded {
		t.Errorf("the next ended so: %+v", w)
	}
}

func TestSecrets(t *testing.T) {
	d := newDoor(t)
	dir := t.TempDir()
	l := d.open(t, dir, nil)
	if err := os.MkdirAll(filepath.Join(dir, "secrets", "hub"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "secrets", "hub", "token"), []byte("hf_1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct{ ref, reason string }{
		{"hub/token", ""},
		{"hub/none", "secret hub/none for TOKEN: no such file or directory: write it into " + filepath.Join(dir, "secrets", "hub", "none")},
		{"../launcher.json", "secret ../launcher.json for TOKEN: path escapes"},
	} {
		a := d.plan(t, fmt.Sprintf("run%d-1", i), `test "$TOKEN" = hf_1`, func(p *tidemill.Plan) { p.Secrets = map[string]string{"TOKEN": c.ref} })
		launch(t, l, a)
		w := d.word(t, a.Name)
		if (w.Outcome == tidemill.OutcomeSucceeded) != (c.reason == "") || !strings.HasPrefix(w.Reason, c.reason) || w.Permanent != (c.reason != "") {
			t.Errorf("%s: it ended so: %+v", c.ref, w)
		}
	}
}

// onPath puts a program first in PATH.
func onPath(t *testing.T, name, text string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestGPUs(t *testing.T) {
	onPath(t, "nvidia-smi", "#!/bin/sh\nprintf '0, NVIDIA H200, 570.1\\n1, NVIDIA H200, 570.1\\n'\n")
	d := newDoor(t)
	l := d.open(t, t.TempDir(), nil)
	if l.GPUs() != 2 {
		t.Fatalf("it has %d GPUs", l.GPUs())
	}
	seen := make(chan string, 10)
	l.o.Seen = func(_ context.Context, a scheduler.Attempt, d tidemill.RunSeen) error {
		seen <- a.Name + " " + d.Pending
		return nil
	}
	marks := t.TempDir()
	gpus := func(n int) func(*tidemill.Plan) { return func(p *tidemill.Plan) { p.GPUs = n } }
	both := d.plan(t, "both-1", `echo "at work on $CUDA_VISIBLE_DEVICES"; while ! test -e `+marks+`/go; do sleep 0.02; done`, gpus(2))
	one := d.plan(t, "one-1", `echo "on $CUDA_VISIBLE_DEVICES"`, gpus(1))
	none := d.plan(t, "none-1", `test "${CUDA_VISIBLE_DEVICES-unset}" = ""`, nil)
	many := d.plan(t, "many-1", `exit 0`, gpus(3))
	launch(t, l, both)
	d.waitForLog(t, both.Name, "at work on 0,1")
	launch(t, l, one, none, many)
	if w := d.word(t, none.Name); w.Outcome != tidemill.OutcomeSucceeded {
		t.Errorf("a run without GPUs ended so: %+v", w)
	}
	if w := d.word(t, many.Name); !w.Permanent || !strings.Contains(w.Reason, "wants 3 GPUs and this machine has 2") {
		t.Errorf("a run that wants too many ended so: %+v", w)
	}
	d.until(t, "the one that waits beats", func() bool { return d.beats[one.Name] > 1 })
	if _, said := d.words[one.Name]; said {
		t.Error("it did not wait for a GPU")
	}
	if got := <-seen; got != "one-1 it waits for 1 of this machine's 2 GPUs, of which 0 are free" {
		t.Errorf("seen is %q", got)
	}
	if err := os.WriteFile(marks+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w := d.word(t, one.Name)
	if got := <-seen; got != "one-1 " {
		t.Errorf("seen is %q, although it runs", got)
	}
	if w.Where.Card != "NVIDIA H200" || !slices.Equal(w.Where.GPUs, []int{0}) || w.Result.GPUSeconds <= 0 || !strings.Contains(w.Result.LastLines, "on 0") {
		t.Errorf("it ended so: %+v", w)
	}
}

// If the driver of the GPUs answers later than this process has started, runs get the GPUs from then on.
func TestGPUsThatCannotBeAsked(t *testing.T) {
	ready := filepath.Join(t.TempDir(), "ready")
	onPath(t, "nvidia-smi", "#!/bin/sh\ntest -e "+ready+" || { echo 'NVIDIA-SMI has failed'; exit 9; }\necho '0, NVIDIA H200, 570.1'\n")
	d := newDoor(t)
	l := d.open(t, t.TempDir(), nil)
	if l.GPUs() != 0 {
		t.Errorf("it has %d GPUs", l.GPUs())
	}
	gpu := func(p *tidemill.Plan) { p.GPUs = 1 }
	launch(t, l, d.plan(t, "early-1", "exit 0", gpu))
	if w := d.word(t, "early-1"); w.Permanent || !strings.Contains(w.Reason, "NVIDIA-SMI has failed") {
		t.Errorf("it ended so: %+v", w)
	}
	if err := os.WriteFile(ready, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	launch(t, l, d.plan(t, "later-1", `test "$CUDA_VISIBLE_DEVICES" = 0`, gpu))
	if w := d.word(t, "later-1"); w.Outcome != tidemill.OutcomeSucceeded || l.GPUs() != 1 {
		t.Errorf("with %d GPUs it ended so: %+v", l.GPUs(), w)
	}
}

// A request for many cards is served before later requests for few.
func TestCardsInTheirOrder(t *testing.T) {
	c := newCards([]card{{index: 0}, {index: 1}, {index: 2}})
	first, err := c.acquire(t.Context(), 2, func(string) { t.Error("it waits for free cards") })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	many, few := &cardRequest{3, make(chan []card, 1)}, &cardRequest{1, make(chan []card, 1)}
	c.queue = append(c.queue, many, few)
	c.serve()
	if len(few.got) > 0 {
		t.Error("the later was served before the earlier")
	}
	cancel()
	if _, err := c.acquire(ctx, 1, func(string) {}); err == nil {
		t.Error("who does not wait any more was served")
	}
	c.leave(many)
	if got := <-few.got; len(got) != 1 || got[0].index != 2 {
		t.Errorf("got %v", got)
	}
	c.giveBack(first)
	if got, err := c.acquire(t.Context(), 2, func(string) { t.Error("it waits for free cards") }); err != nil || got[0].index != 0 || got[1].index != 1 {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestImages(t *testing.T) {
	d := newDoor(t)
	image := func(p *tidemill.Plan) { p.Image, p.Dir = "trainer:3", "" }
	run := func(l *Launcher, name string) lastReport {
		launch(t, l, d.plan(t, name, "exit 0", image))
		return d.word(t, name)
	}
	t.Run("with no engine", func(t *testing.T) {
		path := t.TempDir()
		for _, name := range []string{"env", "sh"} {
			if err := os.Symlink(filepath.Join("/usr/bin", name), filepath.Join(path, name)); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv("PATH", path)
		if w := run(d.open(t, t.TempDir(), nil), "none-1"); !w.Permanent || !strings.Contains(w.Reason, "neither is here") {
			t.Errorf("it ended so: %+v", w)
		}
		onPath(t, "docker", "#!/bin/sh\nexit 1\n")
		if w := run(d.open(t, t.TempDir(), nil), "silent-1"); w.Permanent || !strings.Contains(w.Reason, "docker is here and does not answer") {
			t.Errorf("it ended so: %+v", w)
		}
	})
	t.Run("with one", func(t *testing.T) {
		asked := filepath.Join(t.TempDir(), "asked")
		onPath(t, "docker", "#!/bin/sh\necho \"$@\" >> "+asked+"\nif test $1 = ps; then echo c1 c2; fi\n")
		l := d.open(t, t.TempDir(), nil)
		if w := run(l, "docker-1"); w.Outcome != tidemill.OutcomeSucceeded {
			t.Errorf("it ended so: %+v", w)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(asked)
		if err != nil || !strings.Contains(string(text), "--label tidemill.cookie="+l.cookie) || !strings.Contains(string(text), "\nkill c1 c2\n") {
			t.Errorf("the engine was asked (%v):\n%s", err, text)
		}
	})
}

func TestFolderDigest(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string, mode os.FileMode) {
		t.Helper()
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	put("train.py", "one", 0o644)
	d := &folderDigest{}
	first := d.compute(dir)
	for what, c := range map[string]struct {
		name, text string
		same       bool
	}{
		"what is hidden":    {".git/x", "y", true},
		"what Python keeps": {"__pycache__/x", "y", true},
	} {
		put(c.name, c.text, 0o644)
		if got := d.compute(dir); (got == first) != c.same {
			t.Errorf("%s: %s", what, got)
		}
	}
	put("lib/model.py", "two", 0o644)
	second := d.compute(dir)
	put("train.py", "oNe", 0o644)
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(dir, "train.py"), past, past); err != nil {
		t.Fatal(err)
	}
	third := d.compute(dir)
	if first == "" || first == second || second == third || (&folderDigest{}).compute(dir) != third {
		t.Errorf("digests: %s, %s, %s", first, second, third)
	}
	if got := (&folderDigest{}).compute(dir + "/none"); got != "" {
		t.Errorf("of nothing: %s", got)
	}
}

// The guard obeys known lines, and ignores other lines.
func TestCharge(t *testing.T) {
	c := newCleanup()
	for _, line := range []string{"cookie abc", "engine /usr/bin/my docker", "+12", "+13", "-12", "+1", "+0", "+x", "", "nonsense"} {
		c.hear(line)
	}
	if c.Cookie != "abc" || c.Engine != "/usr/bin/my docker" || len(c.groups) != 1 || !c.groups[13] {
		t.Errorf("it has heard %+v", c)
	}
}
