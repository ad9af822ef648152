package config

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"tidemill.dev"
)

const (
	maxInputs = 100
	maxAllow  = 100
)

// readInputs reads the inputs by name. An input is a template of a dataset's name, or a mapping.
func (d *draft) readInputs(v value) (all []InputFrom) {
	for key, child := range v.pairs() {
		if err := tidemill.CheckLabel(key.Value); err != nil {
			child.problemAt(key, "an input's name %s", err)
		}
		if len(all) == maxInputs {
			child.problemAt(key, "is one input more than %d; one dataset may have many files", maxInputs)
			return all
		}
		in := InputFrom{Name: key.Value}
		in.read(child)
		if in.Outcomes != "" {
			d.later = append(d.later, func() { d.checkOutcomes(child.valueOf("outcomes"), in.Outcomes) })
		}
		all = append(all, in)
	}
	slices.SortFunc(all, func(a, b InputFrom) int { return strings.Compare(a.Name, b.Name) })
	return all
}

func (in *InputFrom) read(v value) {
	if v.node.Kind == yaml.ScalarNode && !isNull(v.node) {
		in.Dataset, in.Branch = readNameTemplate(v, "dataset"), MainBranch
		return
	}
	given := v.presentFields(
		field{"dataset", func(v value) { in.Dataset = readNameTemplate(v, "dataset") }},
		field{"branch", func(v value) { in.Branch = readBranch(v) }},
		field{"at", func(v value) { _, in.AtCause = v.oneOf("cause") }},
		field{"uri", func(v value) { in.URI = readURI(v) }},
		field{"allow", func(v value) { in.Allow = readAllow(v) }},
		field{"outcomes", func(v value) { in.Outcomes, _ = v.text() }},
		field{"last", readWait(&in.Last, minLabelWait, maxLabelWait)},
	)
	switch {
	case given["outcomes"]:
		in.checkLast(v, given)
	case given["last"]:
		v.valueOf("last").problem("is for outcomes; remove the key")
	case given["dataset"] && given["uri"]:
		v.problem("has a dataset and a uri; an input comes from one of them, keep one")
	case given["uri"]:
		in.checkURI(v, given)
	default:
		v.require(v.node, given, "dataset", "say where it comes from: the name of a dataset, such as \"bots/{key}\", or a uri that the event brings")
		in.checkDataset(v, given)
	}
}

// checkLast checks the keys of an input with outcomes.
func (in *InputFrom) checkLast(v value, given map[string]bool) {
	for _, key := range []string{"dataset", "branch", "at", "uri", "allow"} {
		if given[key] {
			v.valueOf(key).problem("does not go with outcomes; remove the key, or make it an input of its own")
		}
	}
	v.require(v.node, given, "last", "write how old the oldest outcome may be, such as 90d")
}

// checkOutcomes checks that an input reads the outcomes of a scorer that has some.
func (d *draft) checkOutcomes(v value, name string) {
	i := slices.IndexFunc(d.scorers, func(s Scorer) bool { return s.Name == name })
	switch {
	case i < 0:
		v.problem("there is no scorer %s; name one that has labels", show(name))
	case d.scorers[i].Labels == nil:
		v.problem("scorer %s has no labels, and so no outcomes; add labels to it", show(name))
	}
}

func (in *InputFrom) checkDataset(v value, given map[string]bool) {
	switch {
	case given["allow"]:
		v.child("allow", v.nodeAt("allow")).problem("is for a uri; remove the key")
	case given["branch"] && given["at"]:
		v.child("at", v.nodeAt("at")).problem("takes the commit that the newest cause names, on whatever branch; keep branch or at")
	case !in.AtCause && in.Branch == "":
		in.Branch = MainBranch
	}
}

func (in *InputFrom) checkURI(v value, given map[string]bool) {
	for _, key := range []string{"branch", "at"} {
		if given[key] {
			v.child(key, v.nodeAt(key)).problem("is for a dataset; remove the key")
		}
	}
	if given["allow"] || in.URI == "" {
		return
	}
	if in.Allow = literalOrigin(in.URI); in.Allow == nil {
		v.child("allow", v.node).problem("is missing; the publisher of the event chooses the uri, so list the allowed prefixes, such as [\"https://data.example/\"]")
	}
}

// literalOrigin returns the scheme and host that a template begins with, if no field can change
// them.
func literalOrigin(template string) []string {
	parts, _ := cutTemplate(template)
	if len(parts) == 0 || parts[0].field != "" {
		return nil
	}
	head := parts[0].text
	for _, scheme := range []string{schemeHTTPS, schemeHTTP} {
		rest, ok := strings.CutPrefix(head, scheme+"://")
		host, _, closed := strings.Cut(rest, "/")
		if origin := scheme + "://" + host + "/"; ok && closed && checkPrefix(origin) == nil {
			return []string{origin}
		}
	}
	return nil
}

// readURI reads a template over the newest cause.
func readURI(v value) string {
	text, ok := v.template(faultOfURI)
	switch {
	case !ok:
		return ""
	case len(text) > maxURL:
		v.problem("%s is longer than %d letters", show(text), maxURL)
		return ""
	}
	return text
}

// faultOfURI says why a field cannot be in a template over an event. Which attributes and data
// an event has is known only when it arrives.
func faultOfURI(field string) string {
	if attributeName.fits(field) && field != "data" || dataPath.MatchString(field) {
		return ""
	}
	return fmt.Sprintf("%s is not a field of an event; write {key}, {recipe}, an attribute such as {subject}, or {data.PATH}", show(field))
}

func readAllow(v value) (all []string) {
	items := v.items()
	switch {
	case v.node.Kind == yaml.SequenceNode && len(items) == 0:
		v.problem("is an empty list, which allows nothing; write what the uri may begin with, such as https://data.example/")
	case len(items) > maxAllow:
		v.problem("has more than %d beginnings; name longer ones in common", maxAllow)
		return nil
	}
	for _, item := range items {
		text, ok := item.text()
		if !ok {
			continue
		}
		if err := checkPrefix(text); err != nil {
			item.problem("%s %s", show(text), err)
			continue
		}
		all = append(all, text)
	}
	return all
}

// checkPrefix requires a complete host, because https://data.example without a slash at its end
// is also a prefix of https://data.example.evil.
func checkPrefix(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != schemeHTTP && u.Scheme != schemeHTTPS || u.Hostname() == "" || !goodPort(u):
		return errors.New("is not the beginning of a URL; write it like https://data.example/")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.ContainsAny(text, "?#\\ \t\n{}%"):
		return errors.New("is more than scheme, host and a plain path; write it like https://data.example/exports/")
	case u.Path == "":
		return errors.New("ends within the host, which could continue; end it with a /")
	case path.Clean(u.Path) != strings.TrimSuffix(u.Path, "/") && u.Path != "/":
		return errors.New("has a path with . or .. or // in it; write it plainly")
	}
	return nil
}

// CheckURI returns an error if a URI from an event must not be fetched.
func (in InputFrom) CheckURI(uri string) error {
	return tidemill.Input{Name: in.Name, Allow: in.Allow}.CheckURI(uri)
}
