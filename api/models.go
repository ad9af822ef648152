package api

import (
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger/fold"
)

// Models are the body of GET /api/v1/models.
type Models struct {
	Models []ModelShown `json:"models"`
	Next   string       `json:"next,omitempty"` // the after of the next page
}

// ModelShown is a model in a line.
type ModelShown struct {
	Name     string                `json:"name"`
	Key      string                `json:"key"`
	Recipe   string                `json:"recipe"`
	Champion int                   `json:"champion"` // 0 is none
	Newest   int                   `json:"newest"`
	State    tidemill.VersionState `json:"state"`              // of the newest
	Versions int                   `json:"versions"`           // that are kept
	Began    *time.Time            `json:"began,omitempty"`    // the champion's run
	Promoted *time.Time            `json:"promoted,omitempty"` // when it became the champion
	Metrics  map[string]float64    `json:"metrics,omitempty"`  // the champion's
	PinnedBy string                `json:"pinnedBy,omitempty"`
	Pinned   bool                  `json:"pinned,omitempty"`
	Retired  *time.Time            `json:"retired,omitempty"`
	Why      string                `json:"why,omitempty"` // it is stale, in words
}

// ModelWhole is the body of GET /api/v1/model: the model and its versions, the
// newest first, or the one that was asked for.
type ModelWhole struct {
	fold.Model
	All []ModelVersion `json:"all"`
}

// ModelVersion is a version and what was said of it.
type ModelVersion struct {
	tidemill.Version
	State     tidemill.VersionState `json:"state"`
	Judgement *tidemill.Judgement   `json:"judgement,omitempty"`
	Measured  *tidemill.Report      `json:"measured,omitempty"` // of one version that was asked for
}

// PromotionAsked is the body of POST /api/v1/model/promote, …/rollback, …/pin and
// …/unpin.
type PromotionAsked struct {
	Model   string `json:"model"`
	Version int    `json:"version,omitempty"` // 0: of a rollback the champion before, of a pin the champion
	Basis   *int   `json:"basis,omitempty"`   // the champion that was seen
	Force   bool   `json:"force,omitempty"`
	Reason  string `json:"reason,omitempty"`
	DryRun  bool   `json:"dryRun,omitempty"`
}

// PromotionDone is the answer.
type PromotionDone struct {
	Model    string `json:"model"`
	Version  int    `json:"version"`
	Before   int    `json:"before"`
	Champion int    `json:"champion"`
	Done     string `json:"done"` // in words
	Refused  bool   `json:"refused,omitempty"`
}

// RollbackAsked is the body of POST /api/v1/models/rollback: which models' champions
// go back to what was the champion before a time.
type RollbackAsked struct {
	Since  time.Time `json:"since"`
	Recipe string    `json:"recipe,omitempty"`
	Key    string    `json:"key,omitempty"`
	Prefix string    `json:"prefix,omitempty"`
	Where  string    `json:"where,omitempty"` // CESQL over subject (the key), recipe, model
	All    bool      `json:"all,omitempty"`   // instead of the others: every model
	Reason string    `json:"reason,omitempty"`
	After  string    `json:"after,omitempty"` // an answer's Next
	DryRun bool      `json:"dryRun,omitempty"`
}

// PromotionsDone is the body of its answer: a line for each model whose champion
// has changed since.
type PromotionsDone struct {
	Models []PromotionDone `json:"models"`
	Next   string          `json:"next,omitempty"` // there was more than one request does: ask again with it as After
}

// Promotions are the body of GET /api/v1/promotions.
type Promotions struct {
	Frozen []Freeze `json:"frozen"` // by recipe
}

// Freeze says that no version of a recipe is promoted by its gate.
type Freeze struct {
	Recipe string    `json:"recipe"` // tidemill.AllRecipes for all
	By     string    `json:"by,omitempty"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`
}

// FreezeAsked is the body of POST /api/v1/promotions/freeze and …/thaw.
type FreezeAsked struct {
	Recipe string `json:"recipe,omitempty"` // all, if empty
	Reason string `json:"reason,omitempty"`
}

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
