package store

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strconv"

	"tidemill.dev"
	"tidemill.dev/api"
)

// record is what is kept of a commit.
type record struct {
	api.Commit
	Request string `json:"request,omitempty"`
	Nonce   string `json:"nonce"`           // so that no two are the same
	Quiet   bool   `json:"quiet,omitempty"` // nobody is told
	// Recent are the requests and runs of this commit and those before it on the
	// branch, a slot each, newest last.
	Recent []byte `json:"recent,omitempty"`
}

const (
	recentCommits = 128
	mark          = 8        // bytes of a digest
	slot          = 2 * mark // request, run
)

// next is the commit behind a head, which may be nil.
func next(head *record, r CommitRequest, e edited) *record {
	rec := &record{Request: r.Request, Nonce: rand.Text(), Commit: api.Commit{
		Dataset: r.Dataset, Branch: r.Branch, Number: 1, Tree: e.root.digest, Time: r.Time, By: r.By, Run: r.Run,
		Message: r.Message, Subject: r.Subject, Files: e.root.files, Bytes: e.root.bytes,
		Added: e.added, Changed: e.changed, Removed: e.removed}}
	var before []byte
	if head != nil {
		rec.Number, rec.Parent, before = head.Number+1, head.ID, head.Recent
	}
	rec.Recent = remember(before, r.Request, r.Run)
	rec.ID = tidemill.ID("commit", rec.Dataset, rec.Branch, strconv.FormatInt(rec.Number, 10), rec.Parent, rec.Tree, rec.Nonce)
	return rec
}

func remember(before []byte, request, run string) []byte {
	if drop := len(before) - (recentCommits-1)*slot; drop > 0 {
		before = before[drop:]
	}
	recent := append(make([]byte, 0, len(before)+slot), before...)
	return append(append(recent, markOf("request", request)...), markOf("run", run)...)
}

func markOf(kind, of string) []byte {
	if of == "" {
		return make([]byte, mark)
	}
	sum := sha256.Sum256([]byte(kind + "\x00" + of))
	return sum[:mark]
}

// said is the number of the newest commit up to this one that a request or a run
// was for; 0 if there is none, or it is too long ago.
func (rec *record) said(request, run string) int64 {
	if rec == nil {
		return 0
	}
	byRequest, byRun := string(markOf("request", request)), string(markOf("run", run))
	for end := len(rec.Recent); end >= slot; end -= slot {
		s := string(rec.Recent[end-slot : end])
		if request != "" && s[:mark] == byRequest || run != "" && s[mark:] == byRun {
			return rec.Number - int64((len(rec.Recent)-end)/slot)
		}
	}
	return 0
}

func (rec *record) encode() ([]byte, error) { return json.Marshal(rec) }

func decodeRecord(key string, data []byte) (*record, error) {
	var rec record
	if err := json.Unmarshal(data, &rec); err != nil {
		return nil, fmt.Errorf("read commit %s: it %w: %w", key, ErrCorrupt, err)
	}
	return &rec, nil
}
