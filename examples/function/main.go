// Function is a user's function: it turns orders into invoices. Its README says how to run it and
// how Tidemill calls it.
package main

import (
	"context"
	"log/slog"
	"os"

	"tidemill.dev/functions"
)

func main() {
	if err := functions.Serve(context.Background(), invoice); err != nil {
		slog.Error("function: stopped by an error", "reason", err)
		os.Exit(1)
	}
}
