package tidemill

import (
	"fmt"
	"net/url"
	"path"
	"strings"
)

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
