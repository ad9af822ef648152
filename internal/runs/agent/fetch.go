package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker/retry"
	"tidemill.dev/internal/data/transfer"
)

// fetch fetches all files that the command needs.
func (a *attempt) fetch(ctx context.Context) error {
	for _, part := range []struct {
		what string
		get  func(context.Context) error
	}{
		{"the events", a.fetchEvents},
		{"the inputs", a.fetchInputs},
		{"the champion", a.fetchChampion},
		{"the checkpoint", a.fetchCheckpoint},
	} {
		if err := part.get(ctx); err != nil {
			return fmt.Errorf("fetch %s: %w", part.what, err)
		}
	}
	return nil
}

func (a *attempt) fetchChampion(ctx context.Context) error {
	c := a.order.Champion
	if c == nil && !a.isContained() {
		return nil // only an engine needs the folder, as a mount
	}
	if err := os.Mkdir(a.dirs.champion(), 0o755); err != nil || c == nil {
		return err
	}
	return a.writeTree(ctx, a.dirs.champion(), c.Tree, a.o.Cache)
}

func (a *attempt) fetchCheckpoint(ctx context.Context) error {
	c := a.order.Checkpoint
	if c == nil {
		return nil
	}
	a.where.ResumedFrom = c.Tree
	return a.writeTree(ctx, a.dirs.checkpoint(), c.Tree, "")
}

