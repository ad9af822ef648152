//go:build unix

package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tidemill.dev"
)

// asWhat is the variable that makes the test binary the command of a test.
const asWhat = "TEST_AS"

func TestMain(m *testing.M) {
	if os.Getenv(asWhat) == "reduce" {
		if err := reduce(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(9)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// reduce is the command of several workers. Each worker sends a number to the first worker, which
// returns the sum to all workers. Each worker also sends its number to every parameter server. The
// servers never end by themselves.
func reduce() error {
	var tf struct {
		Cluster struct{ Worker, PS []string }
		Task    struct {
			Type  string
			Index int
		}
	}
	if err := json.Unmarshal([]byte(os.Getenv("TF_CONFIG")), &tf); err != nil {
		return err
	}
	if os.Getenv("TIDEMILL_ROLE") == Server {
		return serveFor(tf.Cluster.PS[tf.Task.Index])
	}
	rank, err := strconv.Atoi(os.Getenv("RANK"))
	if err != nil || tf.Task.Type != "worker" || tf.Task.Index != rank || strconv.Itoa(len(tf.Cluster.Worker)) != os.Getenv("WORLD_SIZE") {
		return fmt.Errorf("rank %d, %w, %+v", rank, err, tf)
	}
	for _, server := range tf.Cluster.PS {
		if err := askAt(server, rank+1, func(int) {}); err != nil {
			return err
		}
	}
	meet := net.JoinHostPort(os.Getenv("MASTER_ADDR"), os.Getenv("MASTER_PORT"))
	if rank == 0 {
		sum, err := addUp(meet, len(tf.Cluster.Worker))
		if err != nil {
			return err
		}
		fmt.Println("the sum is", sum)
		return os.WriteFile(filepath.Join(os.Getenv("TIDEMILL_OUT"), "sum"), []byte(strconv.Itoa(sum)), 0o600)
	}
	if err := askAt(meet, rank+1, func(sum int) { fmt.Println("the sum is", sum) }); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(os.Getenv("TIDEMILL_OUT"), "not kept"), nil, 0o600)
}

// addUp reads a number from each worker and sends the sum to all. It waits until the workers have
// printed the sum, because the other workers end with the first.
func addUp(at string, many int) (sum int, err error) {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return 0, err
	}
	sum = 1
	var all []net.Conn
	for range many - 1 {
		c, err := l.Accept()
		if err != nil {
			return 0, err
		}
		var n int
		if _, err := fmt.Fscanln(bufio.NewReader(c), &n); err != nil {
			return 0, err
		}
		sum, all = sum+n, append(all, c)
	}
	for _, c := range all {
		if _, err := fmt.Fprintln(c, sum); err != nil {
			return 0, err
		}
	}
	for _, c := range all {
		if _, err := io.Copy(io.Discard, c); err != nil {
			return 0, err
		}
	}
	return sum, nil
}

// askAt sends a number, reads one, and closes the connection after say. It retries until the
// other side listens.
func askAt(at string, n int, say func(int)) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(patience); ; <-tick.C {
		c, err := net.Dial("tcp", at)
		if err == nil {
			defer c.Close()
			sum := 0
			if _, err = fmt.Fprintln(c, n); err == nil {
				_, err = fmt.Fscanln(bufio.NewReader(c), &sum)
			}
			if err == nil {
				say(sum)
			}
			return err
		}
		if time.Now().After(late) {
			return err
		}
	}
}

func serveFor(at string) error {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		var n int
		_, err = fmt.Fscanln(bufio.NewReader(c), &n)
		fmt.Println("heard", n)
		fmt.Fprintln(c, n)
		if err = errors.Join(err, c.Close()); err != nil {
			return err
		}
	}
}

// group is a group of agents that work on an attempt together.
type group struct {
	*gateway
	ended map[string]<-chan error
	all   map[string]Options
}

// newGroup returns a group of agents that have not started.
func newGroup(t *testing.T, workers, servers int) *group {
	g := newGateway(t)
	g.many = workers + servers
	g.order.Plan.Workers = workers
	r := &group{gateway: g, ended: map[string]<-chan error{}, all: map[string]Options{}}
	if servers > 0 {
		g.order.Plan.Servers = &tidemill.Servers{Count: servers}
	}
	at, err := Places(workers + servers)
	if err != nil {
		t.Fatal(err)
	}
	w, s := at[:workers], at[workers:]
	for i := range workers + servers {
		o := g.options()
		o.Workers, o.Servers, o.Part, o.Index = w, s, Worker, i
		if i >= workers {
			o.Part, o.Index = Server, i-workers
		}
		p := newParty(&o)
		name := p.name()
		if name == "" {
			name = "w0"
		}
		r.all[name] = o
	}
	return r
}

