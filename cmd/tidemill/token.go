package main

import (
	"strings"

	"tidemill.dev/config"
)

const (
	accessFile = "access.yaml"
	envAccess  = "TIDEMILL_ACCESS"
)

// accessFlag is where the tokens are.
type accessFlag struct{ file string }

func (a *accessFlag) flags(f *flagSet) {
	a.file = accessFile
	f.text(&a.file, "file", "", "FILE", "the access file")
	f.fromEnv("file", envAccess)
}

// several adds a flag whose values are separated by commas, and that may be
// given again.
func (f *flagSet) several(p *[]string, long, value, usage string) {
	f.each(long, value, usage, func(text string) error {
		for item := range strings.SplitSeq(text, ",") {
			*p = append(*p, strings.TrimSpace(item))
		}
		return nil
	})
}

// mayDo says what a token may do, for people.
func mayDo(t config.Token) string {
	text := strings.Join(t.Roles, ", ")
	for _, limit := range []struct {
		what     string
		patterns []string
	}{{"types", t.Types}, {"sources", t.Sources}, {"keys", t.Keys}} {
		if limit.patterns != nil {
			text += "; " + limit.what + " " + strings.Join(limit.patterns, ", ")
		}
	}
	return text
}
