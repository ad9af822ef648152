package tidemill

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"strings"
)

const maxDataset = 200 // letters

// CheckDataset returns an error if a text is not a valid name of a dataset or a model. A
// name is a path of segments. It is used in folders and URLs unchanged: no character is
// escaped or replaced, so two names never become the same path.
func CheckDataset(name string) error {
	if name == "" {
		return errors.New("is empty")
	}
	if len(name) > maxDataset {
		return fmt.Errorf("is longer than %d letters", maxDataset)
	}
	for segment := range strings.SplitSeq(name, "/") {
		if err := checkSegment(segment); err != nil {
			return err
		}
	}
	return nil
}

func checkSegment(s string) error {
	switch {
	case s == "":
		return errors.New("has a '/' without a name before and after it")
	case s[0] == '.':
		return fmt.Errorf("has %q, which begins with a dot", s)
	case s == "_":
		return errors.New("has the segment \"_\", which is reserved")
	}
	for _, c := range s {
		if !inSegment(c) {
			return fmt.Errorf("has %q; use letters, digits, '.', '_', '-', '@', '+', '=', ':' and, between segments, '/'", c)
		}
	}
	return nil
}

func inSegment(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._-@+=:", c)
}

// CheckURI returns an error if the input's URL must not be fetched: it must begin with a
// prefix that the recipe allows. URLs from events are checked, and URLs of redirects.
//
// The query of a URL may contain a secret, so errors do not show it.
func (in Input) CheckURI(uri string) error {
	u, err := url.Parse(uri)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return fmt.Errorf("input %s: %s is no URL of http or https", in.Name, shownURI(uri))
	case u.User != nil:
		return fmt.Errorf("input %s: the URL at %s has a user before the host", in.Name, shownURI(u.Host))
	case strings.Contains(u.Path, `\`):
		return fmt.Errorf("input %s: %s has a \\ in its path, which some servers take for a /", in.Name, shownURI(uri))
	}
	plain := path.Clean("/" + u.Path)
	for _, prefix := range in.Allow {
		p, err := url.Parse(prefix)
		if err == nil && p.Scheme == u.Scheme && strings.EqualFold(p.Host, u.Host) && beginsWith(plain, p.Path) {
			return nil
		}
	}
	return fmt.Errorf("input %s: %s begins with nothing that the recipe allows: %s", in.Name, shownURI(uri), strings.Join(in.Allow, ", "))
}

// beginsWith also accepts the folder itself if the prefix ends with a slash.
func beginsWith(path, prefix string) bool {
	return strings.HasPrefix(path, prefix) || path+"/" == prefix
}

// shownURI returns a URL for an error's text, without secrets.
func shownURI(uri string) string {
	const most = 200
	shown, _, more := strings.Cut(uri, "?")
	if len(shown) > most {
		shown, more = shown[:most], true
	}
	if at := strings.LastIndexByte(shown, '@'); at >= 0 {
		shown = "…" + shown[at:] // the part before it may be a password
	}
	if more {
		shown += "…"
	}
	return fmt.Sprintf("%q", shown)
}
