//go:build slow

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/cli/connect"
	"tidemill.dev/internal/platform"
	"tidemill.dev/triggers/deadletters"
)

// The test executes every YAML and every command in the documents, each document in its own folder
// with its own `tidemill up`, so that the documents stay correct.
//
// The language of a block says how: sh is executed line by line; yaml is parsed as a config and
// written to tidemill.yaml. A block with file=NAME is written to that file, for later commands.

func TestDocumentsAreTrue(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	examples, err := filepath.Glob(filepath.Join(root, "examples", "*", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	runbooks, err := filepath.Glob(filepath.Join(root, "docs", "runbooks", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	files = append(append(files, examples...), runbooks...)
	targets := makeTargets(t, filepath.Join(root, "Makefile"))
	for _, file := range append(files, filepath.Join(root, "README.md"), filepath.Join(root, "CONTRIBUTING.md")) {
		name, _ := filepath.Rel(root, file)
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			t.Chdir(t.TempDir())
			d := document{root: root, targets: targets}
			d.checkLinks(t, filepath.Dir(file), string(text))
			if slices.Contains(guides, filepath.ToSlash(name)) {
				return
			}
			for _, b := range blocksOf(string(text)) {
				d.check(t, b)
			}
		})
	}
}

// document is the state while the blocks of one document are executed.
type document struct {
	root    string
	targets []string
	up      bool
	url     string            // URL of its gateway
	changed bool              // whether the config has changed since up applied it
	letters int               // number of dead letters that were written for it
	ports   map[string]string // port in the document, to the port of its program here
	port    string            // port in the document of the next program
}

func (d *document) check(t *testing.T, b block) {
	for told, here := range d.ports {
		b.text = strings.ReplaceAll(b.text, "127.0.0.1:"+told, "127.0.0.1:"+here)
	}
	switch {
	case b.file != "":
		writeFile(t, b.file, b.text)
	case b.language == "yaml":
		if _, err := config.Parse("yaml", []byte(b.text)); err != nil {
			t.Errorf("%s\n%v", b.text, err)
		}
		writeFile(t, "tidemill.yaml", b.text)
		d.changed = d.up
	case b.language == "sh":
		text := strings.ReplaceAll(b.text, "\\\n", "")
		for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
			for _, command := range strings.Split(line, " && ") {
				d.command(t, words(command, d.variable(t)))
			}
		}
	}
}

// notOurs are programs in the documents that are not executed here. e2e/peers runs the publishers
// in other languages.
var notOurs = []string{"export", "kafka-acls", "kafka-consumer-groups", "go", "pip", "python3", "jupyter", "npm", "node", "kubectl", "helm"}

// variable returns the environment variables of the documents. Their tidemill up needs no token.
func (d *document) variable(t *testing.T) func(string) (string, bool) {
	return func(name string) (string, bool) {
		switch name {
		case connect.EnvURL:
			d.start(t)
			return d.url, true
		case connect.EnvToken:
			return "", true
		case "ID":
			return d.letter(t), true
		case "RUN":
			return d.run(t), true
		case "MODEL":
			return d.model(t), true
		}
		return "", false
	}
}

// letter writes a dead letter of the document's trigger, waits until the gateway lists it, and
// returns its id. It is the value of $ID in a document.
func (d *document) letter(t *testing.T) string {
	d.start(t)
	running, _, err := platform.Find(connect.DataFolder)
	if err != nil {
		t.Fatal(err)
	}
	names, err := tidemill.NewNames(running.Name)
	if err != nil {
		t.Fatal(err)
	}
	kafka, _ := platform.EmbeddedSecurity(connect.DataFolder)
	b, err := broker.Open(t.Context(), broker.Options{Addr: running.Kafka, Names: names, Security: kafka})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	p, err := b.Producer(broker.ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(t.Context())
	d.letters++
	original := broker.View{ID: fmt.Sprint(d.letters), Source: "/docs", Type: "bot-created", Subject: fmt.Sprint("bot-", d.letters)}
	v, err := deadletters.New(names, broker.Position{Stream: "events", Offset: int64(d.letters)}, &original, deadletters.Details{Trigger: "tell-crm", Reason: "timeout"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Publish(t.Context(), tidemill.StreamDeadLetters, &v); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return call(t, "", "dl", "show", v.ID).code == 0 })
	return v.ID
}

// run returns the id of the document's newest run. It is the value of $RUN.
func (d *document) run(t *testing.T) string {
	d.start(t)
	var all api.Runs
	if err := json.Unmarshal([]byte(call(t, "", "runs", "-o", "json").out), &all); err != nil || len(all.Runs) == 0 {
		t.Fatalf("a document says $RUN, and has started none: %v", err)
	}
	return all.Runs[0].ID // the newest run
}

// model returns the name of the document's model, after all runs have ended and all versions are
// judged. It is the value of $MODEL.
func (d *document) model(t *testing.T) (name string) {
	d.start(t)
	eventually(t, func() bool {
		var runs api.Runs
		var models api.Models
		if json.Unmarshal([]byte(call(t, "", "runs", "-o", "json").out), &runs) != nil || json.Unmarshal([]byte(call(t, "", "models", "-o", "json").out), &models) != nil || len(models.Models) != 1 {
			return false
		}
		name = models.Models[0].Name
		return models.Models[0].Newest == len(runs.Runs) && models.Models[0].State != tidemill.VersionRegistered
	})
	return name
}

func (d *document) command(t *testing.T, args []string) {
	switch {
	case len(args) == 2 && args[0] == "export" && strings.HasPrefix(args[1], "PORT="):
		d.port = strings.TrimPrefix(args[1], "PORT=")
	case len(args) == 3 && args[0] == "go" && args[1] == "run" && strings.HasPrefix(args[2], "./examples/"):
		d.program(t, args[2])
	case len(args) == 2 && args[0] == "cd":
		t.Chdir(args[1])
	case len(args) == 0 || slices.Contains(notOurs, args[0]):
	case args[0] == "make":
		for _, target := range args[1:] {
			if !strings.Contains(target, "=") && !slices.Contains(d.targets, target) {
				t.Errorf("make %s: there is no such target", target)
			}
		}
	case args[0] == "tidemill" && len(args) > 1:
		d.tidemill(t, args[1:])
	case args[0] == "curl":
		d.curl(t, args[1:])
	default:
		t.Errorf("%q: a document names a program that this test does not know", args)
	}
}

var functionAt = regexp.MustCompile(`function: ready"? to=\S*:(\d+)`)

// program builds and starts a program of this repository, on a free port instead of the document's.
// It stops the program at the end of the document's test.
func (d *document) program(t *testing.T, name string) {
	binary := filepath.Join(t.TempDir(), "program")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, name)
	build.Dir = d.root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v\n%s", name, err, out)
	}
	running, stderr := exec.Command(binary), new(syncBuffer)
	running.Env, running.Stderr = append(os.Environ(), "PORT=0"), stderr
	if err := running.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = running.Process.Signal(os.Interrupt)
		if err := running.Wait(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, stderr)
		}
	})
	eventually(t, func() bool {
		at := functionAt.FindStringSubmatch(stderr.String())
		if at != nil {
			d.ports = map[string]string{d.port: at[1]}
		}
		return at != nil
	})
}

