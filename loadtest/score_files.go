package main

import "embed"

// scenarioFiles are embedded, so that the program runs from any folder.
//
//go:embed scenarios/*.yaml
var scenarioFiles embed.FS
