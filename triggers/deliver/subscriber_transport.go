package deliver

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"
)

const (
	connectWithin = 10 * time.Second
	idleFor       = time.Minute // shorter than what most servers and balancers allow
	pingAfter     = 15 * time.Second
)

// wires are a subscriber's connections. They are of one trigger alone, so that
// neither its credentials nor its slowness reach another's.
type wires struct {
	trust trust
	most  int // requests at once

	mu        sync.Mutex
	made      pems
	transport *http.Transport
}

// current is the transport for the files as they are now. When one of them has
// changed the connections are made anew: what is no longer trusted shall not
// be spoken to because a connection is still open.
func (w *wires) current() (*http.Transport, error) {
	p, err := w.trust.read()
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.transport != nil && w.made == p {
		return w.transport, nil
	}
	fresh, err := newTransport(p, w.most)
	if err != nil {
		return nil, err
	}
	if w.transport != nil {
		w.transport.CloseIdleConnections()
	}
	w.transport, w.made = fresh, p
	return fresh, nil
}

// close lets the connections go that are not in use.
func (w *wires) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.transport != nil {
		w.transport.CloseIdleConnections()
	}
}

func newTransport(p pems, most int) (*http.Transport, error) {
	secure, err := p.config()
	if err != nil {
		return nil, err
	}
	return &http.Transport{
		Proxy:                  proxy,
		DialContext:            (&net.Dialer{Timeout: connectWithin, KeepAlive: pingAfter}).DialContext,
		TLSClientConfig:        secure,
		TLSHandshakeTimeout:    connectWithin,
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: connectWithin}, // one dead connection would hold up all that share it
		MaxIdleConnsPerHost:    max(most, 1),
		IdleConnTimeout:        idleFor,
		MaxResponseHeaderBytes: maxReply,
		DisableCompression:     true, // a reply is read as it comes, so that its bound is one of memory too
	}, nil
}

// proxy is what the environment names. Its own error would show the variable,
// in which there may be a password.
func proxy(r *http.Request) (*url.URL, error) {
	to, err := http.ProxyFromEnvironment(r)
	if err != nil {
		return nil, errors.New("the proxy that HTTP_PROXY or HTTPS_PROXY names is no URL")
	}
	return to, nil
}
