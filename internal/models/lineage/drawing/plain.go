package drawing

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"tidemill.dev/api"
)

// When formats a time for its reader.
type When func(time.Time) string

// plainLine returns a text on one line, without characters that control a terminal or that XML cannot
// hold.
func plainLine(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return '·'
		}
		return r
	}, strings.ToValidUTF8(text, "·"))
}

// clipText cuts a text that is too long for a drawing.
func clipText(text string, letters int) string {
	if utf8.RuneCountInString(text) <= letters {
		return text
	}
	return string([]rune(text)[:letters-1]) + "…"
}

const (
	longestPhrase   = 120
	longestSentence = 400
)

// phrases returns the texts about a node, without its name.
func phrases(n *api.GraphNode, when When) []string {
	var all []string
	if state := stateOf(n, when); state != "" {
		all = append(all, state)
	}
	for _, text := range n.Says {
		all = append(all, clipText(plainLine(text), longestPhrase))
	}
	return all
}

// stateOf returns a state with its time; a lasting state is shown with "since".
func stateOf(n *api.GraphNode, when When) string {
	state := plainLine(n.State)
	switch {
	case n.Time == nil:
		return state
	case state == "":
		return when(*n.Time)
	case lasts(n.State):
		return state + " since " + when(*n.Time)
	case n.State == "was champion":
		return state + " from " + when(*n.Time)
	}
	return state + " at " + when(*n.Time)
}

func lasts(state string) bool {
	switch state {
	case "champion", "pinned champion", "awaiting", "waiting", "running", "resting", "settling":
		return true
	}
	return false
}

// causeIs returns the text between an effect and its cause.
func causeIs(r api.GraphRelation) string {
	switch r {
	case api.EdgeAsked:
		return "requested by"
	case api.EdgeTaught:
		return "learnt from"
	case api.EdgeMade:
		return "made by"
	case api.EdgeCode:
		return "ran"
	case api.EdgeRan:
		return "on"
	case api.EdgeTold:
		return "describes"
	case api.EdgeCaused:
		return "caused by"
	case api.EdgeFollowed:
		return "follows"
	case api.EdgeRetried:
		return "a retry of"
	case api.EdgeBeside:
		return "also measured"
	case api.EdgeJudged:
		return "judged against"
	case api.EdgeScored:
		return "scored by"
	case api.EdgeReplaced:
		return "in place of"
	}
	return "because of"
}

// effectIs returns the text between a cause and its effect.
func effectIs(r api.GraphRelation) string {
	switch r {
	case api.EdgeTaught:
		return "used by"
	case api.EdgeTold:
		return "described by"
	case api.EdgeFollowed:
		return "followed by"
	case api.EdgeRetried:
		return "retried by"
	case api.EdgeBeside:
		return "also measured by"
	case api.EdgeJudged:
		return "the bar for"
	case api.EdgeReplaced:
		return "replaced by"
	}
	return plainLine(string(r))
}
