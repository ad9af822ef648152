package cli

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"tidemill.dev/api"
)

var quotedRoute = regexp.MustCompile(`"[^"\n]*GET /api/v1[^"\n]*"`)

// Every route that a text of the gateway names has a command.
func TestProblemsNameCommands(t *testing.T) {
	t.Parallel()
	found := 0
	err := filepath.WalkDir("../gateway", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, line := range quotedRoute.FindAllString(string(text), -1) {
			found++
			if told := namingCommands(line); strings.Contains(told, "/api/v1") || !strings.Contains(told, "tidemill ") {
				t.Errorf("%s: %s", path, told)
			}
		}
		return err
	})
	if err != nil || found < 10 {
		t.Errorf("%d texts, %v", found, err)
	}
}

func TestErrorsForTheCommandLine(t *testing.T) {
	t.Parallel()
	problem := func(detail string) error { return fmt.Errorf("show: %w", &api.Problem{Detail: detail}) }
	for want, err := range map[string]error{
		"show: no model; tidemill models lists the models":               problem("no model; GET /api/v1/models lists the models"),
		"show: no version; tidemill models show intent/a lists versions": problem("no version; GET /api/v1/model?model=intent/a lists versions"),
		"list the runs: interrupted":                                     fmt.Errorf("list the runs: %w", context.Canceled),
	} {
		if got := explainError(err); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
