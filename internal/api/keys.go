package api

import "tidemill.dev"

// KeyAsked asks that a key be forgotten.
type KeyAsked struct {
	Key    string `json:"key"`
	Reason string `json:"reason,omitempty"`
	DryRun bool   `json:"dryRun,omitempty"` // only say what there is
	Wait   bool   `json:"wait,omitempty"`   // for the receipt, as long as a request may take
}

// KeyEnd is how far the end of a key has come.
type KeyEnd struct {
	ID      string                 `json:"id,omitempty"` // of the forgetting; none of a dry run
	Done    bool                   `json:"done"`
	DryRun  bool                   `json:"dryRun"`
	Receipt *tidemill.KeyForgotten `json:"receipt,omitempty"` // what there is, before it is done
}
