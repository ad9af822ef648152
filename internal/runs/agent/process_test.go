package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev"
)

// A run gets everything in the contract, and its output is uploaded.
func TestRunOfAModel(t *testing.T) {
	g := newGateway(t)
	examples := g.addTree(map[string]string{"a/train.csv": "x,1\n", "b.csv": "y,2\n"})
	champion := g.addTree(map[string]string{"model.onnx": "old"})
	checkpoint := g.addTree(map[string]string{"state.pt": "step 7"})
	g.order.Champion, g.order.Checkpoint = &champion, &checkpoint
	g.order.Plan.Model = "intent/bot-42"
	g.order.Plan.Env = map[string]string{"EPOCHS": "3", "RANK": "9"}
	g.order.Plan.Inputs = []tidemill.Input{{Name: "examples", Tree: examples.Tree}, {Name: "nothing"}}
	g.sh(`set -e
		cat "$TIDEMILL_IN/examples/a/train.csv" "$TIDEMILL_IN/examples/b.csv" "$TIDEMILL_CHAMPION/model.onnx" "$TIDEMILL_CHECKPOINT/state.pt" > "$TIDEMILL_OUT/model.onnx"
		test -d "$TIDEMILL_IN/nothing"
		echo more >> "$TIDEMILL_CHECKPOINT/state.pt"
		cp "$TIDEMILL_EVENT" "$TIDEMILL_OUT/event"; cp "$TIDEMILL_EVENTS" "$TIDEMILL_OUT/events"
		env > "$TIDEMILL_OUT/env"; pwd > "$TIDEMILL_OUT/pwd"
		printf '{"step": 1}' > "$TIDEMILL_OUT/metrics.jsonl"
		printf '{"accuracy": 0.91, "loss": {"train": 1, "kind": "mse"}, "matrix": [1,2]}' > "$TIDEMILL_OUT/metrics.json"
		echo to stdout; echo to stderr >&2; printf 'no end'`)
	t.Setenv("AWS_SECRET_ACCESS_KEY", "ours")
	o := g.options()
	o.Equip = func(context.Context, tidemill.Plan) (Equipment, error) {
		return Equipment{Env: []string{"HF_TOKEN=secret", "CUDA_VISIBLE_DEVICES=1,2"}, GPUs: []int{1, 2}, Card: "H200", Image: "sha256:abc"}, nil
	}
	f := g.run(o)
	if f.Outcome != tidemill.OutcomeSucceeded || f.Reason != "" || f.Result.Exit != 0 {
		t.Fatalf("the run has ended so: %+v\n%s", f, strings.Join(g.log(), "\n"))
	}
	made := g.content(f.Files)
	if made["model.onnx"] != "x,1\ny,2\noldstep 7" {
		t.Errorf("the model is %q", made["model.onnx"])
	}
	if made["event"] != "{\"id\":\"e1\"}\n" || made["events"] != made["event"] {
		t.Errorf("the events are %q and %q", made["event"], made["events"])
	}
	checkVariablesOf(t, made["env"])
	if got := strings.TrimSpace(made["pwd"]); got != g.order.Plan.Dir {
		t.Errorf("it ran in %s, not in %s", got, g.order.Plan.Dir)
	}
	if want := map[string]float64{"accuracy": 0.91, "loss.train": 1}; !maps.Equal(f.Result.Metrics, want) {
		t.Errorf("the metrics are %v", f.Result.Metrics)
	}
	want := tidemill.Where{Node: "node-1", Card: "H200", GPUs: []int{1, 2}, Image: "sha256:abc", ResumedFrom: checkpoint.Tree}
	if a, b := asJSON(f.Where), asJSON(want); a != b {
		t.Errorf("it ran on %s, not on %s", a, b)
	}
	if f.Result.GPUSeconds <= 0 || len(f.Result.Stages) != 3 || f.Result.Stages[1].Name != "run" {
		t.Errorf("it took %v GPU seconds, and the stages %v", f.Result.GPUSeconds, f.Result.Stages)
	}
	log := g.log()
	for i, line := range log {
		log[i] = strings.Replace(line, "stdout P no end", "stdout F no end", 1) // a slow machine sends the line before its newline arrives
	}
	slices.Sort(log) // the order of two pipes varies
	if want := []string{"stderr F to stderr", "stdout F no end", "stdout F to stdout"}; !slices.Equal(log, want) {
		t.Errorf("the log is %q", log)
	}
	if !strings.Contains(f.Result.LastLines, "to stdout") || f.Result.LogBytes == 0 || f.Result.Cut {
		t.Errorf("of the log the result says %+v", f.Result)
	}
	var asked []string
	g.set(func() { asked = slices.Clone(g.asked) })
	behind := slices.Index(asked, "/progress") // sent after the last scan, because the line has no end
	if behind < 0 || slices.Contains(asked[behind:], "/checkpoint") {
		t.Errorf("a run that has succeeded has saved a checkpoint at its end: %q", asked)
	}
}

