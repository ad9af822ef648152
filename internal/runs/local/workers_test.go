//go:build linux

package local

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tidemill.dev"
)

// addWorkers gives a plan two workers and a parameter server.
func addWorkers(p *tidemill.Plan) { p.Workers, p.Servers = 2, &tidemill.Servers{Count: 1} }

// meetScript begins a script: it writes its role, address and cards to a file, and waits until all have
// begun.
const meetScript = `me="$TIDEMILL_ROLE$RANK"; echo "$WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT, cards $CUDA_VISIBLE_DEVICES, $TF_CONFIG" > %[1]s/$me.new; echo $$ > %[1]s/$me.pid; mv %[1]s/$me.new %[1]s/$me
	for other in worker0 worker1 server; do while ! test -e %[1]s/$other; do sleep 0.02; done; done
`

// Workers and servers are processes on this machine. They connect through local ports, and each
// worker has its own cards.
func TestWorkersOnOneMachine(t *testing.T) {
	d := newDoor(t)
	l := d.open(t, t.TempDir(), nil)
	l.cards = newCards([]card{{index: 0, product: "A"}, {index: 1, product: "A"}, {index: 2, product: "A"}})
	marks := t.TempDir()
	last := `; touch %[1]s/$me.said; if test $me = worker0; then while ! test -e %[1]s/worker1.said; do sleep 0.02; done; fi` // all parts end when worker0 ends
	a := d.plan(t, "run1-1", fmt.Sprintf(meetScript+`if test $me = server; then sleep 600; fi; echo $me has all`+last, marks), func(p *tidemill.Plan) { addWorkers(p); p.GPUs = 1 })
	launch(t, l, a, a)
	w := d.word(t, a.Name)
	l.all.Wait()
	if w.Outcome != tidemill.OutcomeSucceeded || w.Result.GPUSeconds <= 0 {
		t.Errorf("%+v", w)
	}
	said := map[string]string{}
	for _, who := range []string{"worker0", "worker1", "server"} {
		text, err := os.ReadFile(filepath.Join(marks, who))
		if err != nil {
			t.Fatal(err)
		}
		said[who] = string(text)
		dead(t, pid(t, filepath.Join(marks, who+".pid")))
	}
	meet, _, _ := strings.Cut(said["worker0"], ",")
	for who, rest := range map[string]string{"worker0": ", cards 0, ", "worker1": ", cards 1, ", "server": ", cards , "} {
		if !strings.HasPrefix(said[who], meet+rest) || !strings.HasPrefix(meet, "2 at 127.0.0.1:") {
			t.Errorf("%s is told %s", who, said[who])
		}
	}
	if len(l.cards.free) != 3 {
		t.Errorf("%d cards are free", len(l.cards.free))
	}
	for _, line := range []string{"worker0 has all", "worker1 has all"} {
		if !strings.Contains(d.logs[a.Name], line) {
			t.Errorf("nobody said %q", line)
		}
	}
}

// If several attempts each need all cards, they run one after the other; no attempt waits with half
// of its cards.
func TestCardsOfSeveralAreTakenAtOnce(t *testing.T) {
	d := newDoor(t)
	l := d.open(t, t.TempDir(), nil)
	l.cards = newCards([]card{{index: 0}, {index: 1}})
	for i := range 4 {
		launch(t, l, d.plan(t, fmt.Sprintf("run%d-1", i), `true`, func(p *tidemill.Plan) { p.Workers, p.GPUs = 2, 1 }))
	}
	for i := range 4 {
		if w := d.word(t, fmt.Sprintf("run%d-1", i)); w.Outcome != tidemill.OutcomeSucceeded {
			t.Errorf("%d ended so: %+v", i, w)
		}
	}
	l.all.Wait()
	a := d.plan(t, "run9-1", `true`, func(p *tidemill.Plan) { p.Workers, p.GPUs = 3, 1 })
	launch(t, l, a)
	if w := d.word(t, a.Name); w.Outcome != tidemill.OutcomeFailed || !strings.Contains(w.Reason, "wants 3 GPUs and this machine has 2") {
		t.Errorf("it ended so: %+v", w)
	}
}

// If one worker fails, all others end.
func TestSeveralEndTogether(t *testing.T) {
	d := newDoor(t)
	l := d.open(t, t.TempDir(), nil)
	marks := t.TempDir()
	a := d.plan(t, "run1-1", fmt.Sprintf(meetScript, marks)+`trap "" TERM; if test $me = worker1; then exit 3; fi; sleep 600; sleep 600`, addWorkers)
	launch(t, l, a)
	if w := d.word(t, a.Name); w.Outcome != tidemill.OutcomeFailed || w.Reason != "worker 1: exit status 3" {
		t.Errorf("it ended so: %+v", w)
	}
	l.all.Wait()
	for _, who := range []string{"worker0", "server"} {
		dead(t, pid(t, filepath.Join(marks, who+".pid")))
	}
}
