// Command fetch gets what the tests on real servers and other languages' libraries
// need from registries, so that none of them has to: .ci/real-servers-install.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"tidemill.dev/internal/realservers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := realservers.Fetch(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "fetch:", err)
		os.Exit(1)
	}
}
