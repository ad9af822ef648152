package deliver

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"tidemill.dev/config"
)

// trust is the files that say whom a subscriber's connections trust, and who
// we are to it. All may be nil.
type trust struct{ ca, cert, key *secretFile }

func newTrust(c config.Credentials) trust {
	return trust{ca: newSecretFile("caFile", c.CAFile), cert: newSecretFile("certFile", c.CertFile), key: newSecretFile("keyFile", c.KeyFile)}
}

// pems is what the files hold.
type pems struct{ ca, cert, key string }

func (t trust) read() (p pems, err error) {
	for _, f := range [...]struct {
		file *secretFile
		to   *string
	}{{t.ca, &p.ca}, {t.cert, &p.cert}, {t.key, &p.key}} {
		if f.file == nil {
			continue
		}
		if *f.to, err = f.file.get(); err != nil {
			return pems{}, err
		}
	}
	return p, nil
}

// config is Go's own where nothing is said.
func (p pems) config() (*tls.Config, error) {
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
