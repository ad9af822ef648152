package access

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// keysRest is how long the issuer is not asked for its keys again.
const keysRest = 10 * time.Second

// keyring stands between the library and the issuer's keys. The library asks
// for them whenever it meets a token that none of those it has signed, as the
// standard wants it; so anyone could have us ask the issuer as often as they
// like, with tokens of their own making. Asked again soon, the keyring gives
// the document it has, and the token is refused by that. An issuer that was
// away is let alone for longer and longer.
type keyring struct {
	next http.RoundTripper
	now  func() time.Time
	away pause

	mu   sync.Mutex
	body []byte
	at   time.Time
}

// RoundTrip answers the library's question for the keys.
func (k *keyring) RoundTrip(r *http.Request) (*http.Response, error) {
	k.mu.Lock()
	body, at := k.body, k.at
	k.mu.Unlock()
	now := k.now()
	if err := k.away.fault(now); err != nil {
		return nil, err
	}
	if body != nil && now.Sub(at) < keysRest {
		return answer(r, body), nil
	}
	body, err := k.ask(r)
	k.away.note(now, err)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	k.body, k.at = body, now
	k.mu.Unlock()
	return answer(r, body), nil
}

func (k *keyring) ask(r *http.Request) ([]byte, error) {
	resp, err := k.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(resp.Body) // bytes in memory, which a courier has brought
}
