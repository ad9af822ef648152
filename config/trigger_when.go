package config

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"tidemill.dev"
	"tidemill.dev/config/cesql"
	"tidemill.dev/config/spelling"
)

const (
	maxFilters = 100 // filters of one trigger
	maxTypes   = 100 // types of one filter
)

// readWhens reads one filter or a list of them.
func (d *draft) readWhens(v value) []When {
	if v.node.Kind != yaml.SequenceNode {
		return []When{d.readWhen(v)}
	}
	items := v.items()
	switch {
	case len(items) == 0:
		v.problem("is an empty list, which matches nothing; write filters such as {type: order-paid}")
	case len(items) > maxFilters:
		v.problem("has more than %d filters; one of them may have several types, and OR in its where", maxFilters)
		return nil
	}
	var all []When
	for _, item := range items {
		all = append(all, d.readWhen(item))
	}
	return all
}

func (d *draft) readWhen(v value) When {
	var (
		w     When
		types []value
	)
	given := v.presentFields(d.filterFields(&w, &types)...)
	if !given["stream"] {
		v.require(v.node, given, "type", "name one or more types of events, or the stream all of whose events it gets")
	}
	w.check(types, given["stream"])
	return w
}

// filterFields are the fields of a filter. They also collect the places of its types.
func (d *draft) filterFields(w *When, types *[]value) []field {
	return []field{
		{"stream", func(v value) { w.Stream = d.readSource(v) }},
		{"type", func(v value) { w.Types, *types = readFilterTypes(v) }},
		{"where", func(v value) { w.Where = readWhere(v) }},
	}
}

func (w *When) check(types []value, streamGiven bool) {
	for _, typ := range types {
		typ.checkHome(w.Stream, streamGiven)
	}
	slices.Sort(w.Types)
}

// readSource reads the name of a stream, which may be defined in another file.
func (d *draft) readSource(v value) string {
	name, ok := v.text()
	if !ok {
		return ""
	}
	if of, parked := tidemill.CutParked(name); parked {
		v.problem("%s has events that wait for subscribers; a trigger on it would deliver them twice: name %s", show(name), show(of))
		return ""
	}
	if name == tidemill.StreamClock {
		v.problem("%s has only the progress of the schedules; their ticks are events of type %s", show(name), tidemill.TypeScheduleTick)
		return ""
	}
	if name == tidemill.StreamGroupOffsets {
		v.problem("%s has only the progress of consumer groups; no trigger gets it", show(name))
		return ""
	}
	d.later = append(d.later, func() { d.checkSource(v, name) })
	return name
}

func (d *draft) checkSource(v value, name string) {
	if _, ok := d.streams[name]; ok {
		return
	}
	var known []string
	for s := range d.streams {
		known = append(known, s)
	}
	slices.Sort(known)
	if near, ok := spelling.Nearest(name, known); ok {
		v.problem("there is no stream %s; did you mean %q?", show(name), near)
		return
	}
	v.problem("there is no stream %s; write it under streams, or name an existing stream", show(name))
}

// readFilterTypes reads one type or a list of them, and the place of each.
func readFilterTypes(v value) (types []string, at []value) {
	items := []value{v}
	if v.node.Kind == yaml.SequenceNode {
		items = v.items()
	}
	switch {
	case len(items) == 0:
		v.problem("is an empty list; name types, or remove the key to get every type of a stream")
	case len(items) > maxTypes:
		v.problem("has more than %d types; name the stream and compare the type in where", maxTypes)
		return nil, nil
	}
	for _, item := range items {
		typ, ok := readFilterType(item)
		switch {
		case !ok:
		case slices.Contains(types, typ):
			item.problem("%s appears twice; keep one", show(typ))
		default:
			types, at = append(types, typ), append(at, item)
		}
	}
	return types, at
}

// readFilterType reads a type for which events can exist.
func readFilterType(v value) (string, bool) {
	typ, ok := v.text()
	switch {
	case !ok:
		return "", false
	case len(typ) > maxType:
		v.problem("%s is longer than %d letters", show(typ), maxType)
		return "", false
	case strings.ContainsAny(typ, " \t\n"):
		v.problem("%s has a space; a type is one word", show(typ))
		return "", false
	case !tidemill.ReservedType(typ):
		return typ, true
	}
	if _, ok := tidemill.Lookup(typ); !ok {
		v.problem("%s", unknownType(typ))
		return "", false
	}
	if isBookkeeping(typ) {
		v.problem("%s is internal to Tidemill, and no trigger gets it", show(typ))
		return "", false
	}
	return typ, true
}

// isBookkeeping reports whether only the writer of a type understands it.
func isBookkeeping(typ string) bool {
	switch typ {
	case tidemill.TypeParkedBegun, tidemill.TypeParkedSettled, tidemill.TypeClockMarked, tidemill.TypeScorerReturned, tidemill.TypeGroupRecorded:
		return true
	}
	return false
}

// unknownType suggests one of Tidemill's types for a type that does not exist.
func unknownType(typ string) string {
	var known []string
	for _, e := range tidemill.Catalogue() {
		if e.Ours && !isBookkeeping(e.Type) {
			known = append(known, e.Type)
		}
	}
	if near, ok := spelling.Nearest(typ, known); ok {
		return show(typ) + " is not a type of Tidemill; did you mean " + show(near) + "?"
	}
	return show(typ) + " is not a type of Tidemill, and no other type may begin with tidemill.; the types: " + strings.Join(known, ", ")
}

// checkHome checks that one of Tidemill's types can be on the stream of its filter.
func (v value) checkHome(stream string, given bool) {
	typ := v.node.Value
	e, _ := tidemill.Lookup(typ)
	switch {
	case !tidemill.ReservedType(typ):
	case e.Stream == "" && !given:
		v.problem("%s has no fixed stream, because each scorer names one; name that one with stream", show(typ))
	case e.Stream != "" && e.Stream != cmp.Or(stream, e.Stream):
		v.problem("%s is only on the stream %s; remove stream, or write a separate filter for this type", show(typ), e.Stream)
	}
}

// readWhere reads a CESQL expression.
func readWhere(v value) string {
	text, ok := v.text()
	if !ok {
		return ""
	}
	_, err := cesql.ParseCondition(text)
	var wrong *cesql.SyntaxError
	switch {
	case errors.As(err, &wrong):
		v.problem("column %d, %s: %s", wrong.Column, pointAt(text, wrong.Column), plain(wrong.Message))
	case err != nil:
		v.problem("%s", plain(err.Error()))
	}
	return text
}

// maxPointed bounds how many characters of an expression a problem repeats.
const maxPointed = 24

// pointAt quotes the part of an expression from a column on, so that a reader can find it.
func pointAt(text string, column int) string {
	letters := []rune(text)
	at := min(max(column-1, 0), len(letters))
	if at == len(letters) {
		return "at the end"
	}
	rest := letters[at:]
	if len(rest) > maxPointed {
		return "at " + show(string(rest[:maxPointed])+"...")
	}
	return "at " + show(string(rest))
}

// plain puts a parser's message on one line and bounds its length, because it may repeat the text.
func plain(message string) string {
	const most = 300
	letters := []rune(message)
	if len(letters) > most {
		letters = append(letters[:most], []rune("...")...)
	}
	for i, c := range letters {
		if _, control := controlIn(string(c)); control || c == '\n' || c == '\t' {
			letters[i] = ' '
		}
	}
	return string(letters)
}
