//go:build linux

package agent

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
)

// BenchmarkTrivialRun measures the processor time of an attempt with a trivial command, children
// included. Compare it with BenchmarkBareCommand.
func BenchmarkTrivialRun(b *testing.B) {
	order := api.Order{Run: "run1", Attempt: 1, Causes: 1, Event: []byte("{}"), BeatSeconds: 2,
		Plan: tidemill.Plan{Dir: b.TempDir(), Command: []string{"true"}, Deadline: time.Minute, MaxLog: 1 << 20, MaxOutput: 1 << 20}}
	answers := map[string]string{"": asJSON(order), "/finish": asJSON(api.Finished{})}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, answers[strings.TrimPrefix(r.URL.Path, "/agent/v1/attempts/"+name)])
	}))
	defer server.Close()
	o := Options{Gateway: server.URL, Token: token, Attempt: name, Work: b.TempDir() + "/work", HTTP: &http.Client{Transport: &http.Transport{}}}
	from := cpu()
	for b.Loop() {
		if err := Run(context.Background(), o); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((cpu()-from).Microseconds())/float64(b.N), "µs-cpu/op")
}

func BenchmarkBareCommand(b *testing.B) {
	path, err := exec.LookPath("true")
	if err != nil {
		b.Fatal(err)
	}
	from := cpu()
	for b.Loop() {
		cmd := exec.Command(path)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		if err := cmd.Run(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((cpu()-from).Microseconds())/float64(b.N), "µs-cpu/op")
}

// cpu returns the processor time of this process and its children until now.
func cpu() (all time.Duration) {
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if err := syscall.Getrusage(who, &u); err == nil {
			all += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return all
}

// A command in a folder is killed once its processes hold more memory than the run may use. The
// reason says so, even if a child of the command holds the memory.
func TestACommandOverItsMemory(t *testing.T) {
	for name, c := range map[string]struct{ script, says string }{
		"the command":   {"exec tail /dev/zero", "out of memory: it held "},
		"its child":     {"tail /dev/zero & wait", "out of memory: it held "},
		"another group": {"setsid tail /dev/zero & wait", "out of memory: it held "},
		"below":         {"true", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t)
			g.order.Plan.Memory = 32 << 20
			g.sh(c.script)
			f := g.run(g.options())
			waitGone(t, "a process of the command", func(_, _ string, pid int) bool {
				text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline") // fails if the process has ended
				return string(text) == "tail\x00/dev/zero\x00"
			})
			if (f.Outcome == tidemill.OutcomeSucceeded) != (c.says == "") || !strings.HasPrefix(f.Reason, c.says) || f.Permanent {
				t.Errorf("%+v", f)
			}
			if c.says != "" && !strings.HasSuffix(f.Reason, " MiB, more than memory: 32MiB") {
				t.Errorf("%q", f.Reason)
			}
		})
	}
}
