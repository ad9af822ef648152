package dashboard

import (
	"compress/gzip"
	"net/http"
	"strings"
	"sync"
	"time"
)

// headerVersions has the versions of a region's topics that the live connection has reported. Tabs that ask for the same
// region of the same page share its answers, so fifty tabs cost as much as one.
const headerVersions = "Tidemill-Versions"

// headerOlder marks an answer that was rendered for other versions than the asked ones, a moment ago. The tab asks again a
// second later.
const headerOlder = "Tidemill-Older"

const (
	regionLives = 5 * time.Second        // a region also has ages, which no topic reports
	regionEvery = 900 * time.Millisecond // least time between two renderings; a tab alone asks once a second
	regionCosts = 200                    // a region is rendered during at most one of so many parts of the time
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

// cachedRegion is a region that is rendered, or is being rendered. Its answer and the time that it took are set before
// done is closed.
type cachedRegion struct {
	done     chan struct{}
	began    time.Time // time at which its rendering began
	took     time.Duration
	versions string // versions that it was rendered for; it may also have newer changes
	answer   *answer
}

// serves reports whether a tab with some versions may get this region.
func (c *cachedRegion) serves(versions string, now time.Time) bool {
	limit := regionLives
	if c.versions != versions && c.isGood() { // the others wait for the rendering that is under way
		limit = min(max(regionEvery, c.took*regionCosts), regionLives)
	}
	return now.Sub(c.began) < limit
}

// keyOfRegion returns the key of a region in the cache: all that its answer depends on, besides the versions. Empty means
// that it must not be kept.
func keyOfRegion(r *http.Request, name string) string {
	if r.Header.Get(headerVersions) == "" || r.Method != http.MethodGet {
		return ""
	}
	return strings.Join([]string{r.Header.Get("Authorization"), r.URL.RequestURI(), name}, "\n")
}

// get returns a region from the cache, or renders it. It reports whether the region may lack changes that the tab knows
// of. Failed answers are not kept.
func (c *regionCache) get(r *http.Request, key string, now time.Time, render func() *answer) (a *answer, older bool) {
	if key == "" {
		return render(), false
	}
	versions := r.Header.Get(headerVersions)
	c.mu.Lock()
	one := c.all[key]
	if one != nil && one.serves(versions, now) {
		c.mu.Unlock()
		select {
		case <-one.done:
		case <-r.Context().Done():
		}
		if one.isGood() {
			return one.answer, one.versions != versions
		}
		return render(), false
	}
	one = &cachedRegion{done: make(chan struct{}), began: now, versions: versions}
	c.put(key, one, now)
	c.mu.Unlock()
	defer close(one.done) // also after a panic, or the others would wait for ever
	began := time.Now()
	one.answer = render()
	one.took = time.Since(began)
	return one.answer, false
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
			if now.Sub(v.began) < regionLives && len(c.all) < mostRegions/2 {
				c.all[k] = v
			}
		}
	}
	c.all[key] = one
}