func asJSON(v any) string {
	text, _ := json.Marshal(v)
	return string(text)
}

func checkVariablesOf(t *testing.T, text string) {
	t.Helper()
	env := map[string]string{}
	for line := range strings.Lines(text) {
		k, v, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		env[k] = v
	}
	for k, want := range map[string]string{"TIDEMILL_RUN": "run1", "TIDEMILL_KEY": "bot-42", "TIDEMILL_RECIPE": "intent", "TIDEMILL_ATTEMPT": "1", "EPOCHS": "3",
		"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "HF_TOKEN": "secret", "CUDA_VISIBLE_DEVICES": "1,2",
		"PATH": os.Getenv("PATH"), "AWS_SECRET_ACCESS_KEY": ""} {
		if env[k] != want {
			t.Errorf("%s is %q, not %q", k, env[k], want)
		}
	}
	if !strings.Contains(env["TF_CONFIG"], env["MASTER_PORT"]) || env["MASTER_PORT"] == "" {
		t.Errorf("TF_CONFIG is %s, and MASTER_PORT %s", env["TF_CONFIG"], env["MASTER_PORT"])
	}
}

// A trivial run sends only two requests.
func TestATrivialRunAsksLittle(t *testing.T) {
	g := newGateway(t)
	g.order.BeatSeconds = 60
	g.sh("exit 0")
	g.run(g.options())
	if want := []string{"", "/finish"}; !slices.Equal(g.asked, want) {
		t.Errorf("it asked for %q", g.asked)
	}
}

// With several causes, the command gets all of them, and the newest in its own file.
func TestRunOfSeveralCauses(t *testing.T) {
	g := newGateway(t)
	g.order.Causes, g.order.Event, g.events = 3, nil, "{\"id\":\"e1\"}\n{\"id\":\"e2\"}\n{\"id\":\"e3\"}\n"
	g.sh(`cp "$TIDEMILL_EVENT" "$TIDEMILL_OUT/event"; cp "$TIDEMILL_EVENTS" "$TIDEMILL_OUT/events"`)
	made := g.content(g.run(g.options()).Files)
	if made["event"] != "{\"id\":\"e3\"}\n" || made["events"] != g.events {
		t.Errorf("the events are %q, the newest %q", made["events"], made["event"])
	}
}

// A run cannot change the files of the cache, because later runs use them.
func TestInputsAreReadOnly(t *testing.T) {
	if os.Getuid() == 0 {
		t.Log("root heeds no modes: they alone are looked at")
	}
	g := newGateway(t)
	tree := g.addTree(map[string]string{"a/b.csv": "x"})
	g.order.Plan.Inputs = []tidemill.Input{{Name: "i", Tree: tree.Tree}}
	g.sh(`cd "$TIDEMILL_IN"; stat -c %A . i i/a i/a/b.csv > "$TIDEMILL_OUT/modes"`)
	made := g.content(g.run(g.options()).Files)
	if strings.Contains(made["modes"], "w") || strings.Count(made["modes"], "r") < 4 {
		t.Errorf("their modes are\n%s", made["modes"])
	}
}

