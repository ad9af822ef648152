package lineage

import (
	"tidemill.dev"
	"tidemill.dev/api"
)

// thing is a node and what it leads to, on both sides.
type thing struct {
	ref             ref
	node            api.GraphNode
	key             string // whoever may read this key may read it
	dataset         string // of a commit: whoever may read the keys that it belongs to, in place of the key
	free            bool   // it belongs to no key: whoever sees what leads to it sees it
	causes, effects []link
	notes           []string
}

// link leads from a thing to one of its causes, or of its effects.
type link struct {
	to   ref
	what api.GraphRelation
	leaf bool // what is beyond it is another story

	// known is what the thing at hand knows of the other. It stands for it where
	// nobody else knows it any more.
	known  *thing
	origin *tidemill.Origin // of a run: what its version knows of it
}

func newThing(r ref, title string) *thing {
	return &thing{ref: r, node: api.GraphNode{ID: r.String(), Kind: r.kind, Title: title, Facts: map[string]string{}}}
}

// fact notes something that is known.
func (t *thing) fact(name, value string) {
	if value != "" {
		t.node.Facts[name] = value
	}
}

// say says something, the most telling first.
func (t *thing) say(text string) {
	if text != "" {
		t.node.Says = append(t.node.Says, text)
	}
}

func (t *thing) cause(what api.GraphRelation, to ref, known *thing) {
	t.causes = append(t.causes, link{to: to, what: what, known: known})
}

// aside is a cause that is shown, and not gone on from.
func (t *thing) aside(what api.GraphRelation, to ref, known *thing) {
	t.causes = append(t.causes, link{to: to, what: what, known: known, leaf: true})
}

func (t *thing) effect(what api.GraphRelation, to ref, known *thing) {
	t.effects = append(t.effects, link{to: to, what: what, known: known})
}

func (t *thing) note(text string) { t.notes = append(t.notes, text) }
