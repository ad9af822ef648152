// Command tidemill is Tidemill: one binary, whose commands are in internal/cli.
package main

import "tidemill.dev/internal/cli"

func main() { cli.Main() }
