package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func variables(all map[string]string) func(string) string {
	return func(name string) string { return all[name] }
}

func TestWhatIsAskedFor(t *testing.T) {
	none := variables(nil)
	for _, args := range [][]string{nil, {"exit"}, {"steps", "1"}, {"fly"}} {
		if err := run(t.Context(), args, none, io.Discard); !errors.Is(err, errUsage) {
			t.Errorf("%v: %v", args, err)
		}
	}
	for _, args := range [][]string{{"exit", "x"}, {"exit", "300"}, {"eat", "x"}, {"steps", "x", "1s"}, {"steps", "1", "1s", "x"}, {"steps", "1", "0s"}, {"steps", "1", "1s"}, {"gather"}} {
		var code exitCode
		if err := run(t.Context(), args, none, io.Discard); err == nil || errors.As(err, &code) {
			t.Errorf("%v: %v", args, err)
		}
	}
	var code exitCode
	if err := run(t.Context(), []string{"exit", "7"}, none, io.Discard); !errors.As(err, &code) || code != 7 {
		t.Errorf("exit 7: %v", err)
	}
	if err := run(t.Context(), []string{"exit", "0"}, none, io.Discard); err != nil {
		t.Error(err)
	}
	t.Setenv("TIDEMILL_RUN", "abc")
	var out bytes.Buffer
	if err := run(t.Context(), []string{"print"}, none, &out); err != nil || !strings.Contains(out.String(), "TIDEMILL_RUN=abc\n") {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestItHoldsMemoryUntilItIsAskedToLeave(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	lines := follow(func(out io.Writer) error { return run(ctx, []string{"eat", "16"}, variables(nil), out) })
	lines.until(t, "16 MiB")
	leave()
	if err := lines.end(t); err == nil || !strings.Contains(err.Error(), "asked to leave with 16 MiB") {
		t.Error(err)
	}
}

func TestStepsGoOnWhereTheyWereLeft(t *testing.T) {
	out, checkpoint := t.TempDir(), t.TempDir()
	vars := variables(map[string]string{"TIDEMILL_OUT": out, "TIDEMILL_CHECKPOINT": checkpoint})
	ctx, leave := context.WithCancel(t.Context())
	lines := follow(func(w io.Writer) error { return run(ctx, []string{"steps", "1000000", "1ms"}, vars, w) })
	lines.until(t, "step 3 of 1000000")
	leave()
	if err := lines.end(t); err == nil || !strings.Contains(err.Error(), "asked to leave before step") {
		t.Fatal(err)
	}
	at, err := folders{out, checkpoint}.saved()
	if err != nil || at < 3 {
		t.Fatalf("step %d was saved, %v", at, err)
	}
	if err := run(t.Context(), []string{"steps", strconv.Itoa(at + 2), "1ms"}, vars, io.Discard); err != nil {
		t.Fatal(err)
	}
	if got := metrics(t, out); got["resumed"] != float64(at) || got["steps"] != float64(at+2) {
		t.Errorf("it left %v", got)
	}
	data, err := os.ReadFile(filepath.Join(out, "metrics.jsonl"))
	if n := strings.Count(string(data), "\n"); err != nil || n != at+2 {
		t.Errorf("%d lines of metrics, %v", n, err)
	}
}

// A first attempt waits at the given step; a resumed attempt does not wait.
func TestStepsWaitUntilTheyAreLeft(t *testing.T) {
	out, checkpoint := t.TempDir(), t.TempDir()
	vars := variables(map[string]string{"TIDEMILL_OUT": out, "TIDEMILL_CHECKPOINT": checkpoint})
	ctx, leave := context.WithCancel(t.Context())
	args := []string{"steps", "6", "1ms", "4"}
	lines := follow(func(w io.Writer) error { return run(ctx, args, vars, w) })
	lines.until(t, "step 4 of 6")
	leave()
	if err := lines.end(t); err == nil || !strings.Contains(err.Error(), "asked to leave before step 5") {
		t.Fatal(err)
	}
	if err := run(t.Context(), args, vars, io.Discard); err != nil {
		t.Fatal(err)
	}
	if got := metrics(t, out); got["resumed"] != 4 || got["steps"] != 6 {
		t.Errorf("it left %v", got)
	}
}

func metrics(t *testing.T, out string) (all map[string]float64) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(out, "metrics.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestWorkersAndServersMeet(t *testing.T) {
	const workers, servers = 3, 2
	places := freePorts(t, workers+servers)
	ctx, leave := context.WithCancel(t.Context())
	var all []*lines
	var outs []string
	for i := range workers + servers {
		out := t.TempDir()
		vars := processVariables(places[:workers], places[workers:], i)
		vars["TIDEMILL_OUT"], vars["TIDEMILL_CHECKPOINT"] = out, t.TempDir()
		all, outs = append(all, follow(func(w io.Writer) error { return run(ctx, []string{"gather"}, variables(vars), w) })), append(outs, out)
	}
	for i := range workers {
		if err := all[i].end(t); err != nil {
			t.Errorf("worker %d: %v", i, err)
		}
	}
	if got := metrics(t, outs[0]); got["sum"] != 6 || got["workers"] != 3 || got["servers"] != 2 {
		t.Errorf("the first worker left %v", got)
	}
	if left, err := os.ReadDir(outs[1]); err != nil || len(left) > 0 {
		t.Errorf("the second worker left %v, %v", left, err)
	}
	leave()
	for i := range servers {
		if err := all[workers+i].end(t); !errors.Is(err, context.Canceled) {
			t.Errorf("server %d ended with %v", i, err)
		}
	}
}

// processVariables returns the variables of one process: first the workers, then the servers.
func processVariables(workers, servers []string, i int) map[string]string {
	task := map[string]any{"type": "worker", "index": i}
	host, port, _ := net.SplitHostPort(workers[0])
	vars := map[string]string{"WORLD_SIZE": strconv.Itoa(len(workers)), "MASTER_ADDR": host, "MASTER_PORT": port, "RANK": strconv.Itoa(i)}
	if i >= len(workers) {
		task = map[string]any{"type": "ps", "index": i - len(workers)}
		delete(vars, "RANK")
	}
	text, _ := json.Marshal(map[string]any{"cluster": map[string]any{"worker": workers, "ps": servers}, "task": task})
	vars["TF_CONFIG"] = string(text)
	return vars
}

// freePorts returns ports outside of the kernel's range for automatic ports, because other tests
// may take an automatic port before it is used here.
func freePorts(t *testing.T, n int) (all []string) {
	t.Helper()
	for tries := 0; len(all) < n; tries++ {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(20000+rand.IntN(12000))))
		if err != nil {
			if tries > 1000 {
				t.Fatal(err)
			}
			continue
		}
		defer l.Close()
		all = append(all, l.Addr().String())
	}
	return all
}

