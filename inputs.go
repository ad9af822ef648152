package tidemill

import (
	"fmt"
	"net/url"
	"path"
	"strings"
)

// CheckURI says why an address is not fetched for the input, if it is not: it
// has to begin with something that the recipe allows. It is asked of what an
// event has brought, and again of wherever a server sends us on to.
//
// What is behind the ? of an address may be a key to it, so no error tells it.
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

// beginsWith takes a prefix that ends with a slash for the folder itself too.
func beginsWith(path, prefix string) bool {
	return strings.HasPrefix(path, prefix) || path+"/" == prefix
}

// shownURI is an address as errors tell it.
func shownURI(uri string) string {
	const most = 200
	shown, _, more := strings.Cut(uri, "?")
	if len(shown) > most {
		shown, more = shown[:most], true
	}
	if at := strings.LastIndexByte(shown, '@'); at >= 0 {
		shown = "…" + shown[at:] // what is before it may be a password
	}
	if more {
		shown += "…"
	}
	return fmt.Sprintf("%q", shown)
}
