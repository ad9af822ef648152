package api

import (
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger/fold"
)

// Models is the body of GET /api/v1/models.
type Models struct {
	Models []ModelShown `json:"models"`
	Next   string       `json:"next,omitempty"` // value of after for the next page
	Total  int          `json:"total"`          // number of models on all pages
}

// ModelShown is a summary of a model.
type ModelShown struct {
	Name     string                `json:"name"`
	Key      string                `json:"key"`
	Recipe   string                `json:"recipe"`
	Champion int                   `json:"champion"` // version of the champion; 0 for none
	Newest   int                   `json:"newest"`
	State    tidemill.VersionState `json:"state"`              // state of the newest version
	Versions int                   `json:"versions"`           // number of versions that are kept
	Began    *time.Time            `json:"began,omitempty"`    // start of the champion's run
	Promoted *time.Time            `json:"promoted,omitempty"` // time of the champion's promotion
	Metrics  map[string]float64    `json:"metrics,omitempty"`  // metrics of the champion
	PinnedBy string                `json:"pinnedBy,omitempty"`
	Pinned   bool                  `json:"pinned,omitempty"`
	Retired  *time.Time            `json:"retired,omitempty"`
	Why      string                `json:"why,omitempty"`      // reason why the model is stale
	Unserved *fold.Unserved        `json:"unserved,omitempty"` // last report that a scorer cannot serve the champion
	Drifts   []fold.Drift          `json:"drifts,omitempty"`   // figures of the champion that have drifted
	Hold     string                `json:"hold,omitempty"`     // reason why the newest version waits for a person, other than a pin
	Lacks    bool                  `json:"lacks,omitempty"`    // whether something has to be installed before that version can be promoted
}

// ModelWhole is the body of GET /api/v1/model: the model and its versions, newest first, or only
// the requested version.
type ModelWhole struct {
	fold.Model
	Live []LiveFigures  `json:"live,omitempty"` // figures by outcomes, the newest version first
	All  []ModelVersion `json:"all"`
}

// How says how a version became the champion, as in "promoted by its gate".
func (m *ModelWhole) How(c *fold.Change) string {
	for i := range m.All {
		if m.All[i].Number == c.Version {
			return c.How(m.All[i].Judgement)
		}
	}
	return c.How(nil)
}

// LiveFigures say how good the answers of a version were in a scorer, by the outcomes that are known.
type LiveFigures struct {
	Scorer    string            `json:"scorer"`
	Version   int               `json:"version"`
	Sentence  string            `json:"sentence"` // the accuracy, and its difference to the gate's, in words
	Answers   int               `json:"answers"`  // answers whose truth is known
	Right     int               `json:"right"`
	Assumed   int               `json:"assumed,omitempty"`   // answers whose truth was first assumed, because no label came in time
	Corrected int               `json:"corrected,omitempty"` // corrections by later labels
	Accuracy  tidemill.Estimate `json:"accuracy"`
	Gate      *float64          `json:"gate,omitempty"` // accuracy that the version was registered with; nil if it is unknown
	First     time.Time         `json:"first"`          // time of the earliest answer
	Last      time.Time         `json:"last"`
	Classes   []tidemill.Class  `json:"classes"`
	Cells     []tidemill.Cell   `json:"cells"` // cells of the confusion matrix that are not 0
	// CalibrationError is by how much the share of right answers differs from the scores, on average; nil without scores.
	CalibrationError *float64       `json:"calibrationError,omitempty"`
	Bins             []LiveBin      `json:"bins,omitempty"` // calibration, by tenths of the score
	Days             []tidemill.Day `json:"days"`           // newest days, in UTC
}

// LiveBin has the answers whose score is in a range.
type LiveBin struct {
	From    float64 `json:"from"`
	To      float64 `json:"to"`
	Answers int     `json:"answers"`
	Right   int     `json:"right"`
	Score   float64 `json:"score"` // mean score
}

// ModelVersion is a version with its judgement.
type ModelVersion struct {
	tidemill.Version
	State     tidemill.VersionState `json:"state"`
	Judgement *tidemill.Judgement   `json:"judgement,omitempty"`
	Measured  *tidemill.Report      `json:"measured,omitempty"` // measurements; only for a requested version
	OnTrial   *Trial                `json:"onTrial,omitempty"`  // state of its trial; nil if it is not on trial, or the state is not known
}

