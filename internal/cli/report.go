package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"tidemill.dev/api"
	"tidemill.dev/config/spelling"
)

const (
	exitFailed = 1
	exitUsage  = 2
)

// errReported is returned if the command has already printed its errors.
var errReported = errors.New("failed; the reasons have been printed")

// report prints an error and returns the exit status.
func report(stderr io.Writer, err error) int {
	var usage *usageError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errReported):
		return exitFailed
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "tidemill: %v\n", err)
		return exitUsage
	}
	fmt.Fprintf(stderr, "tidemill: %s%s\n", explainError(err), hint(err))
	return exitFailed
}

// hint adds what a gateway does not know: how a command gets a token.
func hint(err error) string {
	var p *api.Problem
	if errors.As(err, &p) && p.Type == api.ProblemBase+api.Unauthenticated {
		return "; give a valid one by " + envToken + " or --token-file"
	}
	return ""
}

// explainError returns the text of an error for a user of the command line. Only Ctrl-C and SIGTERM
// cancel the context of a command, and a gateway's own text never has this error in it.
func explainError(err error) string {
	text := strings.ReplaceAll(err.Error(), context.Canceled.Error(), "interrupted")
	if errors.As(err, new(*api.Problem)) {
		text = namingCommands(text)
	}
	return text
}

// routes are the routes that problems of a gateway name, each with the command that shows the same.
// The longer of two routes with the same beginning is first.
var routes = []struct{ route, command string }{
	{`/model\?model=([^\s;,)]+)`, "tidemill models show $1"},
	{`/models`, "tidemill models"},
	{`/model`, "tidemill models show MODEL"},
	{`/dead-letters/\{id\}`, "tidemill dl show ID"},
	{`/dead-letters`, "tidemill dl"},
	{`/data/datasets`, "tidemill data ls"},
	{`/(runs|recipes|pools|triggers|schedules|scorers)`, "tidemill $1"},
}

// namingCommands replaces the routes in a gateway's text with commands, because a gateway writes for
// callers of HTTP.
func namingCommands(text string) string {
	if !strings.Contains(text, "GET /api/v1/") {
		return text
	}
	for _, r := range routes {
		text = regexp.MustCompile(`GET /api/v1`+r.route).ReplaceAllString(text, r.command)
	}
	return text
}

// didYouMean suggests the known word that is nearest; empty if none is near.
func didYouMean(word string, known []string) string {
	if n, ok := nearest(word, known); ok {
		return " did you mean " + n + "?"
	}
	return ""
}

// nearest returns the known word that was probably meant: one that begins with the word, or one of
// which at most a third of the letters differ.
func nearest(word string, known []string) (string, bool) {
	if i := slices.IndexFunc(known, func(k string) bool { return len(word) > 1 && strings.HasPrefix(k, word) }); i >= 0 {
		return known[i], true
	}
	return spelling.Nearest(word, known)
}
