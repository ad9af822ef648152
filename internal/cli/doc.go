// Package cli is the tidemill binary. It has the commands that start processes or write files on this machine, and
// joins them with those of internal/cli/remote. It may import all other packages; only cmd/tidemill imports it.
package cli
