package config

import (
	"slices"

	"go.yaml.in/yaml/v3"

	"tidemill.dev/config/spelling"
)

// Team is a group of callers that may operate some recipes for some keys, up to a priority. Its members have
// these rights besides those of their tokens and claims.
type Team struct {
	Name     string
	Keys     []string // patterns, as those of Rights; there is no team for all keys
	Recipes  []string // patterns of the recipes whose runs it may start, cancel and retry
	Priority int      // greatest priority that its members may give a run
	Tokens   []string // names of the members with a token
	Claims   []Claim  // members with a JWT: all whose claim is, or contains, a value
}

// Claim is a claim of a JWT, and the value that the claim is, or contains.
type Claim struct{ Name, Value string }

// MaxAskedPriority is the greatest priority that a request may give a run. The smallest is its negative.
const MaxAskedPriority = 1000

// TeamsOf returns the names of the teams that a token is a member of.
func (a *Access) TeamsOf(token string) (names []string) {
	for _, t := range a.Teams {
		if slices.Contains(t.Tokens, token) {
			names = append(names, t.Name)
		}
	}
	return names
}

func (a *Access) readTeams(v value) {
	for key, child := range v.pairs() {
		if !callerName.fits(key.Value) {
			child.problemAt(key, "a team's name is 1 to 100 letters, digits and . _ @ -, and begins with a letter or digit")
		}
		t := Team{Name: key.Value}
		given := child.presentFields(
			field{"keys", func(v value) { t.Keys = readRequiredPatterns(v) }},
			field{"recipes", func(v value) { t.Recipes = readRequiredPatterns(v) }},
			field{"priority", readInteger(&t.Priority, -MaxAskedPriority, MaxAskedPriority)},
			field{"members", func(v value) { t.readMembers(v, a) }},
		)
		child.require(key, given, "keys", `write the keys that it may operate, such as ["lab-*"]`)
		child.require(key, given, "recipes", `write the recipes that it may run, such as [intent, "vision-*"]`)
		child.require(key, given, "members", "write a list of names of tokens, and of {claim: groups, value: interns}")
		a.Teams = append(a.Teams, t)
	}
}

// readRequiredPatterns reads a list that must say what it allows.
func readRequiredPatterns(v value) []string {
	if v.node.Kind == yaml.SequenceNode && len(v.node.Content) == 0 {
		v.problem("is an empty list; write what the team may operate, or \"*\" for everything")
		return nil
	}
	return readPatterns(v, nil)
}

// readMembers needs the tokens and the issuer, so it runs after them.
func (t *Team) readMembers(v value, a *Access) {
	items := v.items()
	if v.node.Kind == yaml.SequenceNode && len(items) == 0 {
		v.problem("is an empty list; remove the team, or write its members")
	}
	for _, item := range items {
		if item.node.Kind == yaml.MappingNode {
			t.readClaim(item, a)
			continue
		}
		if name, ok := item.text(); ok {
			t.readToken(item, name, a)
		}
	}
}

func (t *Team) readToken(v value, name string, a *Access) {
	token, known := a.Token(name)
	switch {
	case !known:
		v.problem("there is no token %s%s", show(name), a.nearestToken(name))
	case slices.Contains(t.Tokens, name):
		v.problem("%s is a member already; remove one of the two", show(name))
	case slices.ContainsFunc(token.Roles, func(r string) bool { return r == "operate" || r == "approve" }):
		v.problem("the token %s may operate by its role already, and the limits of the team would not bind it: give the token the roles publish and read, or remove it here", show(name))
	default:
		t.Tokens = append(t.Tokens, name)
	}
}

func (a *Access) nearestToken(name string) string {
	var names []string
	for _, t := range a.Tokens {
		names = append(names, t.Name)
	}
	if near, ok := spelling.Nearest(name, names); ok {
		return "; did you mean " + show(near) + "?"
	}
	return "; make it with `tidemill token new`, or remove it here"
}

func (t *Team) readClaim(v value, a *Access) {
	var c Claim
	given := v.presentFields(
		field{"claim", func(v value) { c.Name, _ = v.text() }},
		field{"value", func(v value) { c.Value, _ = v.text() }},
	)
	v.require(v.node, given, "claim", "name the claim that makes a caller a member")
	v.require(v.node, given, "value", "write the value that the claim must be, or have")
	if a.OIDC == nil {
		v.problem("there is no oidc in this file, so no caller has a claim: write oidc too, or name tokens")
	}
	t.Claims = append(t.Claims, c)
}
