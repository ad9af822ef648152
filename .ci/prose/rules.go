package main

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// kind is where a clause was found.
type kind string

const (
	comment       kind = "comment"
	fieldComment  kind = "comment at a line's end"
	logMessage    kind = "log message"
	commandText   kind = "command text"
	summary       kind = "command summary"
	otherText     kind = "text" // errors, metrics' help
	documentation kind = "document"
)

// rule is a habit of language that costs a reader time.
type rule struct {
	name    string
	pattern *regexp.Regexp
	in      []kind // nil: everywhere
}

// Words that are rules for users' texts only: a reader of code may know them.
var (
	usersTexts = []kind{logMessage, commandText, summary, documentation}
	messages   = []kind{logMessage, commandText, summary}
)

const afterWho = `(is|are|was|were|has|have|had|comes?|goes|asks?|waits?|reads?|writes?|takes?|gives?|begins?|ends?|says?|it|there|they|we|` +
	`nobody|somebody|a|an|the|each|one|became|becomes|follows|stands|lies|else|must|may|can|cannot|does|did|belongs|came|remains|failed|to)`

func rules() []rule {
	return []rule{
		{name: "who or what as a noun", pattern: regexp.MustCompile(
			`(?i)(^|[.;:,(] |\b(and|but|or|for|of|to|by|from|with|than|until|while|as|is|are|has|in|on|at) )` +
				`(who|whoever|what|whose) ` + afterWho + `\b`)},
		{name: "whoever, nobody, somebody", pattern: regexp.MustCompile(`(?i)\b(nobody|somebody|anybody|everybody|whoever)\b`)},
		{name: "stands or lies for is", pattern: regexp.MustCompile(
			`(?i)\b(stands? (in|on|at|for|there|beside|behind|before)|lies? (in|on|at|beside|behind|beneath|there|where|further|between)|came? to lie)\b`)},
		{name: "behind for after, beside for next to", pattern: regexp.MustCompile(
			`(?i)\b(behind (the|it|them|what|its|all|that|a|an|each)|beside (it|them|the|each|that|an?))\b|\bbefore (it|them|that)([.;,:)]|$)`)},
		{name: "old idiom", pattern: regexp.MustCompile(
			`(?i)\b(anew|all the same|in vain|as good as|became of|come of|came of|once more|no more|(it|this|that|which) is no [a-z]+)\b|` +
				`\bof (its|their) own([.,;:)]|$| (and|or|as|in|for|to|at|with)\b)`)},
		{name: "tells or told for reports", pattern: regexp.MustCompile(
			`(?i)\b(tells? of|told of|is told|are told|has told|says? of|hears? of|has said|said so|tells? (apart|whether|how|what|which|that))\b`)},
		{name: "private word", in: usersTexts, pattern: regexp.MustCompile(
			`(?i)\b(absorbed|settling|keeper|the door|the wishes|a wish|wishes)\b`)},
		{name: "metaphor or idiom in a message", in: messages, pattern: regexp.MustCompile(
			`(?i)\b(doors?|what (speaks|comes|waits|failed)|(says?|begins?) so|those there are|(is|are) meant|counts by|mend(s|ed)?|` +
				`learnt|gently|so (many|long)|the first counts|goes? on|will do|goes past|(is|are) no [a-z]+)\b`)},
		{name: "a summary is a verb and its object", in: []kind{summary}, pattern: regexp.MustCompile(
			`(?i)^(the|a|an|all|what|which|who|whose|how|where|have|has|let)\b`)},
	}
}

var allRules = rules()

// normal are idioms of plain English that a pattern would find.
var normal = strings.NewReplacer(
	"here is no", "here is not any", "here are no", "here are not any", // after t or T
	"is no longer", "is not now", "are no longer", "are not now", "no more than", "at most",
	"of its own accord", "by itself", "once more than", "more often than",
)

// finding is a rule that a clause breaks, and its words that show it.
type finding struct{ rule, words string }

func findings(c clause) (all []finding) {
	text := normal.Replace(c.text)
	question := strings.HasSuffix(text, "?")
	for _, r := range allRules {
		if r.in != nil && !slices.Contains(r.in, c.kind) {
			continue
		}
		if question && r.name == "who or what as a noun" {
			continue // What is a gate?
		}
		if words := r.pattern.FindString(text); words != "" {
			all = append(all, finding{r.name, strings.TrimSpace(words)})
		}
	}
	if n := strings.Count(text, " ") + 1; n > maxWords && c.kind == documentation {
		all = append(all, finding{"more than 25 words", strconv.Itoa(n) + " words"})
	}
	return all
}

// maxWords is the length of a clause that documents may have. Comments may have
// more, because a clause there often quotes a formula or a list of names.
const maxWords = 25

// fragment is the beginning of a comment at a line's end that is not a noun phrase:
// "of those that wait" instead of "number of waiting runs".
var fragment = regexp.MustCompile(
	`^(of|that|what|who|whose|behind|by|from|in|to|with|without|until|since|for|at|on|so|or|as|where|how|which)\b`)

func isFragment(c clause) bool { return c.kind == fieldComment && fragment.MatchString(c.text) }
