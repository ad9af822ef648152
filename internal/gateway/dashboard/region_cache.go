package dashboard

import (
	"compress/gzip"
	"net/http"
	"strings"
	"sync"
	"time"
)

// headerVersions has the versions of a region's topics that the live connection has reported. Tabs that ask for the same
// region of the same page with the same versions get the same answer, so fifty tabs cost as much as one.
const headerVersions = "Tidemill-Versions"

const (
	regionLives = 5 * time.Second // a region also has ages, which no topic reports
	mostRegions = 200
)

// answer is HTML as it is sent. It never changes.
type answer struct {
	status        int
	plain, packed []byte // packed is nil if the text is short
}

func newAnswer(status int, body []byte) *answer {
	a := &answer{status: status, plain: body}
	if len(body) >= gzipFrom {
		a.packed = zip(body, gzip.BestSpeed)
	}
	return a
}

// send sends the answer. No browser stores it, because it has what only its caller may see.
func (a *answer) send(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	body := a.plain
	if a.packed != nil && acceptsGzip(r) {
		h.Set("Content-Encoding", "gzip")
		body = a.packed
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(body) // fails only if the caller has disconnected
}

// regionCache keeps the newest regions. A region is rendered once while others wait for it.
type regionCache struct {
	mu  sync.Mutex
	all map[string]*cachedRegion
}

// cachedRegion is a region that is rendered, or is being rendered. Its answer is set before done is closed.
type cachedRegion struct {
	done   chan struct{}
	until  time.Time
	answer *answer
}

// keyOfRegion returns the key of a region in the cache: all that its answer depends on. Empty means that it must not be
// kept.
func keyOfRegion(r *http.Request, name string) string {
	versions := r.Header.Get(headerVersions)
	if versions == "" || r.Method != http.MethodGet {
		return ""
	}
	return strings.Join([]string{r.Header.Get("Authorization"), r.URL.RequestURI(), name, versions}, "\n")
}

// get returns a region from the cache, or renders it. Failed answers are not kept.
func (c *regionCache) get(r *http.Request, key string, now time.Time, render func() *answer) *answer {
	if key == "" {
		return render()
	}
	c.mu.Lock()
	one := c.all[key]
	if one != nil && now.Before(one.until) {
		c.mu.Unlock()
		select {
		case <-one.done:
		case <-r.Context().Done():
		}
		if one.isGood() {
			return one.answer
		}
		return render()
	}
	one = &cachedRegion{done: make(chan struct{}), until: now.Add(regionLives)}
	c.put(key, one, now)
	c.mu.Unlock()
	defer close(one.done) // also after a panic, or the others would wait for ever
	one.answer = render()
	return one.answer
}

// isGood reports whether an answer is there and may be given to others.
func (c *cachedRegion) isGood() bool {
	select {
	case <-c.done:
		return c.answer != nil && c.answer.status == http.StatusOK
	default:
		return false
	}
}

// put adds a region, and removes all that are too old. The caller holds the lock.
func (c *regionCache) put(key string, one *cachedRegion, now time.Time) {
	if c.all == nil || len(c.all) >= mostRegions {
		old := c.all
		c.all = map[string]*cachedRegion{}
		for k, v := range old {
			if now.Before(v.until) && len(c.all) < mostRegions/2 {
				c.all[k] = v
			}
		}
	}
	c.all[key] = one
}
