//go:build unix

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The program itself, asked to leave as the agent asks it.
func TestTheProgramLeavesOnSIGTERM(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds a program")
	}
	bin := filepath.Join(t.TempDir(), "intents")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f := newRun(t, filepath.Join("data", "bot-shop"))
	var said bytes.Buffer
	cmd := exec.CommandContext(t.Context(), bin)
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.Env = []string{"TIDEMILL_IN=" + f.in, "TIDEMILL_OUT=" + f.out, "TIDEMILL_CHECKPOINT=" + f.checkpoint, "EPOCHS=100000000"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for begun := false; !begun; {
		data, err := os.ReadFile(filepath.Join(f.out, "metrics.jsonl"))
		begun = err == nil && len(data) > 0
		select {
		case <-t.Context().Done():
			t.Fatal("it never begins")
		case <-time.After(5 * time.Millisecond):
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(said.String(), "asked to leave; the checkpoint has what was learned") {
		t.Fatalf("%v: %s", err, &said)
	}
	if _, err := os.Stat(filepath.Join(f.checkpoint, checkpointFile)); err != nil {
		t.Error(err)
	}
}