func TestInputByURI(t *testing.T) {
	inner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("a server that the recipe does not allow was asked for %s", r.URL)
	}))
	defer inner.Close()
	there := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("a stranger was shown the token")
		}
		switch r.URL.Path {
		case "/data/set.csv":
			_, _ = w.Write([]byte("1,2,3"))
		case "/data/moved/set.csv":
			http.Redirect(w, r, "/data/set.csv", http.StatusFound)
		case "/data/inward":
			http.Redirect(w, r, inner.URL+"/latest/meta-data", http.StatusFound)
		case "/data/up":
			http.Redirect(w, r, "/data/../other", http.StatusFound)
		case "/other":
			t.Error("what is beside the folder that the recipe allows was asked for")
		default:
			http.NotFound(w, r)
		}
	}))
	defer there.Close()
	for _, c := range []struct{ uri, reason string }{
		{there.URL + "/data/set.csv?signature=x", ""},
		{there.URL + "/data/moved/set.csv", ""},
		{there.URL + "/data/none", "404"},
		{there.URL + "/data/inward", "begins with nothing that the recipe allows"},
		{there.URL + "/data/up", "begins with nothing that the recipe allows"},
		{there.URL + "/other", "begins with nothing that the recipe allows"},
		{inner.URL + "/data/set.csv?signature=hunter2", "begins with nothing that the recipe allows"},
		{"file:///etc/passwd", "no URL of http or https"},
	} {
		g := newGateway(t)
		g.order.Plan.Inputs = []tidemill.Input{{Name: "raw", URI: c.uri, Allow: []string{there.URL + "/data/"}}}
		g.sh(`cp "$TIDEMILL_IN/raw/set.csv" "$TIDEMILL_OUT/got"`)
		f := g.run(g.options())
		if strings.Contains(f.Reason, "hunter2") {
			t.Errorf("the reason tells a key: %s", f.Reason)
		}
		switch {
		case c.reason == "" && g.content(f.Files)["got"] != "1,2,3":
			t.Errorf("%s: it ended so: %+v", c.uri, f)
		case c.reason != "" && (f.Outcome != tidemill.OutcomeFailed || !f.Permanent || !strings.Contains(f.Reason, c.reason) || !strings.Contains(f.Reason, "inputs: raw")):
			t.Errorf("%s: it ended so: %+v", c.uri, f)
		}
	}
}

// A server that stops in the middle of a file does not hold the attempt until its deadline.
func TestAnInputThatStops(t *testing.T) {
	kept := http.DefaultTransport
	t.Cleanup(func() { http.DefaultTransport = kept })
	dir := filepath.Join(t.TempDir(), "raw")
	synctest.Test(t, func(t *testing.T) {
		dialled := 0
		wire := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			dialled++
			here, there := net.Pipe()
			answer := "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole"
			if dialled == 1 {
				answer = answer[:len(answer)-2]
			}
			go func() {
				if _, err := http.ReadRequest(bufio.NewReader(there)); err == nil {
					_, _ = io.WriteString(there, answer)
				}
				_, _ = io.Copy(io.Discard, there)
			}()
			return here, nil
		}}
		defer wire.CloseIdleConnections()
		http.DefaultTransport = wire
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		began := time.Now()
		in := tidemill.Input{Name: "raw", URI: "http://silent.example/raw", Allow: []string{"http://silent.example/"}}
		err := (&attempt{}).fetchURI(ctx, dir, &in)
		if got, _ := os.ReadFile(filepath.Join(dir, "raw")); err != nil || string(got) != "whole" {
			t.Errorf("%q after %s: %v", got, time.Since(began), err)
		}
	})
	if err := RemoveFolder(dir); err != nil { // it is read-only
		t.Error(err)
	}
}

// A file that the Python client had not finished when it was killed is not in the next attempt's checkpoint.
func TestAnUnfinishedFileOfACheckpoint(t *testing.T) {
	g := newGateway(t)
	tree := g.addTree(map[string]string{"model.pt": "whole", ".0123456789abcdef.part.pt": "wh", "deep/.0123456789abcdef.part": "st", ".partly": "kept"})
	g.order.Checkpoint = &tree
	g.sh(`cd "$TIDEMILL_CHECKPOINT"; find . -type f | LC_ALL=C sort | tr '\n' ' '; exit 1`)
	if f := g.run(g.options()); strings.TrimSpace(f.Result.LastLines) != "./.partly ./model.pt" {
		t.Errorf("the checkpoint has %q", f.Result.LastLines)
	}
}

// A checkpoint shares no files with the cache.
func TestCheckpointIsTheRunsOwn(t *testing.T) {
	g := newGateway(t)
	tree := g.addTree(map[string]string{"state": "one"})
	g.order.Checkpoint = &tree
	g.order.Plan.Inputs = []tidemill.Input{{Name: "i", Tree: tree.Tree}}
	g.sh(`echo two > "$TIDEMILL_CHECKPOINT/state"; cat "$TIDEMILL_IN/i/state"; exit 1`)
	o := g.options()
	if f := g.run(o); !strings.Contains(f.Result.LastLines, "one") {
		t.Errorf("the input is by then %q", f.Result.LastLines)
	}
	err := filepath.WalkDir(o.Cache, func(name string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if text, _ := os.ReadFile(name); string(text) != "one" {
				t.Errorf("the cache holds %q", text)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if len(g.saved) != 1 || g.content(g.trees[g.saved[0].Tree])["state"] != "two\n" {
		t.Errorf("what a failed run has kept was not saved: %v\n%q", g.saved, g.log())
	}
}