// PromotionAsked is the body of POST /api/v1/model/promote, …/rollback, …/refuse,
// …/pin and …/unpin.
type PromotionAsked struct {
	Model   string `json:"model"`
	Version int    `json:"version,omitempty"` // version; 0 for the previous champion in a rollback, and the champion in a pin
	Basis   *int   `json:"basis,omitempty"`   // champion that the caller has seen
	Force   bool   `json:"force,omitempty"`
	Reason  string `json:"reason,omitempty"`
	DryRun  bool   `json:"dryRun,omitempty"`
}

// PromotionDone is the answer to a PromotionAsked.
type PromotionDone struct {
	Model    string `json:"model"`
	Version  int    `json:"version"`
	Before   int    `json:"before"`
	Champion int    `json:"champion"`
	Done     string `json:"done"` // result in words
	Refused  bool   `json:"refused,omitempty"`
}

// RollbackAsked is the body of POST /api/v1/models/rollback. Each selected model gets back its
// champion from before a time.
type RollbackAsked struct {
	Since  time.Time `json:"since"`
	Recipe string    `json:"recipe,omitempty"`
	Key    string    `json:"key,omitempty"`
	Prefix string    `json:"prefix,omitempty"`
	Where  string    `json:"where,omitempty"` // CESQL over subject (the key), recipe, model
	All    bool      `json:"all,omitempty"`   // whether to select every model, instead of the other fields
	Reason string    `json:"reason,omitempty"`
	After  string    `json:"after,omitempty"` // Next of the previous answer
	DryRun bool      `json:"dryRun,omitempty"`
}

// PromotionsDone is the body of the answer to a RollbackAsked: one entry for each model whose
// champion has changed since that time.
type PromotionsDone struct {
	Models []PromotionDone `json:"models"`
	Next   string          `json:"next,omitempty"` // After of the next request, if models are left
}

// Promotions is the body of GET /api/v1/promotions.
type Promotions struct {
	Frozen []Freeze `json:"frozen"` // freezes, sorted by recipe
}

// Freeze stops promotions by the gate of a recipe.
type Freeze struct {
	Recipe string    `json:"recipe"` // name of the recipe; tidemill.AllRecipes for all
	By     string    `json:"by,omitempty"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`
}

// FreezeAsked is the body of POST /api/v1/promotions/freeze and …/thaw.
type FreezeAsked struct {
	Recipe string `json:"recipe,omitempty"` // name of the recipe; all if empty
	Reason string `json:"reason,omitempty"`
}

// Graph is the body of GET /api/v1/why: the causes and the results of a node.
type Graph struct {
	Subject string      `json:"subject"` // id of the requested node
	Nodes   []GraphNode `json:"nodes"`   // nodes, the requested one first
	Edges   []GraphEdge `json:"edges"`
	Notes   []string    `json:"notes,omitempty"` // missing parts of the graph, and why they are missing
	Left    int         `json:"left,omitempty"`  // number of nodes that are left out because of the limit in the request

	Layout *GraphLayout `json:"layout,omitempty"` // positions of the nodes; only if the request has layout=positions
}

// GraphLayout has the positions of a graph, with causes to the left of their results. Y grows
// downwards.
type GraphLayout struct {
	Width  float64      `json:"width"`
	Height float64      `json:"height"`
	Nodes  []PlacedNode `json:"nodes"`
	Edges  []PlacedEdge `json:"edges"` // edges except those that would close a cycle
}

// PlacedNode is the box of a node. X and Y are its left upper corner.
type PlacedNode struct {
	ID     string   `json:"id"`
	X      float64  `json:"x"`
	Y      float64  `json:"y"`
	Width  float64  `json:"width"`
	Height float64  `json:"height"`
	Lines  []string `json:"lines"` // text in the box, for a font whose letters are 7.3 wide and whose lines are 17 high
}

// PlacedEdge is an edge as pairs of x and y. A line joins points 0 and 1, a curve points 1 and 2, a
// line points 2 and 3, and so on. The lines are horizontal and cross no box.
type PlacedEdge struct {
	From   string        `json:"from"`
	To     string        `json:"to"`
	What   GraphRelation `json:"what"`
	Points [][2]float64  `json:"points"`
}

// GraphNode is an event, a commit, a run, a version of a model, a code or a machine.
type GraphNode struct {
	ID    string            `json:"id"` // id in the form kind/name
	Kind  GraphKind         `json:"kind"`
	Title string            `json:"title"`
	State string            `json:"state,omitempty"`
	Time  *time.Time        `json:"time,omitempty"`  // time of State, or of the node itself
	Says  []string          `json:"says,omitempty"`  // lines about the node, the most useful first
	Said  string            `json:"said,omitempty"`  // sentence such as a verdict, a failure or a commit's message
	Facts map[string]string `json:"facts,omitempty"` // the same facts and more, for programs
}

