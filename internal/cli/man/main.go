// Command man writes the man pages of tidemill, one for each command, into a folder.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra/doc"

	"tidemill.dev/internal/cli"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("give one folder for the pages, not %d arguments", len(args))
	}
	if err := os.MkdirAll(args[0], 0o755); err != nil {
		return err
	}
	root := cli.Tree()
	root.DisableAutoGenTag = true // the same commands make the same pages
	return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "Tidemill", Manual: "Tidemill"}, args[0])
}
