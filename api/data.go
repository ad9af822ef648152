package api

import (
	"time"

	"tidemill.dev"
)

// CommitAsked begins the body of POST /api/v1/data/commits. The changes follow, one Change per
// line.
type CommitAsked struct {
	Dataset string `json:"dataset"`
	Branch  string `json:"branch"`  // name of the branch; main if empty
	Request string `json:"request"` // name of the request; repeats make one commit
	Message string `json:"message,omitempty"`
	Subject string `json:"subject,omitempty"` // subject of the event; the dataset's last segment if empty
	Replace bool   `json:"replace,omitempty"` // whether files without a change are removed
	DryRun  bool   `json:"dryRun,omitempty"`  // whether the commit is only checked; its objects need not be there yet
}

// Change is a file that is written or removed.
type Change struct {
	File
	Remove bool `json:"remove,omitempty"`
}

// Commit is a version of a dataset.
type Commit struct {
	ID      string    `json:"id"`
	Dataset string    `json:"dataset"`
	Branch  string    `json:"branch"`
	Number  int64     `json:"number"` // number on the branch, from 1
	Parent  string    `json:"parent,omitempty"`
	Tree    string    `json:"tree"`
	Time    time.Time `json:"time"`
	By      string    `json:"by,omitempty"`
	Run     string    `json:"run,omitempty"` // run that made the commit
	Message string    `json:"message,omitempty"`
	Subject string    `json:"subject"` // subject of the commit's event
	Files   int       `json:"files"`
	Bytes   int64     `json:"bytes"`
	Added   int       `json:"added"`
	Changed int       `json:"changed"`
	Removed int       `json:"removed"`
}

// Committed is the body of the answer to a commit.
type Committed struct {
	Commit
	// Unchanged reports that the branch had this content already. Nothing was committed, no event
	// was published, and Commit is the head.
	Unchanged bool `json:"unchanged"`
}

// Datasets is the body of GET /api/v1/data/datasets, sorted by name.
type Datasets struct {
	Datasets []Dataset `json:"datasets"`
	Next     string    `json:"next,omitempty"` // value of after for the next page
}

// Dataset is a dataset and the names of its branches.
type Dataset struct {
	Name     string   `json:"name"`
	Branches []string `json:"branches"`
}

// Files is the body of GET /api/v1/data/files: a page of a commit's files, sorted by path.
type Files struct {
	Commit Commit `json:"commit"`
	Files  []File `json:"files"`
	Next   string `json:"next,omitempty"` // value of after for the next page
}

// ArtifactFiles is the body of GET /api/v1/model/files and GET /api/v1/runs/{run}/files: a page of
// the files of a version, or of the files that a run has made, sorted by path.
type ArtifactFiles struct {
	Model   string `json:"model,omitempty"`   // model; empty if a run was requested
	Version int    `json:"version,omitempty"` // version; 0 if a run was requested
	Run     string `json:"run"`               // run that has made the files
	Tree    string `json:"tree"`
	Files   []File `json:"files"`
	Next    string `json:"next,omitempty"` // value of after for the next page
}

// Log is the body of GET /api/v1/data/log: commits, newest first.
type Log struct {
	Commits []Commit `json:"commits"`
	Next    string   `json:"next,omitempty"` // value of after for the next page
}

// Diff is the body of GET /api/v1/data/diff: a page of the differences between two commits, sorted
// by path.
type Diff struct {
	From  Commit       `json:"from"`
	To    Commit       `json:"to"`
	Files []Difference `json:"files"`
	Next  string       `json:"next,omitempty"` // value of after for the next page
}

// Difference is a file that differs in two commits.
type Difference struct {
	Path string `json:"path"`
	Was  *File  `json:"was"` // old file; null if the file was added
	Is   *File  `json:"is"`  // new file; null if the file was removed
}

// BranchAsked is the body of POST /api/v1/data/branches.
type BranchAsked struct {
	Dataset string `json:"dataset"`
	Branch  string `json:"branch"`
	From    string `json:"from,omitempty"` // name of a branch, or the id of a commit or its beginning; main if empty
}

// Branched is the body of the answer to a BranchAsked.
type Branched struct {
	Branch  string `json:"branch"`
	Commit  Commit `json:"commit"`  // first commit of the branch, with the files of From
	Changed bool   `json:"changed"` // false if the branch existed at this commit
}

// CollectAsked is the body of POST /api/v1/data/gc.
type CollectAsked struct {
	OlderSeconds float64 `json:"olderSeconds,omitempty"` // age in seconds from which objects are removed; 0 for a day
	DryRun       bool    `json:"dryRun,omitempty"`
	Force        bool    `json:"force,omitempty"` // whether to collect even if most of the newest runs in the store are unknown
}

// Collected is the body of the answer to a CollectAsked.
type Collected struct {
	Objects int   `json:"objects"` // number of all objects
	Kept    int   `json:"kept"`
	Removed int   `json:"removed"` // number of removed objects, or in a dry run of objects to remove
	Bytes   int64 `json:"bytes"`
	Freed   int64 `json:"freed"` // number of freed bytes, or in a dry run of bytes to free
	DryRun  bool  `json:"dryRun"`
}

// KeyAsked asks to forget a key.
type KeyAsked struct {
	Key    string `json:"key"`
	Reason string `json:"reason,omitempty"`
	DryRun bool   `json:"dryRun,omitempty"` // whether only to list what would be deleted
	Wait   bool   `json:"wait,omitempty"`   // whether to wait for the receipt, until the request's timeout
}

// KeyEnd is the progress of forgetting a key.
type KeyEnd struct {
	ID      string                 `json:"id,omitempty"` // id of the request; empty for a dry run
	Done    bool                   `json:"done"`
	DryRun  bool                   `json:"dryRun"`
	Receipt *tidemill.KeyForgotten `json:"receipt,omitempty"` // receipt; before Done, what would be deleted
}