func (r *group) start(who ...string) {
	for _, name := range who {
		r.ended[name] = r.begin(context.Background(), r.all[name])
	}
}

// waitEnds waits until all agents have ended, and checks their errors.
func (r *group) waitEnds(want map[string]error) {
	r.t.Helper()
	for name, ended := range r.ended {
		if err := r.wait(ended); !errors.Is(err, want[name]) {
			r.t.Errorf("%s ends with %v", name, err)
		}
		if _, err := os.Stat(r.all[name].Work); !os.IsNotExist(err) {
			r.t.Errorf("the folder of %s is left: %v", name, err)
		}
	}
}

func (r *group) reduces() {
	r.order.Plan.Command, r.order.Plan.Env = []string{os.Args[0]}, map[string]string{asWhat: "reduce"}
}

// Two workers and a parameter server find each other and make one output. The server, which never
// ends by itself, is ended with the workers, and no line of the logs is lost.
func TestWorkersAndAServer(t *testing.T) {
	r := newGroup(t, 2, 1)
	r.reduces()
	r.start("w1", "ps0", "w0")
	r.waitEnds(nil)
	f := r.word()
	if f.Outcome != tidemill.OutcomeSucceeded || r.content(f.Files)["sum"] != "3" || len(f.Files) != 1 {
		t.Errorf("%+v", f)
	}
	for who, lines := range map[string][]string{"w0": r.log(), "w1": r.logOf("w1")} {
		if !slices.Equal(lines, []string{"stdout F the sum is 3"}) {
			t.Errorf("%s said %q", who, lines)
		}
	}
	said := r.logOf("ps0")
	if slices.Sort(said); !slices.Equal(said, []string{"stdout F heard 1", "stdout F heard 2"}) {
		t.Errorf("the server said %q", said)
	}
}

// An agent whose command fails reports that itself. The attempt ends, and the other commands are
// killed. What these said just before is in their logs.
func TestOneFailureEndsAll(t *testing.T) {
	r := newGroup(t, 2, 1)
	marks := t.TempDir()
	r.sh(`trap "" TERM; if test "$TIDEMILL_ROLE" = server; then me=ps; else me=w$RANK; fi; echo $$ > ` + marks + `/$me.new; mv ` + marks + `/$me.new ` + marks + `/$me
		if test $me != w1; then echo $me waits; fi
		if test $me = w1; then while ! test -e ` + marks + `/w0 || ! test -e ` + marks + `/ps; do sleep 0.02; done; echo it is all wrong >&2; exit 3; fi
		sleep 600; sleep 600`)
	r.start("w0", "w1", "ps0")
	r.waitEnds(map[string]error{"w0": ErrSuperseded})
	f := r.word()
	if f.Outcome != tidemill.OutcomeFailed || f.Reason != "worker 1: exit status 3: it is all wrong" || f.Permanent || f.Result.LastLines != "it is all wrong" || f.Result.Exit != 3 {
		t.Errorf("%+v", f)
	}
	for _, who := range []string{"w0", "ps"} {
		dead(t, filepath.Join(marks, who))
	}
	for who, want := range map[string]string{"w0": "stdout F w0 waits", "w1": "stderr F it is all wrong", "ps0": "stdout F ps waits"} {
		said := r.logOf(who)
		if who == "w0" {
			said = r.log()
		}
		if !slices.Equal(said, []string{want}) {
			t.Errorf("%s said %q, want %q", who, said, want)
		}
	}
}

// dead waits until the process has ended whose number is in a file.
func dead(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(5 * time.Millisecond) // polling leaves the processor to the process
	defer tick.Stop()
	for late := time.After(patience); syscall.Kill(pid, 0) == nil; {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("process %d of %s is alive", pid, filepath.Base(file))
		}
	}
}

