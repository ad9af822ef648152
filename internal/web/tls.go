package web

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"tidemill.dev/internal/api"
)

// certificate is the pair of files that the door shows. They are looked at when
// somebody comes, at most once a second: that finds a ConfigMap's swapped link
// and an editor's renamed file alike. A pair that does not fit together, for one
// of its files is still being written perhaps, leaves the one before in use.
type certificate struct {
	certFile, keyFile string

	mu        sync.Mutex
	looked    time.Time
	cert, key []byte // as last read
	pair      *tls.Certificate
	fault     error // why what is there now is not in use
}

const lookEvery = time.Second

func openCertificate(certFile, keyFile string) (*certificate, error) {
	if certFile == "" || keyFile == "" {
		return nil, errors.New("serve HTTPS: a certificate and its key are needed, and one of the files is not named")
	}
	c := &certificate{certFile: certFile, keyFile: keyFile}
	if c.look(time.Now()); c.fault != nil {
		return nil, c.fault
	}
	return c, nil
}

func (c *certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			pair, _ := c.look(time.Now())
			return pair, nil
		},
	}
}

// look reads the files again, unless that was a moment ago.
func (c *certificate) look(now time.Time) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.looked.IsZero() && now.Sub(c.looked) < lookEvery {
		return c.pair, c.fault
	}
	c.looked = now
	cert, err := os.ReadFile(c.certFile)
	key, keyErr := os.ReadFile(c.keyFile)
	if err = errors.Join(err, keyErr); err != nil {
		c.fault = fmt.Errorf("read the door's certificate: %w", err)
		return c.pair, c.fault
	}
	if c.pair != nil && bytes.Equal(cert, c.cert) && bytes.Equal(key, c.key) {
		c.fault = nil
		return c.pair, nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		c.fault = fmt.Errorf("load the door's certificate %s with its key %s: %w", c.certFile, c.keyFile, err)
		return c.pair, c.fault
	}
	c.cert, c.key, c.pair, c.fault = cert, key, &pair, nil
	return c.pair, nil
}

// check is the certificate's part of readiness.
func (c *certificate) check(now time.Time) api.Check {
	pair, fault := c.look(now)
	until := pair.Leaf.NotAfter
	switch {
	case now.After(until):
		return api.Check{Name: "door", Status: api.Degraded, Detail: fmt.Sprintf("%s expired on %s: renew it", c.certFile, until.Format(time.RFC3339))}
	case fault != nil:
		return api.Check{Name: "door", Status: api.Degraded, Detail: fmt.Sprintf("the certificate before stays in use: %v", fault)}
	}
	return api.Check{Name: "door", Status: api.OK, Detail: "certificate until " + until.Format(time.RFC3339)}
}
