package main

import "embed"

// scenarioFiles are in the program, so that it runs anywhere.
//
//go:embed scenarios/*.yaml
var scenarioFiles embed.FS
