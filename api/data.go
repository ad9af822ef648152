package api

import (
	"time"

	"tidemill.dev"
)

// CommitAsked begins the body of POST /api/v1/data/commits; what is changed
// follows, one Change a line.
type CommitAsked struct {
	Dataset string `json:"dataset"`
	Branch  string `json:"branch"`  // main if empty
	Request string `json:"request"` // names the attempt to commit: said twice it is one commit
	Message string `json:"message,omitempty"`
	Subject string `json:"subject,omitempty"` // of the event; the dataset's last segment if empty
	Replace bool   `json:"replace,omitempty"` // what is not named is removed
}

// Change is a file that is put or removed.
type Change struct {
	File
	Remove bool `json:"remove,omitempty"`
}

// Commit is a version of a dataset.
type Commit struct {
	ID      string    `json:"id"`
	Dataset string    `json:"dataset"`
	Branch  string    `json:"branch"`
	Number  int64     `json:"number"` // of the branch, from 1
	Parent  string    `json:"parent,omitempty"`
	Tree    string    `json:"tree"`
	Time    time.Time `json:"time"`
	By      string    `json:"by,omitempty"`
	Run     string    `json:"run,omitempty"` // that made it
	Message string    `json:"message,omitempty"`
	Subject string    `json:"subject"` // of its event
	Files   int       `json:"files"`
	Bytes   int64     `json:"bytes"`
	Added   int       `json:"added"`
	Changed int       `json:"changed"`
	Removed int       `json:"removed"`
}

// Committed is the body of the answer to a commit.
type Committed struct {
	Commit
	// Unchanged says that the branch held just that already: nothing was
	// committed, no event was published, and Commit is the head.
	Unchanged bool `json:"unchanged"`
}

// Datasets are the body of GET /api/v1/data/datasets, by name.
type Datasets struct {
	Datasets []Dataset `json:"datasets"`
}

// Dataset is a dataset and the names of its branches.
type Dataset struct {
	Name     string   `json:"name"`
	Branches []string `json:"branches"`
}

// Files are the body of GET /api/v1/data/files: a page of a commit's files, by
// path.
type Files struct {
	Commit Commit `json:"commit"`
	Files  []File `json:"files"`
	Next   string `json:"next,omitempty"` // the after of the next page
}

// Log is the body of GET /api/v1/data/log: newest first.
type Log struct {
	Commits []Commit `json:"commits"`
	Next    string   `json:"next,omitempty"` // the after of the next page
}

// Diff is the body of GET /api/v1/data/diff: a page of what differs between two
// commits, by path.
type Diff struct {
	From  Commit       `json:"from"`
	To    Commit       `json:"to"`
	Files []Difference `json:"files"`
	Next  string       `json:"next,omitempty"` // the after of the next page
}

// Difference is a file that is not the same in two commits.
type Difference struct {
	Path string `json:"path"`
	Was  *File  `json:"was"` // null if it was added
	Is   *File  `json:"is"`  // null if it was removed
}

// BranchAsked is the body of POST /api/v1/data/branches.
type BranchAsked struct {
	Dataset string `json:"dataset"`
	Branch  string `json:"branch"`
	From    string `json:"from,omitempty"` // a branch, or a commit's id or its beginning; main if empty
}

// Branched is the body of its answer.
type Branched struct {
	Branch  string `json:"branch"`
	Commit  Commit `json:"commit"`  // its own, with the files of the one that it begins from
	Changed bool   `json:"changed"` // false: it was there, and at this commit
}

// CollectAsked is the body of POST /api/v1/data/gc.
type CollectAsked struct {
	OlderSeconds float64 `json:"olderSeconds,omitempty"` // what is younger stays; a day
	DryRun       bool    `json:"dryRun,omitempty"`
}

// Collected is the body of its answer.
type Collected struct {
	Objects int   `json:"objects"` // there were
	Kept    int   `json:"kept"`
	Removed int   `json:"removed"` // or would be
	Bytes   int64 `json:"bytes"`
	Freed   int64 `json:"freed"` // or would be
	DryRun  bool  `json:"dryRun"`
}

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