func TestVariablesThatDisagree(t *testing.T) {
	workers, servers := []string{"a:1", "b:1"}, []string{"c:1"}
	for name, value := range map[string]string{"WORLD_SIZE": "3", "RANK": "0", "MASTER_ADDR": "b", "MASTER_PORT": "2"} {
		vars := processVariables(workers, servers, 1)
		vars[name] = value
		if _, err := partyOf(variables(vars)); err == nil || !strings.Contains(err.Error(), name+" is "+strconv.Quote(value)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	vars := processVariables(workers, servers, 2)
	vars["RANK"] = "0"
	if _, err := partyOf(variables(vars)); err == nil {
		t.Error("a server with the rank of a worker was taken")
	}
	vars = processVariables(workers, servers, 3)
	if _, err := partyOf(variables(vars)); err == nil {
		t.Error("one that has no place was taken")
	}
}

func TestAnEventIsAnsweredWithOne(t *testing.T) {
	var said bytes.Buffer
	s := httptest.NewServer(echo(&said))
	defer s.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/any", strings.NewReader(`{"a":1}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"ce-id": "e1", "ce-type": "bot-created", "ce-subject": "bot-42", "Content-Type": "application/json"} {
		r.Header.Set(name, value)
	}
	status, h, body := answer(t, r)
	if status != http.StatusOK || h.Get("ce-id") != "echo-e1" || h.Get("ce-type") != "echoed" || h.Get("ce-subject") != "bot-42" || body != `{"a":1}` {
		t.Errorf("%d %v %s", status, h, body)
	}
	if said.String() != "event e1 of type bot-created\n" {
		t.Errorf("it said %q", said.String())
	}
	r, err = http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	if status, _, body := answer(t, r); status != http.StatusUnsupportedMediaType {
		t.Errorf("%d %s", status, body)
	}
}

func answer(t *testing.T, r *http.Request) (int, http.Header, string) {
	t.Helper()
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	body, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.StatusCode, w.Header, string(body)
}

func TestTheFunctionLeavesInOrder(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	lines := follow(func(w io.Writer) error {
		return run(ctx, []string{"serve"}, variables(map[string]string{"PORT": "0"}), w)
	})
	lines.until(t, "listening at")
	leave()
	if err := lines.end(t); err != nil {
		t.Error(err)
	}
}

// lines is a running function and its output.
type lines struct {
	said  chan string
	ended chan error
}

func (l *lines) Write(data []byte) (int, error) {
	select {
	case l.said <- string(data):
	default: // no test waits for this line
	}
	return len(data), nil
}

func follow(do func(io.Writer) error) *lines {
	l := &lines{make(chan string, 100), make(chan error, 1)}
	go func() { l.ended <- do(l) }()
	return l
}

const patience = 2 * time.Minute

func (l *lines) until(t *testing.T, what string) {
	t.Helper()
	for late := time.After(patience); ; {
		select {
		case line := <-l.said:
			if strings.Contains(line, what) {
				return
			}
		case err := <-l.ended:
			t.Fatalf("it ended with %v before it said %q", err, what)
		case <-late:
			t.Fatalf("it never said %q", what)
		}
	}
}

func (l *lines) end(t *testing.T) error {
	t.Helper()
	select {
	case err := <-l.ended:
		return err
	case <-time.After(patience):
		t.Fatal("it does not end")
		return nil
	}
}
