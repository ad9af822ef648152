//go:build slow && linux

package attacks

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"tidemill.dev/api"
)

const (
	startWithin   = time.Minute      // time for a start, on a busy machine
	healthyWithin = 10 * time.Second // time for the answer to a healthy request, on a busy machine
)

// tidemill is the path of the built tidemill.
var tidemill string

// TestMain builds the binary that all tests attack.
func TestMain(m *testing.M) { os.Exit(build(m)) }

func build(m *testing.M) int {
	dir, err := os.MkdirTemp("", "attacks")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	tidemill = filepath.Join(dir, "tidemill")
	if out, err := exec.Command("go", "build", "-o", tidemill, "tidemill.dev/cmd/tidemill").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build tidemill: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// worldConfig has one of everything that can be attacked: a stream, a subscriber, a schedule, a
// recipe and a scorer.
const worldConfig = `version: 1
streams:
  messages: {partitions: 2, types: [message]}
  scored: {partitions: 2}
pools:
  small: {slots: 4}
triggers:
  tell: {when: {type: order}, to: {url: "http://127.0.0.1:1/hook"}, delivery: {attempts: 1}}
  learn: {when: {type: learn}, to: {function: train}}
schedules:
  nightly: {cron: "0 3 * * *"}
recipes:
  intent:
    when: [{type: learn}]
    run: {dir: models, command: [sh, train.sh], pool: small, attempts: 1}
    makes: {model: "intent/{key}"}
  wide:
    key: data.bot
    when: [{type: wide, debounce: 1h}]
    run: {dir: models, command: ["true"]}
    makes: {dataset: "wide/{key}"}
scorers:
  intents: {from: messages, to: scored, model: "intent/{key}", map: {x: data.x}}
`

// callers are the tokens of a world, with the flags of `tidemill token new`.
var callers = map[string][]string{
	"publisher": {"--role", "publish"},
	"reader":    {"--role", "read"},
	"operator":  {"--role", "operate"},
	"approver":  {"--role", "approve"},
	"tenant":    {"--role", "approve", "--keys", "bot-42"},
	"expired":   {"--role", "approve", "--expires", "12h"},
}

// world is a running tidemill.
type world struct {
	*testing.T
	dir    string
	log    string // path of the file with its log
	url    string
	kafka  string
	redis  string
	grpc   string // empty without gRPC
	tokens map[string]string
	cmd    *exec.Cmd
	client *http.Client
}

// openWorld starts a tidemill in a new folder. At the end of the test it must be healthy, stop in
// order, and have logged no panic. More flags of `tidemill up` may be given, and files for its folder.
func openWorld(t *testing.T, files map[string]string, flags ...string) *world {
	t.Helper()
	w := &world{T: t, dir: t.TempDir(), tokens: map[string]string{}, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}, Timeout: startWithin}}
	w.write("tidemill.yaml", worldConfig)
	w.write("models/README", "the models of the attack\n")
	for name, text := range files {
		w.write(name, text)
	}
	for name, rights := range callers {
		w.tokens[name] = strings.TrimSpace(w.run(append([]string{"token", "new", name, "--file", "access.yaml"}, rights...)...))
	}
	w.expire()
	w.start(flags)
	return w
}

func (w *world) write(name, text string) {
	w.Helper()
	path := filepath.Join(w.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		w.Fatal(err)
	}
}

// expire moves the only expiry in the access file into the past. The command refuses to write one.
func (w *world) expire() {
	w.Helper()
	text, err := os.ReadFile(filepath.Join(w.dir, "access.yaml"))
	if err != nil {
		w.Fatal(err)
	}
	past := regexp.MustCompile(`expires: \S+`).ReplaceAllString(string(text), "expires: 2020-01-01")
	if past == string(text) {
		w.Fatalf("no token expires in:\n%s", text)
	}
	w.write("access.yaml", past)
}

