package runs

import (
	"sync"

	"tidemill.dev/config"
)

// hashes keeps the hash of the config in force: to work it out costs more than
// all else of a request.
type hashes struct {
	mu   sync.Mutex
	of   *config.Config
	hash string
}

func (h *hashes) get(c *config.Config) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.of != c {
		h.of, h.hash = c, c.Hash()
	}
	return h.hash
}