// curl runs the real curl, and the test fails if the answer is an error. The usual address in the
// documents is replaced by the one of this test.
func (d *document) curl(t *testing.T, args []string) {
	d.start(t)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "http://"+connect.ListenAt, d.url)
		if reference.MatchString(args[i]) {
			t.Logf("not run, for only its reader knows %s", args[i])
			return
		}
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Logf("not run, for there is no curl: curl %s", strings.Join(args, " "))
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "curl", append(args, "--fail-with-body", "--noproxy", "*")...).CombinedOutput(); err != nil {
		t.Errorf("curl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// tidemill runs a command. A command that does not end or that names a server of the example domain
// is only parsed.
func (d *document) tidemill(t *testing.T, args []string) {
	called, err := parse(args, os.Getenv)
	if err != nil {
		t.Errorf("tidemill %s: %v", strings.Join(args, " "), err)
		return
	}
	name := called.name
	if name == "up" || name == "serve" || slices.Contains(args, "--watch") || strings.Contains(strings.Join(args, " "), ".example") {
		return
	}
	if name != "init" { // which may make the folder that up is started in
		d.start(t)
	}
	if name == "dead-letters replay" {
		args = append(args, "--no-wait") // no test waits for receipts
	}
	var out, errs syncBuffer
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := run(ctx, args, strings.NewReader(""), &out, &errs); err != nil {
		t.Errorf("tidemill %s: %v\n%s%s", strings.Join(args, " "), err, &out, &errs)
	}
	if out.String()+errs.String() == "" && args[0] != "tail" {
		t.Errorf("tidemill %s prints nothing", strings.Join(args, " "))
	}
}

// start starts the document's `tidemill up` once and waits until it has printed its addresses. If
// the document has changed the config since then, it waits until the change is applied.
func (d *document) start(t *testing.T) {
	if d.up {
		if d.changed {
			d.apply(t)
		}
		return
	}
	d.up = true
	ctx, stop := context.WithCancel(t.Context())
	told, ended := newFirstLine(), make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"up", "--kafka-port", "0", "--redis-port", "0", "--listen", "127.0.0.1:0"}, strings.NewReader(""), told, io.Discard)
		close(ended)
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("tidemill up: %v", err)
		}
	})
	select {
	case <-told.written:
	case err := <-ended:
		t.Fatalf("tidemill up: %v", err)
	}
	running, _, err := platform.Find(connect.DataFolder)
	if err != nil {
		t.Fatal(err)
	}
	d.url = running.URL
}

