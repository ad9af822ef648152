package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRewrite(t *testing.T) {
	for from, want := range map[string]string{
		"package a\n\nimport \"time\"\n\nvar x, y = time.Now, time.Since(z.time.Now()).Seconds()\n": "package a; import simclock \"tidemill.dev/e2e/sim/clock\"\n\nimport \"time\"\n\nvar x, y = simclock.Now, simclock.Since(z.time.Now()).Seconds()\n\nvar _ time.Time\n",
		"package a\n\nimport \"time\"\n\nvar x = time.Unix(1, 0)\n":                                 "",
		"package a\n\nimport \"context\"\n\nvar x, _ = context.WithDeadline(ctx, at)\n":             "package a; import simclock \"tidemill.dev/e2e/sim/clock\"\n\nimport \"context\"\n\nvar x, _ = simclock.WithDeadline(ctx, at)\n\nvar _ context.Context\n",
	} {
		file := filepath.Join(t.TempDir(), "a.go")
		if err := os.WriteFile(file, []byte(from), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := rewrite(file); err != nil || got != want {
			t.Errorf("rewrite(%q) = %q, %v", from, got, err)
		}
	}
}
