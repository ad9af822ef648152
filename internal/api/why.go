package api

import "time"

// Graph is the body of GET /api/v1/why: what a thing came from, and what came of
// it.
type Graph struct {
	Subject string      `json:"subject"` // the id of the node that was asked for
	Nodes   []GraphNode `json:"nodes"`   // that one first
	Edges   []GraphEdge `json:"edges"`
	Notes   []string    `json:"notes,omitempty"` // what is not in it, and why
}

// GraphNode is a thing: an event, a commit, a run, a version of a model, a code,
// a node.
type GraphNode struct {
	ID    string            `json:"id"`   // kind/name
	Kind  GraphKind         `json:"kind"` //
	Title string            `json:"title"`
	State string            `json:"state,omitempty"`
	Time  *time.Time        `json:"time,omitempty"`  // of what State says, else of the thing
	Says  []string          `json:"says,omitempty"`  // what there is to say of it, the most telling first
	Said  string            `json:"said,omitempty"`  // a whole sentence: its verdict, why it failed, a commit's message
	Facts map[string]string `json:"facts,omitempty"` // the same for programs, and more
}

// GraphKind is what a node is.
type GraphKind string

// The kinds. One can be asked for by what is not code or node.
const (
	KindRun    GraphKind = "run"
	KindModel  GraphKind = "model"
	KindCommit GraphKind = "commit"
	KindEvent  GraphKind = "event"
	KindCode   GraphKind = "code" // an image or a folder, with the command in it
	KindNode   GraphKind = "node"
)

// GraphEdge leads from a cause to what came of it.
type GraphEdge struct {
	From string        `json:"from"`
	To   string        `json:"to"`
	What GraphRelation `json:"what"`
}

// GraphRelation is what a cause has to do with what came of it.
type GraphRelation string

// The relations, each with its cause first.
const (
	EdgeAsked    GraphRelation = "asked for"       // an event, a run
	EdgeTaught   GraphRelation = "taught"          // a commit, a run
	EdgeMade     GraphRelation = "made"            // a run, a commit or a version
	EdgeCode     GraphRelation = "was the code of" // a code, a run
	EdgeRan      GraphRelation = "ran"             // a node, a run
	EdgeTold     GraphRelation = "was told by"     // what an event is about, the event
	EdgeCaused   GraphRelation = "caused"          // an event, another
	EdgeFollowed GraphRelation = "was followed by" // a commit, the next of its branch
	EdgeRetried  GraphRelation = "was retried by"  // a run, another
	EdgeBeside   GraphRelation = "was measured by" // a champion, the run that measured it beside its own
	EdgeJudged   GraphRelation = "was the bar for" // a champion, the version that was judged against it
	EdgeScored   GraphRelation = "scored"          // a version, an event
	EdgeReplaced GraphRelation = "was replaced by" // a champion, the next
)