func (d *document) apply(t *testing.T) {
	d.changed = false
	var asItIs connect.Connection
	c, err := asItIs.Source().Load()
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		res, err := http.Get(d.url + "/readyz")
		if err != nil {
			return false
		}
		defer res.Body.Close()
		says, err := io.ReadAll(res.Body)
		return err == nil && strings.Contains(string(says), `"`+c.Hash()+`"`)
	})
}

var link = regexp.MustCompile(`\]\(([^)#]+)\)`)

func (d *document) checkLinks(t *testing.T, from, text string) {
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		if strings.Contains(m[1], "://") {
			continue
		}
		if _, err := os.Stat(filepath.Join(from, m[1])); err != nil {
			t.Errorf("a link leads nowhere: %s", m[1])
		}
	}
}

func makeTargets(t *testing.T, makefile string) []string {
	text, err := os.ReadFile(makefile)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, m := range regexp.MustCompile(`(?m)^([a-z-]+):`).FindAllStringSubmatch(string(text), -1) {
		all = append(all, m[1])
	}
	return all
}

func writeFile(t *testing.T, name, text string) {
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

var reference = regexp.MustCompile(`\$\{?([A-Z_]+)\}?`)

// words splits a line as a shell does, as far as the documents need it: quotes, comments, and known
// variables.
func words(line string, variable func(string) (string, bool)) []string {
	var all []string
	var word, part strings.Builder
	quote, open := rune(0), false
	end := func(literal bool) { // ends a part of a word
		text := part.String()
		if !literal {
			text = reference.ReplaceAllStringFunc(text, func(r string) string {
				if value, ok := variable(reference.FindStringSubmatch(r)[1]); ok {
					return value
				}
				return r
			})
		}
		word.WriteString(text)
		part.Reset()
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			end(quote == '\'')
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			end(false)
			quote, open = r, true
		case quote == 0 && r == '#' && !open:
			return all
		case quote == 0 && r == ' ':
			end(false)
			if open {
				all = append(all, word.String())
			}
			word.Reset()
			open = false
		default:
			part.WriteRune(r)
			open = true
		}
	}
	end(false)
	if open {
		all = append(all, word.String())
	}
	return all
}

func TestWords(t *testing.T) {
	t.Parallel()
	known := func(name string) (string, bool) { return "http://up", name == connect.EnvURL }
	for line, want := range map[string][]string{
		`curl -i "$TIDEMILL_URL/events" -H 'ce-id: 1'`: {"curl", "-i", "http://up/events", "-H", "ce-id: 1"},
		`curl ${TIDEMILL_URL}/x '$TIDEMILL_URL' $PATH`: {"curl", "http://up/x", "$TIDEMILL_URL", "$PATH"},
		`a 'b  c'"d" ''  # e`:                          {"a", "b  cd", ""},
		``:                                             nil,
	} {
		if got := words(line, known); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// The next steps that up prints work without a change.
func TestNextStepsWork(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := startUp(t, dir)
	eventually(t, func() bool { return strings.Contains(s.stdout.String(), "Ctrl-C stops it.") })
	_, steps, _ := strings.Cut(s.stdout.String(), "In another terminal:\n")
	steps, _, _ = strings.Cut(steps, "\n\n")
	ran := 0
	for line := range strings.Lines(steps) {
		args := shellWords(t, strings.TrimSpace(line))
		switch args[0] {
		case "tidemill":
			if args[1] == "tail" {
				args = append(args, "--from", "beginning", "--no-follow")
			}
			ok(t, args[1:]...)
		case "curl":
			(&document{up: true, url: s.URL}).curl(t, args[1:])
		}
		ran++
	}
	if ran != 3 {
		t.Errorf("it tells %d steps:\n%s", ran, s.stdout)
	}
}
