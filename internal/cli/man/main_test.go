package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"tidemill.dev/internal/cli"
)

// Each command that help lists has a page with its summary and its examples.
func TestEachCommandHasAPage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	if err := run([]string{dir}); err != nil {
		t.Fatal(err)
	}
	var check func(c *cobra.Command)
	check = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "help" {
			return
		}
		page, err := os.ReadFile(filepath.Join(dir, strings.ReplaceAll(c.CommandPath(), " ", "-")+".1"))
		if err != nil {
			t.Error(err)
		}
		if !strings.Contains(string(page), ".SH SYNOPSIS") || c.Example != "" && !strings.Contains(string(page), ".SH EXAMPLE") {
			t.Errorf("the page of %s has no synopsis, or no examples:\n%s", c.CommandPath(), page)
		}
		for _, below := range c.Commands() {
			check(below)
		}
	}
	check(cli.Tree())
	if err := run(nil); err == nil {
		t.Error("no error without a folder")
	}
}
