package transfer

import (
	"net/http"
	"sync"
)

// Client speaks to the routes below a base: Base+"/objects/missing",
// Base+"/objects" and Base+"/object?digest=". A zero field is its default.
type Client struct {
	Base    string
	HTTP    *http.Client
	Sign    func(*http.Request) // adds the credential; not to requests that go elsewhere
	Cache   string              // a folder of files that have been got; empty is none
	Ways    int                 // requests at once; 4
	Replace bool                // Get writes over what is there and differs; else that is an error
	Again   func(error)         // told of a failure that is tried again; by several goroutines at once
	Moved   Count               // of objects that went over the wire, not of those that were there
}

// Count is told what has been done since it was told last: files and bytes. It
// is called by one goroutine at a time.
type Count func(files int, bytes int64)

const defaultWays = 4

func (c *Client) ways() int {
	if c.Ways > 0 {
		return c.Ways
	}
	return defaultWays
}

// staying is the client that follows no redirect by itself: it would take the
// credential along.
func (c *Client) staying() *http.Client {
	h := http.Client{}
	if c.HTTP != nil {
		h = *c.HTTP
	}
	h.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &h
}

// tally has one goroutine at a time tell a Count.
type tally struct {
	mu    sync.Mutex
	count Count
}

func (t *tally) add(files int, bytes int64) {
	if t.count == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count(files, bytes)
}
