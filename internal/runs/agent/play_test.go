package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
)

// wire is a gateway without a network, so that it can be used in a bubble.
type wire struct {
	order    api.Order
	answer   func(path string) error // error of the connection; nil is none
	mu       sync.Mutex
	cancel   string
	log      strings.Builder
	finished []api.Finish
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	path := strings.TrimPrefix(r.URL.Path, "/agent/v1/attempts/"+name)
	if err := w.answer(path); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var f api.Finish
	answer := any(struct{}{})
	switch path {
	case "":
		answer = w.order
	case "/beat":
		answer = api.Beat{Cancel: w.cancel}
	case "/log":
		if _, err := io.Copy(&w.log, r.Body); err != nil {
			return nil, err
		}
	case "/finish":
		if err := json.NewDecoder(r.Body).Decode(&f); err != nil {
			return nil, err
		}
		w.finished = append(w.finished, f)
	}
	text, err := json.Marshal(answer)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(string(text)))}, err
}

// played runs an agent whose command is a function, in virtual time.
func played(t *testing.T, w *wire, command func(killed, asked context.Context, cmd *exec.Cmd) int) api.Finish {
	t.Helper()
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "train"), nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if w.answer == nil {
		w.answer = func(string) error { return nil }
	}
	w.order = api.Order{Run: "run1", Attempt: 1, Causes: 1, Event: json.RawMessage(`{"id":"e1"}`), BeatSeconds: 2,
		Plan: tidemill.Plan{Dir: "/", Command: []string{"train"}, Deadline: time.Hour, Grace: 30 * time.Second, Memory: 1}}
	err := Run(t.Context(), Options{Gateway: "http://gateway", Token: token, Attempt: name, Work: filepath.Join(bin, "work"), HTTP: &http.Client{Transport: w},
		Workers: []string{"127.0.0.1:29500"}, Play: command,
		Equip: func(context.Context, tidemill.Plan) (Equipment, error) {
			return Equipment{Env: []string{"PATH=" + bin}}, nil
		}})
	if err != nil || len(w.finished) != 1 {
		t.Fatalf("%d reports: %v", len(w.finished), err)
	}
	return w.finished[0]
}

// Virtual time moves while a played command writes to both streams and the gateway is away.
func TestAPlayedCommandWaitsForItsLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, away := &wire{}, time.Now().Add(time.Minute)
		w.answer = func(path string) error {
			if path == "/log" && time.Now().Before(away) {
				return errors.New("away")
			}
			return nil
		}
		f := played(t, w, func(_, _ context.Context, cmd *exec.Cmd) int {
			var both sync.WaitGroup
			for _, to := range []io.Writer{cmd.Stdout, cmd.Stderr} {
				both.Go(func() {
					for n := range 10 {
						fmt.Fprintln(to, "line", n)
						time.Sleep(time.Second)
					}
				})
			}
			both.Wait()
			return 3
		})
		if f.Outcome != tidemill.OutcomeFailed || f.Result.Exit != 3 || !strings.Contains(f.Reason, "exit status 3: line 9") {
			t.Errorf("%+v", f)
		}
		if n := strings.Count(w.log.String(), "line"); n != 20 {
			t.Errorf("the log has %d lines:\n%s", n, w.log.String())
		}
	})
}

// A cancelled run asks its played command to end, and kills it after the grace.
func TestAPlayedCommandIsKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var term, kill time.Time
		f := played(t, &wire{cancel: "enough"}, func(killed, asked context.Context, cmd *exec.Cmd) int {
			<-asked.Done()
			term = time.Now()
			<-killed.Done()
			kill = time.Now()
			if _, err := fmt.Fprintln(cmd.Stdout, "late"); err == nil {
				t.Error("a killed command writes")
			}
			return 0
		})
		if f.Outcome != tidemill.OutcomeCancelled || f.Reason != "enough" || kill.Sub(term) != 30*time.Second || f.Result.PeakMemory != 0 {
			t.Errorf("SIGKILL came %v after SIGTERM: %+v", kill.Sub(term), f)
		}
	})
}