func (a *attempt) fetchInputs(ctx context.Context) error {
	all := a.order.Plan.Inputs
	for i := range all {
		if err := a.fetchInput(ctx, &all[i]); err != nil {
			return fmt.Errorf("%s: %w", all[i].Name, err)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return lock(a.dirs.in(), nil)
}

// fetchInput creates the input's folder and fills it.
func (a *attempt) fetchInput(ctx context.Context, in *tidemill.Input) error {
	if !filepath.IsLocal(in.Name) || in.Name != filepath.Base(in.Name) {
		return permanent("%q is not a name for a folder", in.Name)
	}
	dir := filepath.Join(a.dirs.in(), in.Name)
	switch {
	case in.URI != "":
		return a.fetchURI(ctx, dir, in)
	case in.Tree != "":
		return a.writeTree(ctx, dir, in.Tree, a.o.Cache)
	}
	return os.Mkdir(dir, 0o555) // the dataset is still empty
}

// writeTree writes a tree into a folder. Files from a cache are shared and therefore read-only; without
// a cache they belong to the attempt. The store had the tree when the order was given, but a bucket that
// fails over may hide it.
func (a *attempt) writeTree(ctx context.Context, dir, tree, cache string) error {
	wait, until := retry.Backoff{First: firstWait, Cap: longestWait, Jitter: 0.5}, time.Now().Add(storeLag)
	for noted := false; ; noted = true {
		files, err := a.writeFiles(ctx, dir, tree, cache)
		switch {
		case isAway(err) && time.Now().Before(until):
			if !noted {
				a.log.note("%v; trying again for up to %v, because a store that fails over may hide it", err, storeLag)
			}
			if retry.Sleep(ctx, wait.Next()) == nil {
				continue
			}
			return err
		case err != nil, cache == "" && dir == a.dirs.checkpoint():
			return err
		}
		return lock(dir, files)
	}
}

func (a *attempt) writeFiles(ctx context.Context, dir, tree, cache string) ([]api.File, error) {
	files, err := a.files(ctx, tree)
	if err != nil {
		return nil, err
	}
	if dir == a.dirs.checkpoint() {
		files = slices.DeleteFunc(files, func(f api.File) bool { return unfinished.MatchString(path.Base(f.Path)) })
	}
	client := a.transferClient()
	client.Cache, client.Replace = cache, true
	return files, a.retryTransfer(ctx, func() error { return client.Get(ctx, dir, files, nil) })
}

// unfinished matches the temporary names of the Python client. A process that is killed leaves such a file
// behind. It is incomplete, and would stay in all later checkpoints of the run.
var unfinished = regexp.MustCompile(`^\.[0-9a-f]{16}\.part(\.|$)`)

func (a *attempt) transferClient() *transfer.Client {
	return &transfer.Client{Base: a.client.base, HTTP: a.client.http, Sign: a.client.sign}
}

// retryTransfer transfers files, and tries again while the error may pass. Files that have arrived are
// not transferred twice.
func (a *attempt) retryTransfer(ctx context.Context, move func() error) error {
	for {
		err := move()
		if err == nil || a.client.checkSuperseded(err) == nil || !transfer.Passes(ctx, err) || retry.Sleep(ctx, longestWait) != nil {
			return err
		}
	}
}

// files lists the files of a tree.
func (a *attempt) files(ctx context.Context, tree string) (all []api.File, err error) {
	err = a.client.send(ctx, request{path: "/files?tree=" + url.QueryEscape(tree)}, func(r io.Reader) error {
		all = all[:0] // an earlier try may have ended in the middle
		for d := json.NewDecoder(r); ; {
			var f api.File
			err := d.Decode(&f)
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			all = append(all, f)
		}
	})
	return all, err
}

// fetchEvents writes the newest cause and all causes. A single cause is in the order.
func (a *attempt) fetchEvents(ctx context.Context) error {
	newest := append([]byte(a.order.Event), '\n')
	if a.order.Causes == 1 && len(a.order.Event) > 0 {
		if err := os.WriteFile(a.dirs.events(), newest, 0o444); err != nil {
			return err
		}
		if os.Link(a.dirs.events(), a.dirs.event()) == nil {
			return nil
		}
		return os.WriteFile(a.dirs.event(), newest, 0o444) // not every file system has hard links
	}
	err := a.client.send(ctx, request{path: "/events"}, func(r io.Reader) error {
		last, err := writeLines(a.dirs.events(), r)
		if len(last) > 0 {
			newest = last
		}
		return err
	})
	if err != nil {
		return err
	}
	if len(newest) == 1 {
		newest = []byte("null\n") // the log no longer has the facts with the events
	}
	return os.WriteFile(a.dirs.event(), newest, 0o444)
}

// writeLines copies lines into a file and returns the last one.
func writeLines(name string, from io.Reader) (last []byte, err error) {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, &fault{err: err}
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return nil, &fault{err: err}
	}
	k := &keepLast{}
	_, err = io.Copy(io.MultiWriter(f, k), from)
	return k.line(), errors.Join(err, f.Close())
}

// stage measures the time of a stage of the attempt.
func (a *attempt) stage(name string, do func() error) error {
	from := time.Now()
	err := do()
	a.stages = append(a.stages, tidemill.Stage{Name: name, Seconds: time.Since(from).Seconds()})
	return err
}

const (
	maxFetched = 16 << 30 // largest file from a URI, in bytes
	fetchTries = 4
	maxHops    = 5
	maxName    = 200 // largest file name in bytes; most file systems allow 255
)

// fetchURI fetches a file from a URI. It sends no credential of ours, and requests only addresses
// that the recipe allows.
func (a *attempt) fetchURI(ctx context.Context, dir string, in *tidemill.Input) error {
	u, err := url.Parse(in.URI)
	if no := in.CheckURI(in.URI); no != nil || err != nil {
		return &fault{permanent: true, err: cmp.Or(no, err)}
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	name := filepath.Join(dir, nameOf(u))
	for n := 1; ; n++ {
		err := get(ctx, in, u, name)
		if err == nil {
			return lock(dir, nil)
		}
		if _, again := isTransient(err); !again || n == fetchTries || retry.Sleep(ctx, firstWait<<(2*n)) != nil {
			return err
		}
	}
}

// nameOf returns the name of the file.
func nameOf(u *url.URL) string {
	name := path.Base(path.Clean("/" + u.Path))
	if name == "/" || len(name) > maxName || !filepath.IsLocal(name) || strings.ContainsAny(name, "\\:\x00") {
		return "content"
	}
	return name
}

// stallAfter is the time without a byte from a server after which a request to it is cancelled. A server may
// take long to prepare its response.
const stallAfter = 10 * time.Minute

var errStalled = fmt.Errorf("nothing arrived for %s", stallAfter)

// get writes the response into a file. It cancels a request in which nothing moves.
func get(ctx context.Context, in *tidemill.Input, u *url.URL, name string) error {
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	stall := time.AfterFunc(stallAfter, func() { cut(errStalled) })
	defer stall.Stop()
	err := exchange(ctx, in, u, name, stall)
	if err != nil && errors.Is(context.Cause(ctx), errStalled) {
		return fmt.Errorf("%s: %w", u.Host, errStalled)
	}
	return err
}

// stallReader resets a timer at each read.
type stallReader struct {
	io.Reader
	stall *time.Timer
}

func (r stallReader) Read(to []byte) (int, error) {
	n, err := r.Reader.Read(to)
	if n > 0 {
		r.stall.Reset(stallAfter)
	}
	return n, err
}

func exchange(ctx context.Context, in *tidemill.Input, u *url.URL, name string, stall *time.Timer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return &fault{permanent: true, err: err}
	}
	client := &http.Client{CheckRedirect: redirectCheck(in)}
	res, err := client.Do(req)
	if err != nil {
		return withoutAddress(u, err)
	}
	defer drop(res.Body)
	if res.StatusCode != http.StatusOK {
		r := &refusal{status: res.StatusCode, err: fmt.Errorf("%s answered %s", u.Host, res.Status)}
		if _, again := isTransient(r); again {
			return r
		}
		return &fault{permanent: true, err: r}
	}
	return store(name, stallReader{res.Body, stall}, maxFetched)
}

// badRedirect is the reason why a redirect is not followed.
type badRedirect struct{ err error }

func (a *badRedirect) Error() string { return "it sends us on to where we do not go: " + a.err.Error() }
func (a *badRedirect) Unwrap() error { return a.err }

// redirectCheck refuses redirects to unencrypted addresses, and to addresses that the recipe does
// not allow. Otherwise an allowed server could redirect the agent to a server that only this
// machine can reach.
func redirectCheck(in *tidemill.Input) func(*http.Request, []*http.Request) error {
	return func(r *http.Request, via []*http.Request) error {
		switch err := in.CheckURI(r.URL.String()); {
		case len(via) > maxHops:
			return &badRedirect{fmt.Errorf("on and on, more than %d times", maxHops)}
		case via[0].URL.Scheme == "https" && r.URL.Scheme != "https":
			return &badRedirect{errors.New("there it is not encrypted")}
		case err != nil:
			return &badRedirect{err}
		}
		return nil
	}
}

// withoutAddress removes the address from an error of a request, because it may contain a credential.
func withoutAddress(u *url.URL, err error) error {
	var outer *url.Error
	if errors.As(err, &outer) {
		err = outer.Err
	}
	if errors.As(err, new(*badRedirect)) {
		return &fault{permanent: true, err: fmt.Errorf("%s: %w", u.Host, err)}
	}
	return fmt.Errorf("%s: %w", u.Host, err)
}

// store writes the content into a file, if it is not too large.
func store(name string, from io.Reader, most int64) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return &fault{err: err}
	}
	n, err := io.Copy(f, io.LimitReader(from, most+1))
	switch err = errors.Join(err, f.Close()); {
	case err != nil:
		return err
	case n > most:
		return permanent("it is larger than %d GiB: put it into a dataset", most>>30)
	}
	return os.Chmod(name, 0o444)
}
