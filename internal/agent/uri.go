package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"

	"tidemill.dev"
)

const (
	maxFetched = 16 << 30 // bytes of what an event names
	fetchTries = 4
	maxHops    = 5
	maxName    = 200 // bytes of a file's; most file systems know 255
)

// fetchURI gets what an event names. It bears no credential of ours, and goes
// nowhere that the recipe does not allow.
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
		if _, again := passing(err); !again || n == fetchTries || pause(ctx, firstWait<<(2*n)) != nil {
			return err
		}
	}
}

// nameOf is what the file is called.
func nameOf(u *url.URL) string {
	name := path.Base(path.Clean("/" + u.Path))
	if name == "/" || len(name) > maxName || !filepath.IsLocal(name) || strings.ContainsAny(name, "\\:\x00") {
		return "content"
	}
	return name
}

// get writes an answer into a file.
func get(ctx context.Context, in *tidemill.Input, u *url.URL, name string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return &fault{permanent: true, err: err}
	}
	client := &http.Client{CheckRedirect: careful(in)}
	res, err := client.Do(req)
	if err != nil {
		return outward(u, err)
	}
	defer drop(res.Body)
	if res.StatusCode != http.StatusOK {
		r := &refusal{status: res.StatusCode, err: fmt.Errorf("%s answered %s", u.Host, res.Status)}
		if _, again := passing(r); again {
			return r
		}
		return &fault{permanent: true, err: r}
	}
	return store(name, res.Body, maxFetched)
}

// astray is why a redirect is not followed.
type astray struct{ err error }

func (a *astray) Error() string { return "it sends us on to where we do not go: " + a.err.Error() }
func (a *astray) Unwrap() error { return a.err }

// careful follows no redirect that gives up the encryption, and none out of what
// the recipe allows: a server that may be asked could send us to one that only
// this machine reaches.
func careful(in *tidemill.Input) func(*http.Request, []*http.Request) error {
	return func(r *http.Request, via []*http.Request) error {
		switch err := in.CheckURI(r.URL.String()); {
		case len(via) > maxHops:
			return &astray{fmt.Errorf("on and on, more than %d times", maxHops)}
		case via[0].URL.Scheme == "https" && r.URL.Scheme != "https":
			return &astray{errors.New("there it is not encrypted")}
		case err != nil:
			return &astray{err}
		}
		return nil
	}
}

// outward is an error of a request, without the address: it may hold a key.
func outward(u *url.URL, err error) error {
	var outer *url.Error
	if errors.As(err, &outer) {
		err = outer.Err
	}
	if errors.As(err, new(*astray)) {
		return &fault{permanent: true, err: fmt.Errorf("%s: %w", u.Host, err)}
	}
	return fmt.Errorf("%s: %w", u.Host, err)
}

// store writes what comes, if it is not too much.
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
