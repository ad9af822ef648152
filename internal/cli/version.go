package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
)

func versionCommand() command {
	return command{
		name:    "version",
		summary: "show the version of this program",
		examples: []example{
			{"tidemill version", "a line"},
			{"tidemill version -o json", "for a script"},
		},
		make: func() program { return &version{output: "text"} },
	}
}

type version struct{ output string }

func (v *version) flags(f *flagSet) {
	f.text(&v.output, "output", "o", "FORMAT", "text or json")
}

func (v *version) accept(positional []string) error {
	if err := checkOutput(v.output); err != nil {
		return err
	}
	return wants(positional)
}

// build is the build information of this binary.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func thisBuild() build {
	b := build{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

func (v *version) run(_ context.Context, s *session, _ []string) error {
	b := thisBuild()
	if v.output == "json" {
		return json.NewEncoder(s.stdout).Encode(b)
	}
	changed := ""
	if b.Modified {
		changed = ", with local changes"
	}
	revision := ""
	if b.Revision != "" {
		revision = " (" + b.Revision[:min(12, len(b.Revision))] + changed + ")"
	}
	_, err := fmt.Fprintf(s.stdout, "tidemill %s%s, %s, %s\n", b.Version, revision, b.Go, b.Platform)
	return err
}
