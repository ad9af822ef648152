package main

import (
	"errors"
	"strings"

	"tidemill.dev/internal/cesql"
	"tidemill.dev/triggers/match"
)

// parseFilter reads CloudEvents SQL once. Empty text is no filter, which is nil.
func parseFilter(text string) (*match.Filter, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	filter, err := match.Compile(text)
	if wrong, ok := errors.AsType[*cesql.SyntaxError](err); ok {
		return nil, usagef("--where, %v\n  %s\n  %s^", err, oneRow(text), strings.Repeat(" ", wrong.Column-1))
	}
	return filter, err
}

// oneRow keeps a text's letters where they are, for the mark below one of them.
func oneRow(text string) string {
	return strings.NewReplacer("\n", " ", "\r", " ", "\t", " ").Replace(text)
}
