package api

import (
	"time"

	"tidemill.dev"
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
	tidemill.Model
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
