package deliver

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"tidemill.dev/config"
)

const (
	connectWithin = 10 * time.Second
	idleFor       = time.Minute // shorter than most servers and load balancers allow
	pingAfter     = 15 * time.Second
)

// connections belong to one trigger, so that neither its credentials nor its slowness
// affect another.
type connections struct {
	trust trust
	most  int // requests at once

	mu        sync.Mutex
	made      pemFiles
	transport *http.Transport
}

// current returns the transport for the present content of the files. If a file has
// changed, new connections are made, because an open connection may be to a server that
// is no longer trusted.
func (w *connections) current() (*http.Transport, error) {
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

// close closes idle connections.
func (w *connections) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.transport != nil {
		w.transport.CloseIdleConnections()
	}
}

func newTransport(p pemFiles, most int) (*http.Transport, error) {
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
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: connectWithin}, // one dead connection would hold up all requests on it
		MaxIdleConnsPerHost:    max(most, 1),
		IdleConnTimeout:        idleFor,
		MaxResponseHeaderBytes: maxReply,
		DisableCompression:     true, // replies are read as they come, so that the size limit also limits memory
	}, nil
}

// proxy returns the proxy of the environment. Its own error would show the variable,
// which may contain a password.
func proxy(r *http.Request) (*url.URL, error) {
	to, err := http.ProxyFromEnvironment(r)
	if err != nil {
		return nil, errors.New("the proxy that HTTP_PROXY or HTTPS_PROXY names is no URL")
	}
	return to, nil
}

// trust is the files for a subscriber's TLS connections: its CA and our certificate.
// All may be nil.
type trust struct{ ca, cert, key *secretFile }

func newTrust(c config.Credentials) trust {
	return trust{ca: newSecretFile("caFile", c.CAFile), cert: newSecretFile("certFile", c.CertFile), key: newSecretFile("keyFile", c.KeyFile)}
}

// pemFiles is the content of these files.
type pemFiles struct{ ca, cert, key string }

func (t trust) read() (p pemFiles, err error) {
	for _, f := range [...]struct {
		file *secretFile
		to   *string
	}{{t.ca, &p.ca}, {t.cert, &p.cert}, {t.key, &p.key}} {
		if f.file == nil {
			continue
		}
		if *f.to, err = f.file.get(); err != nil {
			return pemFiles{}, err
		}
	}
	return p, nil
}

// config returns Go's default if no file is set.
func (p pemFiles) config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if p.ca != "" {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM([]byte(p.ca)) {
			return nil, errors.New("read the trigger's caFile: it holds no certificate in PEM: give the CA that signed the subscriber's certificate")
		}
	}
	if p.cert != "" {
		pair, err := tls.X509KeyPair([]byte(p.cert), []byte(p.key))
		if err != nil {
			return nil, fmt.Errorf("read the trigger's certFile and keyFile: %w: give a certificate and its key in PEM", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
