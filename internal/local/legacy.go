package local

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// legacy is what a launcher leaves for its successor to end what is left of it,
// should it be killed.
type legacy struct {
	Cookie string `json:"cookie"`
	Engine string `json:"engine,omitempty"`
}

func legacyFile(dir string) string { return filepath.Join(dir, "launcher.json") }

// leave writes it. It is there before there is anything to end.
func (l legacy) leave(dir string) error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	draft := legacyFile(dir) + ".new"
	if err := os.WriteFile(draft, text, 0o600); err != nil {
		return err
	}
	return os.Rename(draft, legacyFile(dir))
}

// succeed ends what a killed predecessor has left running or lying.
func succeed(ctx context.Context, dir string) error {
	text, err := os.ReadFile(legacyFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var l legacy
	if json.Unmarshal(text, &l) == nil && l.Cookie != "" { // else it is of no use any more
		endAll(ctx, l)
	}
	return os.RemoveAll(filepath.Join(dir, workName))
}

// endAll ends every process and container that bears the cookie.
func endAll(ctx context.Context, l legacy) {
	endContainers(ctx, l.Engine, l.Cookie)
	for range sweepsAtMost {
		if sweep(l.Cookie, func(string, int) bool { return false }) == 0 {
			return
		}
	}
}

// sweepsAtMost bounds a chase after processes that start others.
const sweepsAtMost = 100