// command returns a command of tidemill in the world's folder, which dies with the test.
func (w *world) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, tidemill, args...)
	cmd.Dir = w.dir
	cmd.Env = []string{"HOME=" + w.dir, "PATH=" + os.Getenv("PATH"), "TMPDIR=" + w.dir, "TIDEMILL_TOKEN=" + w.tokens["operator"]}
	for _, name := range []string{"TIDEMILL_ONNXRUNTIME"} {
		if value := os.Getenv(name); value != "" {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// run runs a command to its end, and returns its output.
func (w *world) run(args ...string) string {
	w.Helper()
	var faults bytes.Buffer
	cmd := w.command(w.Context(), args...)
	cmd.Stderr = &faults
	out, err := cmd.Output()
	if err != nil {
		w.Fatalf("tidemill %s: %v\n%s", strings.Join(args, " "), err, faults.String())
	}
	return string(out)
}

// addressLine is a line of `tidemill up` with an address.
var addressLine = regexp.MustCompile(`^  (http|grpc|kafka|redis) +(\S+)$`)

func (w *world) start(flags []string) {
	w.Helper()
	args := append([]string{"up", "-f", "tidemill.yaml", "--data", "data", "--access", "access.yaml", "--kafka-port", "0", "--redis-port", "0",
		"--listen", "127.0.0.1:0", "--log", "debug"}, flags...)
	w.cmd = w.command(context.WithoutCancel(w.Context()), args...)
	w.log = filepath.Join(w.dir, "log")
	log, err := os.Create(w.log)
	if err != nil {
		w.Fatal(err)
	}
	defer log.Close()
	w.cmd.Stderr = log
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		w.Fatal(err)
	}
	if err := w.cmd.Start(); err != nil {
		w.Fatal(err)
	}
	ended := make(chan error, 1)
	up := make(chan struct{})
	go func() {
		defer close(up)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if m := addressLine.FindStringSubmatch(lines.Text()); m != nil {
				*map[string]*string{"http": &w.url, "kafka": &w.kafka, "redis": &w.redis, "grpc": &w.grpc}[m[1]] = m[2]
			}
			if strings.HasPrefix(lines.Text(), "Ctrl-C") {
				break
			}
		}
	}()
	w.Cleanup(func() { w.stop(ended) })
	select {
	case <-up:
	case <-time.After(startWithin):
	}
	go func() {
		_, _ = io.Copy(io.Discard, out)
		ended <- w.cmd.Wait()
	}()
	if w.url == "" || w.kafka == "" || w.redis == "" {
		w.Fatalf("tidemill up did not print its addresses:\n%s", w.logged())
	}
}

func (w *world) logged() string {
	text, _ := os.ReadFile(w.log) // an unreadable log is an empty one
	return string(text)
}

// crash matches the parts of a log that a panic leaves, also one that net/http recovers.
var crash = regexp.MustCompile(`(?m)^.*(panic|fatal error|runtime error|DATA RACE|goroutine \d+ \[).*$`)

// stop checks that the process is healthy, and ends it.
func (w *world) stop(ended chan error) {
	select {
	case err := <-ended:
		w.Errorf("the attack ended the process: %v\n%s", err, last(w.logged()))
	default:
		if !w.Failed() {
			w.healthy("at the end")
		}
		_ = w.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-ended:
			if err != nil {
				w.Errorf("after SIGTERM: %v\n%s", err, last(w.logged()))
			}
		case <-time.After(startWithin):
			_ = w.cmd.Process.Kill()
			w.Errorf("the process did not stop within %s of SIGTERM:\n%s", startWithin, last(w.logged()))
		}
	}
	if found := crash.FindString(w.logged()); found != "" {
		w.Errorf("the log has a panic: %s\n%s", found, last(w.logged()))
	}
}

// last returns the end of a log.
func last(log string) string {
	const shown = 4000
	return log[max(0, len(log)-shown):]
}

