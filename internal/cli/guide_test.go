//go:build slow && unix

package cli

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"tidemill.dev/config"
	"tidemill.dev/internal/cli/connect"
)

// guides are the documents with separate tests, which follow each document word for word.
// TestDocumentsAreTrue does not execute their commands. The test of docs/python.md is
// python/tests/sklearn/test_docs.py, and that of examples/libraries is python/tests/standard/example.py.
var guides = []string{"docs/drift.md", "docs/outcomes.md", "docs/python.md", "docs/rollouts.md", "docs/scoring.md", "docs/tabular.md", "docs/train.md", "docs/trials.md", "examples/intents/README.md",
	"examples/libraries/README.md", "examples/stages/README.md"}

// guide is one of these documents. A shell runs its commands, in the folder that its reader would
// have, and finds this program as tidemill.
type guide struct {
	*testing.T
	dir    string // current folder of the shell
	bin    string
	env    []string // more variables of the shell
	data   string   // data folder of its tidemill up
	server *server
	blocks []block
	next   int
}

// openGuide opens a document of this repository. Its commands begin in the folder dir.
func openGuide(t *testing.T, document, dir string) *guide {
	t.Helper()
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("no shell is here to follow it")
	}
	text, err := os.ReadFile(filepath.Join("..", "..", document))
	if err != nil {
		t.Fatal(err)
	}
	g := &guide{T: t, dir: dir, bin: t.TempDir(), blocks: blocksOf(string(text))}
	// up takes free ports, because other tests run at the same time.
	script := fmt.Sprintf("#!/bin/sh\nif [ \"$1\" = up ]; then\n\tshift\n\tset -- up --kafka-port 0 --redis-port 0 --listen 127.0.0.1:0 \"$@\"\nfi\n%s=1 exec '%s' \"$@\"\n", asMain, os.Args[0])
	if err := os.WriteFile(filepath.Join(g.bin, "tidemill"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return g
}

// do follows the document to the end of its next block of commands, and returns their output. It
// also writes the files on the way.
func (g *guide) do() string {
	g.Helper()
	for ; g.next < len(g.blocks); g.next++ {
		switch b := g.blocks[g.next]; {
		case b.file != "":
			leave(g.T, b.text, g.dir, b.file)
		case b.language == "yaml":
			if _, err := config.Parse("yaml", []byte(b.text)); err != nil {
				g.Errorf("%s\n%v", b.text, err)
			}
		case b.language == "sh":
			g.next++
			return g.commands(b.text)
		}
	}
	g.Fatal("the document has no more commands")
	return ""
}

// commands runs a block in a shell. It starts tidemill up in the background.
func (g *guide) commands(text string) string {
	g.Helper()
	var now []string
	stays := false
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "tidemill up" {
			stays = true
			continue
		}
		now = append(now, line)
	}
	out := g.shell(strings.Join(now, ""))
	where, err := os.ReadFile(filepath.Join(g.bin, "where"))
	if err != nil {
		g.Fatal(err)
	}
	g.dir = strings.TrimSpace(string(where))
	if stays {
		g.up()
	}
	return out
}

func (g *guide) shell(text string) string {
	g.Helper()
	cmd := g.command(g.Context(), "set -e\n"+text+"\npwd > '"+g.bin+"/where'\n")
	out, err := cmd.CombinedOutput()
	if err != nil {
		g.Fatalf("%s\n%v\n%s", text, err, out)
	}
	return string(out)
}

func (g *guide) command(ctx context.Context, text string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", text)
	cmd.Dir = g.dir
	cmd.Env = append(append(os.Environ(), "PATH="+g.bin+string(os.PathListSeparator)+os.Getenv("PATH")), g.env...)
	return cmd
}

// up starts the document's tidemill up, and waits until it answers.
func (g *guide) up() {
	g.Helper()
	g.data = filepath.Join(g.dir, connect.DataFolder)
	s := &server{dir: g.data, stdout: &syncBuffer{}, stderr: &syncBuffer{}, done: make(chan struct{})}
	s.child = g.command(context.Background(), "exec tidemill up")
	s.child.Stdout, s.child.Stderr = s.stdout, s.stderr
	s.stop = func() { _ = s.child.Process.Signal(syscall.SIGINT) }
	if err := s.child.Start(); err != nil {
		g.Fatal(err)
	}
	go func() {
		defer close(s.done)
		s.err = s.child.Wait()
	}()
	s.await(g.T)
	g.server = s
	g.Cleanup(func() {
		if g.Failed() {
			g.Logf("tidemill up said\n%s%s", s.stdout, s.stderr)
		}
	})
}

// until polls a command until its output has all the wanted texts, as the reader would.
func (g *guide) until(command string, want ...string) string {
	g.Helper()
	ctx, cancel := context.WithTimeout(g.Context(), patience)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		o := call(g.T, "", append(strings.Fields(command), "--data", g.data)...)
		if o.code == 0 && !slices.ContainsFunc(want, func(w string) bool { return !strings.Contains(o.out, w) }) {
			return o.out
		}
		select {
		case <-ctx.Done():
			g.Fatalf("tidemill %s does not come to say %q:\n%s%s", command, want, o.out, o.err)
		case <-tick.C:
		}
	}
}

// end checks that all commands were followed.
func (g *guide) end() {
	g.Helper()
	for _, b := range g.blocks[g.next:] {
		if b.language == "sh" {
			g.Errorf("this was not followed:\n%s", b.text)
		}
	}
}

// repository makes a folder with the examples and this module's go.mod and go.sum.
func repository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join("..", "..", name))
		if err != nil {
			t.Fatal(err)
		}
		leave(t, string(data), dir, name)
	}
	if err := os.CopyFS(filepath.Join(dir, "examples"), os.DirFS(filepath.Join("..", "..", "examples"))); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestDemo(t *testing.T) {
	t.Parallel()
	child := exec.CommandContext(t.Context(), os.Args[0], "demo") // demo limits its own time
	child.Env = append(os.Environ(), asMain+"=1")
	printed, err := child.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, printed)
	}
	mention(t, "demo", string(printed), "new-data", "bot-created", "bot-deleted", "bot-renamed", "202, messages/", "hello, is this the printer?", "dead-letters", "because:", "5 of 5 events arrived",
		"gateway  http://127.0.0.1:", "202, events/", "The first of them again",
		"intent/bot-1@1 promoted", "intent/bot-2@1 promoted", "intent/bot-3@1 refused", "intent/bot-1@2 promoted", "intent/bot-1@3 refused", "The champion at that time, version 2, on the same data",
		"intent/bot-1 has version 1 as its champion, previously version 2", "The origin of version 2:", "bots/bot-1",
		"version 2 has taken over", "messages answered, each once and in order", "lost: 0, answered twice: 0", "answered like this?", "scored by model intent/bot-1@2", "Nothing was lost")
}
