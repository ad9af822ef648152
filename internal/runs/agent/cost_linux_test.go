//go:build linux

package agent

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
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
