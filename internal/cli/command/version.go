package command

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
)

// VersionCommand shows the build.
func VersionCommand() Command {
	return Command{
		Name:    "version",
		Summary: "show the version of this program",
		Examples: []Example{
			{"tidemill version", "a line"},
			{"tidemill version -o json", "for a script"},
		},
		Make: func() Program { return &version{} },
	}
}

type version struct{ output string }

func (v *version) Flags(f *FlagSet) {
	f.Format(&v.output, "text or json")
}

// Build is the build information of this binary.
type Build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// ThisBuild returns the build information of this binary.
func ThisBuild() Build {
	b := Build{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
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

func (v *version) Run(_ context.Context, s *Session, _ []string) error {
	b := ThisBuild()
	if v.output == "json" {
		return json.NewEncoder(s.Stdout).Encode(b)
	}
	changed := ""
	if b.Modified {
		changed = ", with local changes"
	}
	revision := ""
	if b.Revision != "" {
		revision = " (" + b.Revision[:min(12, len(b.Revision))] + changed + ")"
	}
	_, err := fmt.Fprintf(s.Stdout, "tidemill %s%s, %s, %s\n", b.Version, revision, b.Go, b.Platform)
	return err
}
