// Command browser copies the install that the tests of this module show into a new folder, so that a
// person can look at it:
//
//	go run -C e2e/browser . /tmp/install && cd /tmp/install && tidemill up --data data
//
// The tests show the dashboard of such an install in Chromium. They have the build tag real. With
// TIDEMILL_SCREENSHOTS=FOLDER they write a picture of each page in light and dark. Those of TestRealPages that are in
// docs/images are copied there by hand, after a person has looked at them. With
// TIDEMILL_BROWSER_URL=http://127.0.0.1:8080 they show a gateway that runs already.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"tidemill.dev/e2e/browser/seed"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "browser:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("usage: go run -C e2e/browser . FOLDER, with a folder that does not exist")
	}
	from, err := seed.Folder(ctx, seed.Full)
	if err != nil {
		return err
	}
	to, err := filepath.Abs(args[0])
	if err != nil {
		return err
	}
	if err := seed.Copy(from, to); err != nil {
		return err
	}
	fmt.Printf("cd %s && tidemill up --data data\n", to)
	return nil
}