// GraphKind is the kind of a node.
type GraphKind string

// The kinds. A request may name a node of any kind except code and node.
const (
	KindRun    GraphKind = "run"
	KindModel  GraphKind = "model"
	KindCommit GraphKind = "commit"
	KindEvent  GraphKind = "event"
	KindCode   GraphKind = "code" // image or folder, with its command
	KindNode   GraphKind = "node"
)

// GraphEdge leads from a cause to its result.
type GraphEdge struct {
	From string        `json:"from"`
	To   string        `json:"to"`
	What GraphRelation `json:"what"`
}

// GraphRelation is the relation of a cause to its result.
type GraphRelation string

// The relations. The comments name the cause, then the result.
const (
	EdgeAsked    GraphRelation = "asked for"       // event, run
	EdgeTaught   GraphRelation = "taught"          // commit, run
	EdgeMade     GraphRelation = "made"            // run, commit or version
	EdgeCode     GraphRelation = "was the code of" // code, run
	EdgeRan      GraphRelation = "ran"             // node, run
	EdgeTold     GraphRelation = "was told by"     // subject of an event, event
	EdgeCaused   GraphRelation = "caused"          // event, other event
	EdgeFollowed GraphRelation = "was followed by" // commit, next commit of its branch
	EdgeRetried  GraphRelation = "was retried by"  // run, other run
	EdgeBeside   GraphRelation = "was measured by" // champion, run that measured it next to its own model
	EdgeJudged   GraphRelation = "was the bar for" // champion, version that was judged against it
	EdgeScored   GraphRelation = "scored"          // version, event
	EdgeReplaced GraphRelation = "was replaced by" // champion, next champion
)

// TrialList is the body of GET /api/v1/trials: the trials that are running.
type TrialList struct {
	Trials []Trial `json:"trials"` // sorted by model; at most 1000
	Total  int     `json:"total"`  // number of trials on all pages
	Next   string  `json:"next,omitempty"`
}

// EndedTrials is the body of GET /api/v1/trials/ended: trials that have ended, the newest end first.
type EndedTrials struct {
	Trials []EndedTrial `json:"trials"`
	Next   string       `json:"next,omitempty"`
}

// EndedTrial is a trial that has ended. A model keeps its newest five.
type EndedTrial struct {
	Model   string                 `json:"model"`
	Version int                    `json:"version"`
	Recipe  string                 `json:"recipe"`
	Key     string                 `json:"key"`
	Ended   time.Time              `json:"ended"`
	Passed  bool                   `json:"passed"`
	State   tidemill.VersionState  `json:"state,omitempty"`   // state of the version now; empty if the version is dropped
	Text    string                 `json:"text,omitempty"`    // the end in words; empty if the version is dropped
	Clauses []tidemill.Clause      `json:"clauses,omitempty"` // clauses with their values at the end
	Verdict *tidemill.TrialVerdict `json:"verdict,omitempty"` // nil if a newer candidate has ended the trial, or the version is dropped
}

// Trial is a candidate that answers the stream of a scorer beside the champion.
type Trial struct {
	Model    string              `json:"model"`
	Version  int                 `json:"version"`
	Recipe   string              `json:"recipe"`
	Key      string              `json:"key"`
	Scorer   string              `json:"scorer"`
	Champion int                 `json:"champion"` // version whose answers are compared
	Began    time.Time           `json:"began"`
	Terms    tidemill.TrialTerms `json:"terms"`
	tidemill.TrialCounts
	Lead    tidemill.Estimate    `json:"lead"` // accuracy of the candidate minus the champion's
	P99     float64              `json:"p99"`  // milliseconds for one answer
	Budget  tidemill.TrialBudget `json:"budget"`
	Clauses []tidemill.Clause    `json:"clauses"`          // clauses for a promotion as they are now
	Steps   []tidemill.TrialStep `json:"steps,omitempty"`  // counts over the labelled events so far, at most [tidemill.TrialSteps]
	Text    string               `json:"text"`             // the figures in words
	Behind  int64                `json:"behind,omitempty"` // answers of the champion that the trial has not read yet
	Error   string               `json:"error,omitempty"`  // reason why the trial does not advance; empty if it does
}

// Rejudged is the body of GET /api/v1/model/rejudge: the verdict of a trial, computed again from the streams.
type Rejudged struct {
	Model    string                `json:"model"`
	Version  int                   `json:"version"`
	Recorded tidemill.TrialVerdict `json:"recorded"`
	Again    tidemill.TrialVerdict `json:"again"`
	Differs  []string              `json:"differs"` // names of the parts that differ; empty if none does
}