// The attempt also ends if any of the commands is killed.
func TestOneIsKilled(t *testing.T) {
	for who, want := range map[string]string{"w0": "killed by SIGKILL", "w1": "worker 1: killed by SIGKILL", "ps0": "parameter server 0: killed by SIGKILL"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			r := newGroup(t, 2, 1)
			marks := t.TempDir()
			r.sh(`if test "$TIDEMILL_ROLE" = server; then me=ps0; else me=w$RANK; fi; echo $$ > ` + marks + `/$me.new; mv ` + marks + `/$me.new ` + marks + `/$me; echo here; sleep 600; sleep 600`)
			r.start("w0", "w1", "ps0")
			r.waitUntil("all have begun", func() bool { return len(r.chunks) > 0 && len(r.others) == 2 })
			text, err := os.ReadFile(filepath.Join(marks, who))
			if err != nil {
				t.Fatal(err)
			}
			pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			ends := map[string]error{"w0": ErrSuperseded}
			if who == "w0" {
				ends = nil
			}
			r.waitEnds(ends)
			if f := r.word(); f.Outcome != tidemill.OutcomeFailed || !strings.HasPrefix(f.Reason, want) || f.Result.Signal != "SIGKILL" {
				t.Errorf("%+v", f)
			}
			for _, other := range []string{"w0", "w1", "ps0"} {
				dead(t, filepath.Join(marks, other))
			}
		})
	}
}

// No command begins before all agents are ready, and the deadline does not run meanwhile. If the
// gateway loses the list of ready agents, the agents report again.
func TestTheyGather(t *testing.T) {
	for deadline := time.Second; !gathered(t, deadline); deadline *= 2 {
		if deadline > patience/4 {
			t.Fatal("the deadline passes while they gather")
		}
	}
}

// gathered makes one agent wait for the other for longer than the deadline. It returns false if the
// deadline is too short for the command itself.
func gathered(t *testing.T, deadline time.Duration) bool {
	t.Helper()
	r := newGroup(t, 2, 0)
	r.order.Plan.Deadline = deadline
	r.order.BeatSeconds = 0.05
	r.reduces()
	r.start("w0")
	from := time.Now()
	r.waitUntil("it has waited longer than its deadline", func() bool {
		return time.Since(from) > deadline+time.Second && r.parts["w0"] == "ready" || len(r.finished) > 0
	})
	r.set(func() { clear(r.parts) })
	r.start("w1")
	r.waitUntil("they have ended", func() bool { return len(r.finished) > 0 })
	f := r.word()
	if f.Reason == (&deadlinePassed{deadline}).Error() {
		for _, ended := range r.ended {
			_ = r.wait(ended) // superseded, most of them
		}
		return false
	}
	r.waitEnds(nil)
	if f.Outcome != tidemill.OutcomeSucceeded {
		t.Errorf("%+v", f)
	}
	return true
}

// A cancelled attempt is reported once, and all commands get SIGTERM.
func TestCancelledTogether(t *testing.T) {
	r := newGroup(t, 2, 1)
	marks := t.TempDir()
	r.sh(`trap 'touch ` + marks + `/$TIDEMILL_ROLE$RANK; exit 0' TERM; echo here; sleep 600 & wait`)
	r.start("w0", "w1", "ps0")
	r.waitUntil("all have begun", func() bool { return len(r.chunks) > 0 && len(r.others) == 2 })
	r.set(func() { r.answer.Cancel = "enough" })
	for name, ended := range r.ended {
		if err := r.wait(ended); err != nil && !errors.Is(err, ErrSuperseded) {
			t.Errorf("%s ends with %v", name, err)
		}
	}
	if f := r.word(); f.Outcome != tidemill.OutcomeCancelled || f.Reason != "enough" {
		t.Errorf("%+v", f)
	}
	if _, err := os.Stat(filepath.Join(marks, "worker0")); err != nil {
		t.Error("the first worker was not asked to leave")
	}
}

// If the machine of one worker stops, the attempt ends as left, and names the worker.
func TestAPartIsEvicted(t *testing.T) {
	r := newGroup(t, 2, 0)
	r.sh(`echo here; sleep 600 & wait`)
	r.start("w0")
	ctx, evict := context.WithCancelCause(t.Context())
	r.ended["w1"] = r.begin(ctx, r.all["w1"])
	r.waitUntil("both have begun", func() bool { return len(r.chunks) > 0 && len(r.others) == 1 })
	evict(&Stopping{By: time.Now().Add(patience)})
	r.waitEnds(map[string]error{"w0": ErrSuperseded})
	if f := r.word(); f.Outcome != tidemill.OutcomeLeft || f.Reason != "worker 1: the machine stopped" {
		t.Errorf("%+v", f)
	}
}
