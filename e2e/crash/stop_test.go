//go:build slow

package crash

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/internal/platform"
)

// slowConfig has a trainer that saves its progress on SIGTERM, and resumes from the saved progress.
const slowConfig = `version: 1
name: stop
streams: {events: {partitions: 1}, facts: {partitions: 2}, progress: {partitions: 1}, dead-letters: {partitions: 1}}
recipes:
  train:
    when: {type: bot-created}
    run:
      dir: .
      command: [sh, -c, "if [ -e $TIDEMILL_CHECKPOINT/half ]; then cp $TIDEMILL_CHECKPOINT/half $TIDEMILL_OUT/whole; exit 0; fi; trap 'echo half > $TIDEMILL_CHECKPOINT/half; exit 3' TERM; touch $HOME/begun; while :; do sleep 0.05; done"]
      attempts: 1
    makes: {dataset: "train/{key}"}
`

// stopWithin is the time that `tidemill up` has for its stop.
const stopWithin = 25 * time.Second

// TestAStopSavesAndTheNextStartGoesOn stops `tidemill up`, as Ctrl-C does, while a command runs.
// None of its goroutines may be left, the command's checkpoint must be there, and the next start
// must resume from it.
func TestAStopSavesAndTheNextStartGoesOn(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	if err := os.WriteFile(filepath.Join(dir, "tidemill.yaml"), []byte(slowConfig), 0o644); err != nil {
		t.Fatal(err)
	}
	l := openLife(t, dir)
	l.publish(`{"specversion": "1.0", "type": "bot-created", "source": "/crash", "id": "1", "subject": "bot-1"}`)
	l.soon("the command is at work", func() bool { _, err := os.Stat(filepath.Join(dir, "begun")); return err == nil })
	l.stop()
	l.soon("nothing of ours is left in the process", func() bool { return ourGoroutines() == "" })

	l = openLife(t, dir)
	var run tidemill.Run
	l.soon("the run has ended", func() bool {
		var page api.Runs
		if l.get("/api/v1/runs", &page); len(page.Runs) == 1 {
			run = page.Runs[0].Run
		}
		return run.State.Ended()
	})
	l.stop()
	if run.State != tidemill.RunSucceeded || len(run.Attempts) != 2 {
		t.Fatalf("the run is %+v", run)
	}
	first, second := run.Attempts[0], run.Attempts[1]
	if first.Outcome != tidemill.OutcomeLeft || first.Reason != "the machine stopped" {
		t.Errorf("the first attempt's end is told as %+v", first)
	}
	if second.ResumedFrom == "" || run.Result.Files != 1 {
		t.Errorf("the second attempt did not go on from what the first had saved: %+v", second)
	}
}

// life is a Tidemill from its start to its stop.
type life struct {
	*testing.T
	p    *platform.Platform
	url  string
	stop func()
}

func openLife(t *testing.T, dir string) *life {
	t.Helper()
	conf, err := config.Load(filepath.Join(dir, "tidemill.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := platform.Open(t.Context(), platform.Options{Config: conf, OwnStreams: true, Telemetry: &telemetry.Options{},
		Embedded: &embedded.Options{Dir: filepath.Join(dir, "data")}, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Runs: &platform.RunsOptions{Recipes: dir, Data: filepath.Join(dir, "data"), Secrets: filepath.Join(dir, "secrets"), Launch: true}})
	if err != nil {
		t.Fatal(err)
	}
	d, err := p.Dispatcher(t.Context())
	if err == nil {
		err = d.Ready(t.Context()) // a new trigger gets only events from this moment on
	}
	if err == nil {
		_, err = p.Controller(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	g, err := p.Gateway(t.Context(), platform.GatewayOptions{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(context.WithoutCancel(t.Context())) }()
	l := &life{T: t, p: p, url: "http://" + g.Addr()}
	l.stop = func() {
		ctx, cancel := context.WithTimeout(t.Context(), stopWithin)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		http.DefaultClient.CloseIdleConnections()
	}
	return l
}

func (l *life) publish(event string) {
	l.Helper()
	res, err := http.Post(l.url+"/events", "application/cloudevents+json", strings.NewReader(event))
	if err != nil {
		l.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusAccepted {
		l.Fatalf("the event was answered %s", res.Status)
	}
}

func (l *life) get(path string, to any) {
	res, err := http.Get(l.url + path)
	if err != nil {
		l.Fatal(err)
	}
	defer res.Body.Close()
	_ = json.NewDecoder(res.Body).Decode(to) // a ledger that is still catching up answers with an error instead
}

func (l *life) soon(what string, is func() bool) {
	l.Helper()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for end := time.After(patience); !is(); {
		select {
		case <-look.C:
		case <-end:
			l.Fatalf("it has not come that %s\n%s", what, ourGoroutines())
		}
	}
}

// ourGoroutines returns the goroutines that run our code, except the test's own.
func ourGoroutines() string {
	var all bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&all, 2)
	var left []string
	for one := range strings.SplitSeq(all.String(), "\n\n") {
		if strings.Contains(one, "tidemill.dev") && !strings.Contains(one, "testing.tRunner") {
			left = append(left, one)
		}
	}
	return strings.Join(left, "\n\n")
}
