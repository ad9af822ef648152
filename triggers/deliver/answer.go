package deliver

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

const (
	maxReply  = 1 << 20 // bytes of an answer with replies, and of its headers
	maxAnswer = 1 << 10 // what is kept of any other answer
	// maxDrained is what is read of the rest, for the connection's sake: beyond
	// it a new one is cheaper.
	maxDrained = 64 << 10
)

// answer is what a subscriber answered, as far as it counts.
type answer struct {
	status int
	header http.Header
	body   []byte
	broken error // the body did not come to its end
	long   bool  // there is more of it than was read
}

// readAnswer reads as much of the body as most, and closes it.
func readAnswer(res *http.Response, most int) answer {
	defer res.Body.Close()
	a := answer{status: res.StatusCode, header: res.Header}
	if res.ContentLength == 0 {
		return a
	}
	a.body, a.broken = readUpTo(res.Body, most+1, res.ContentLength)
	if a.long = len(a.body) > most; a.long {
		a.body = a.body[:most]
	}
	if a.broken == nil && a.long {
		_, a.broken = io.CopyN(io.Discard, res.Body, maxDrained)
		if errors.Is(a.broken, io.EOF) {
			a.broken = nil
		}
	}
	return a
}

// readUpTo believes a Content-Length only as far as to make room for a little:
// a hostile one must not take memory for what never comes.
func readUpTo(r io.Reader, most int, length int64) ([]byte, error) {
	const believed = 8 << 10
	room := 512
	if length > 0 {
		room = int(min(length+1, believed)) // one more, to see the end without growing
	}
	b := make([]byte, 0, min(room, most))
	for len(b) < most {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := r.Read(b[len(b):min(cap(b), most)])
		b = b[:len(b)+n]
		if err == io.EOF {
			return b, nil
		}
		if err != nil {
			return b, err
		}
	}
	return b, nil
}

// shown is the beginning of the answer, as text that a dead letter can carry.
func (a *answer) shown(hidden secrets) string {
	body := a.body[:min(len(a.body), maxAnswer)]
	text := hidden.blot(strings.ToValidUTF8(string(body), "\uFFFD"))
	if a.long || a.broken != nil || len(body) < len(a.body) {
		text = hidden.trim(text)
	}
	if len(text) > maxAnswer {
		text = strings.ToValidUTF8(text[:maxAnswer], "") // of a letter that was cut nothing is left
	}
	return text
}

// complain says why an answer of this status is no delivery.
func complain(a *answer) string {
	said := fmt.Sprintf("answered %d %s", a.status, http.StatusText(a.status))
	said = strings.TrimSpace(said)
	if a.status/100 != 3 {
		return said
	}
	said += ": redirects are not followed, for the event would go to whom the config does not name"
	if to := location(a.header); to != "" {
		return said + ": give " + to + " as the trigger's url, if that is where it shall go"
	}
	return said + ": give the final address as the trigger's url"
}

// location is where a redirect leads, without what may be a secret in it.
func location(h http.Header) string {
	const longest = 200
	to, err := url.Parse(h.Get("Location"))
	if err != nil || to.String() == "" {
		return ""
	}
	to = &url.URL{Scheme: to.Scheme, Host: to.Host, Path: to.Path}
	if text := to.String(); len(text) <= longest {
		return text
	}
	return ""
}

// clip keeps hostile text from filling a dead letter.
func clip(s string) string {
	if len(s) <= maxAnswer {
		return s
	}
	return strings.ToValidUTF8(s[:maxAnswer], "") + "…"
}
