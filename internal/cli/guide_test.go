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
)

// guides are the documents that are followed word for word, by tests of their
// own: TestDocumentsAreTrue leaves their commands to these.
var guides = []string{"docs/scoring.md", "docs/train.md", "examples/intents/README.md", "examples/stages/README.md"}

// guide is such a document: a shell runs its commands, in a folder as its reader
// has it, and finds this program as tidemill.
type guide struct {
	*testing.T
	dir    string // where the reader is
	bin    string
	data   string // of its tidemill up
	server *server
	blocks []block
	next   int
}

// openGuide opens a document of the repository at root, for a reader who is in the
// folder dir.
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
	// up takes free ports, for other tests run beside this one.
	script := fmt.Sprintf("#!/bin/sh\nif [ \"$1\" = up ]; then\n\tshift\n\tset -- up --kafka-port 0 --redis-port 0 --listen 127.0.0.1:0 \"$@\"\nfi\n%s=1 exec '%s' \"$@\"\n", asMain, os.Args[0])
	if err := os.WriteFile(filepath.Join(g.bin, "tidemill"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return g
}

// do follows the document to the end of its next block of commands, and returns
// what they print. Files on the way are left where it says.
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

// commands runs those of a block in a shell; what stays is left running.
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
	cmd.Env = append(os.Environ(), "PATH="+g.bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	return cmd
}

// up starts the document's tidemill up, and waits until it is found.
func (g *guide) up() {
	g.Helper()
	g.data = filepath.Join(g.dir, dataFolder)
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

// until waits as the reader does: until what a command prints has all of these.
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

// end says that all commands were followed.
func (g *guide) end() {
	g.Helper()
	for _, b := range g.blocks[g.next:] {
		if b.language == "sh" {
			g.Errorf("this was not followed:\n%s", b.text)
		}
	}
}

// repository is a folder with what the examples need of this one: that they are
// a module, and themselves.
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
