// Command fetch downloads the servers and libraries that the tests with real servers need, so no
// test has to download them itself. .ci/real-servers-install runs it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"tidemill.dev/broker/brokertest/realservers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := realservers.Fetch(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "fetch:", err)
		os.Exit(1)
	}
}
