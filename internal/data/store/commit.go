package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker/retry"
)

// DefaultBranch is the branch of requests that name none.
const DefaultBranch = "main"

// publishWithin limits the work after the commit point, which continues if the caller has left.
const publishWithin = time.Minute

// CommitRequest describes a commit to make.
type CommitRequest struct {
	api.CommitAsked
	By, Run string
	Time    time.Time
	// Base is a whole tree to commit instead of changes. The caller must protect it from
	// collections until then; the trees of live runs are protected.
	Base string
	// Announce publishes the commit's event. It is called once the commit is safe, and again after
	// a crash until it has succeeded once.
	Announce func(context.Context, api.Commit) error
}

// Commit applies changes to the head of a branch. If another commit comes first, they are applied
// on top of it, so both survive. If Commit returns a commit and an error, the commit was made but
// not announced: the same request again announces it, and so does Recover.
func (s *Store) Commit(ctx context.Context, r CommitRequest, changes []api.Change) (api.Committed, error) {
	r.defaults(s.now())
	err := checkBranch(r.Dataset, r.Branch)
	if err == nil {
		changes, err = inOrder(changes)
	}
	if err == nil && r.Base != "" && len(changes) > 0 {
		err = invalid("a commit is of changes or of a whole tree, not of both")
	}
	for wait := (retry.Backoff{First: time.Millisecond, Cap: time.Second, Jitter: 0.5}); err == nil; {
		var done api.Committed
		done, err = s.try(ctx, r, changes)
		if !errors.Is(err, errTaken) && !errors.Is(err, errHidden) {
			return done, wrapCommit(r, err)
		}
		// Another commit was first, and the next try is on top of it. A bucket that fails over may not show
		// that commit yet, or an earlier one: each try meets it until then.
		if ended := wait.Sleep(ctx); ended != nil {
			return done, wrapCommit(r, fmt.Errorf("%w; the last try: %v", ended, err))
		}
		err = nil
	}
	return api.Committed{}, wrapCommit(r, err)
}

// Check returns the error that a commit would return now, and writes nothing. It does not look for
// the objects of the files, so that a caller can check a commit before it uploads them.
func (s *Store) Check(ctx context.Context, r CommitRequest, changes []api.Change) error {
	err := checkBranch(r.Dataset, r.Branch)
	if err == nil {
		changes, err = inOrder(changes)
	}
	var head *record
	if err == nil {
		head, err = s.head(ctx, r.Dataset, r.Branch)
	}
	if err == nil {
		_, err = s.result(ctx, head, r, changes)
	}
	return wrapCommit(r, err)
}

func wrapCommit(r CommitRequest, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("commit to branch %s of dataset %s: %w", r.Branch, r.Dataset, err)
}

func (r *CommitRequest) defaults(now time.Time) {
	if r.Branch == "" {
		r.Branch = DefaultBranch
	}
	if r.Subject == "" {
		r.Subject = r.Dataset[strings.LastIndexByte(r.Dataset, '/')+1:]
	}
	if r.Time.IsZero() {
		r.Time = now
	}
	r.Time = r.Time.UTC().Round(0) // same value as after a read from the store
}

// try commits on top of the current head.
func (s *Store) try(ctx context.Context, r CommitRequest, changes []api.Change) (api.Committed, error) {
	head, err := s.head(ctx, r.Dataset, r.Branch)
	if err != nil {
		return api.Committed{}, err
	}
	if before, err := s.before(ctx, head, r); before != nil || err != nil {
		return before.committed(), err
	}
	e, err := s.result(ctx, head, r, changes)
	if err != nil {
		return api.Committed{}, err
	}
	if head != nil && head.Tree == e.root.digest {
		return api.Committed{Commit: head.Commit, Unchanged: true}, s.bucket.gone(ctx, refKey(r.Dataset, r.Branch, head.Number+1))
	}
	began := s.now()
	if err := s.settle(ctx, e); err != nil {
		return api.Committed{}, err
	}
	rec := next(head, r, e)
	if err := s.claim(ctx, rec, began); err != nil {
		return api.Committed{}, err
	}
	return rec.committed(), s.publish(ctx, rec, r.Announce)
}

func (rec *record) committed() api.Committed {
	if rec == nil {
		return api.Committed{}
	}
	return api.Committed{Commit: rec.Commit}
}

// before returns the commit that the same request, or the same run, made before; nil if there is
// none. It announces the commit if that has not been done.
func (s *Store) before(ctx context.Context, head *record, r CommitRequest) (*record, error) {
	number := head.numberMadeBy(r.Request, r.Run)
	if number == 0 {
		return nil, nil
	}
	rec, err := s.record(ctx, r.Dataset, r.Branch, number)
	if err != nil {
		return nil, err
	}
	if intended, err := s.has(ctx, intentKey(rec.ID)); !intended || err != nil {
		return rec, err
	}
	return rec, s.publish(ctx, rec, r.Announce)
}

// result returns the new content of the branch.
func (s *Store) result(ctx context.Context, head *record, r CommitRequest, changes []api.Change) (edited, error) {
	tree := ""
	if head != nil {
		tree = head.Tree
	}
	if r.Base == "" && !r.Replace {
		return edit(tree, changes, s.loader(ctx))
	}
	e := edited{root: kid{digest: r.Base}}
	if r.Base == "" {
		var err error
		if e, err = edit("", puts(changes), s.loader(ctx)); err != nil {
			return edited{}, err
		}
	} else {
		n, err := s.node(ctx, r.Base)
		if err != nil {
			return edited{}, err
		}
		e.root = n.totals()
		e.root.digest = r.Base
	}
	return s.against(ctx, e, tree)
}

// against counts the differences from a tree, and keeps only new and changed files in e.put.
func (s *Store) against(ctx context.Context, e edited, tree string) (edited, error) {
	e.put, e.count = nil, count{}
	load := func(digest string) (*node, error) {
		if m, ok := e.fresh[digest]; ok {
			return m.node, nil
		}
		return s.node(ctx, digest)
	}
	err := differences(load, tree, e.root.digest, func(was, is *api.File) error {
		switch {
		case is == nil:
			e.removed++
			return nil
		case was == nil:
			e.added++
		default:
			e.changed++
		}
		e.put = append(e.put, *is)
		return nil
	})
	return e, err
}

func puts(changes []api.Change) []api.Change {
	var kept []api.Change
	for _, c := range changes {
		if !c.Remove {
			kept = append(kept, c)
		}
	}
	return kept
}

// record is the stored form of a commit.
type record struct {
	api.Commit
	Request string `json:"request,omitempty"`
	Nonce   string `json:"nonce"`           // random text, so that no two records are equal
	Quiet   bool   `json:"quiet,omitempty"` // whether the commit is not announced
	// Recent holds marks of the requests and runs of this commit and those before it on the branch:
	// one slot for each commit, newest last.
	Recent []byte `json:"recent,omitempty"`
}

const (
	recentCommits = 128
	mark          = 8        // bytes of a shortened digest
	slot          = 2 * mark // mark of a request and mark of a run
)

// next returns the record of the commit after a head, which may be nil.
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

// numberMadeBy returns the number of the newest commit, up to this one, that a request or a run
// made; 0 if none is in Recent.
func (rec *record) numberMadeBy(request, run string) int64 {
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
