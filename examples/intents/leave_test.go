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

// asProgram makes the test binary run the trainer instead of the tests.
const asProgram = "TEST_AS_TRAINER"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// The agent asks the program to exit by SIGTERM.
func TestTheProgramLeavesOnSIGTERM(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f := newRun(t, filepath.Join("data", "bot-shop"))
	var said bytes.Buffer
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.Env = []string{"TIDEMILL_IN=" + f.in, "TIDEMILL_OUT=" + f.out, "TIDEMILL_CHECKPOINT=" + f.checkpoint, "EPOCHS=100000000", asProgram + "=yes"}
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
	if err := cmd.Wait(); err == nil || !strings.Contains(said.String(), "got SIGTERM; the checkpoint has the state") {
		t.Fatalf("%v: %s", err, &said)
	}
	if _, err := os.Stat(filepath.Join(f.checkpoint, checkpointFile)); err != nil {
		t.Error(err)
	}
}