// healthy fails the test unless the process stores an event in the usual time.
func (w *world) healthy(when string) {
	w.Helper()
	began := time.Now()
	r := w.do(w.request(http.MethodPost, "/events", "{}", "publisher", "ce-specversion", "1.0", "ce-type", "note", "ce-source", "/attacks",
		"ce-id", fmt.Sprint(began.UnixNano()), "ce-subject", "bot-42", "content-type", "application/json"))
	if took := time.Since(began); r.status != http.StatusAccepted || took > healthyWithin {
		w.Errorf("%s: a healthy request got %d after %s: %s", when, r.status, took, r.body)
	}
}

// waitFor waits until a condition holds, and fails the test if that takes too long.
func (w *world) waitFor(is func() bool) {
	w.Helper()
	if !waits(startWithin, is) {
		w.Errorf("waited for %s in vain; the log ends with:\n%s", startWithin, last(w.logged()))
	}
}

// waits waits until a condition holds, for a limited time.
func waits(limit time.Duration, is func() bool) bool {
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for end := time.After(limit); !is(); {
		select {
		case <-look.C:
		case <-end:
			return false
		}
	}
	return true
}

// request returns a request with the token of a caller; no name means no token. The headers are pairs.
func (w *world) request(method, path, body, caller string, headers ...string) *http.Request {
	w.Helper()
	r, err := http.NewRequestWithContext(w.Context(), method, w.url+path, strings.NewReader(body))
	if errors.Is(w.Context().Err(), context.Canceled) { // in a cleanup
		r, err = http.NewRequest(method, w.url+path, strings.NewReader(body))
	}
	if err != nil {
		w.Fatal(err)
	}
	if caller != "" {
		r.Header.Set("Authorization", "Bearer "+cmp.Or(w.tokens[caller], caller))
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header[http.CanonicalHeaderKey(headers[i])] = append(r.Header[http.CanonicalHeaderKey(headers[i])], headers[i+1])
	}
	return r
}

// answer is the beginning of an answer.
type answer struct {
	path   string // path of the request
	status int
	header http.Header
	body   string
}

// answerShown is the number of bytes of an answer that are read. An answer may be endless.
const answerShown = 1 << 20

// do sends a request. A failure, such as a closed connection, has the status 0 and the error as its body.
func (w *world) do(r *http.Request) answer {
	w.Helper()
	res, err := w.client.Do(r)
	if err != nil {
		return answer{body: err.Error()}
	}
	defer res.Body.Close()
	a := answer{path: r.URL.Path, status: res.StatusCode, header: res.Header}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		return a
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, answerShown))
	if a.body = string(body); err != nil {
		a.body += "\n" + err.Error()
	}
	return a
}

// problem returns the problem document of a refusal. It fails the test if the answer has none, or if
// the document does not say what happened. Below /v2 the refusal has the form of the Open Inference Protocol.
func (w *world) problem(what string, a answer) api.Problem {
	w.Helper()
	var p api.Problem
	if a.path == "/v2" || strings.HasPrefix(a.path, "/v2/") {
		var f map[string]string
		if err := json.Unmarshal([]byte(a.body), &f); err != nil || f["error"] == "" || a.header.Get("Content-Type") != "application/json" {
			w.Errorf("%s: %d without the protocol's error: %v %.300q", what, a.status, err, a.body)
		}
		return api.Problem{Detail: f["error"], Status: a.status}
	}
	if err := json.Unmarshal([]byte(a.body), &p); err != nil || a.header.Get("Content-Type") != "application/problem+json" {
		w.Errorf("%s: %d without a problem document: %v %.300q", what, a.status, err, a.body)
		return p
	}
	if !strings.HasPrefix(p.Type, api.ProblemBase) || p.Title == "" || p.Detail == "" || p.Status != a.status {
		w.Errorf("%s: %d with a problem document that lacks something: %.300s", what, a.status, a.body)
	}
	return p
}
