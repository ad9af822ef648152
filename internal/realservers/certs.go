package realservers

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

const (
	caPEM     = "ca.pem"     // what brokers trust
	brokerPEM = "broker.pem" // a broker's key and certificate
	clientPEM = "client.pem" // a client's, for kcat
)

// certs are made anew for each start and trusted by nobody else.
type certs struct {
	ca     *x509.Certificate
	key    crypto.Signer
	holder tls.Certificate // the client's
	host   net.IP          // that brokers listen on
}

func newCerts(dir, host string) (*certs, error) {
	c := &certs{host: net.ParseIP(host)}
	var err error
	if c.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, fmt.Errorf("make the CA's key: %w", err)
	}
	of := template("tidemill test CA")
	of.IsCA, of.BasicConstraintsValid, of.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, of, of, c.key.Public(), c.key)
	if err != nil {
		return nil, fmt.Errorf("make the CA: %w", err)
	}
	if c.ca, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("read the CA: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, caPEM), certificate(der), 0o600); err != nil {
		return nil, fmt.Errorf("write the CA: %w", err)
	}
	if _, err := c.issue(dir, brokerPEM); err != nil {
		return nil, err
	}
	c.holder, err = c.issue(dir, clientPEM)
	return c, err
}

// issue writes a key and its certificate into one file.
func (c *certs) issue(dir, file string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make the key of %s: %w", file, err)
	}
	of := template(file)
	of.IPAddresses = []net.IP{c.host}
	der, err := x509.CreateCertificate(rand.Reader, of, c.ca, key.Public(), c.key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make the certificate of %s: %w", file, err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("encode the key of %s: %w", file, err)
	}
	both := append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), certificate(der)...)
	if err := os.WriteFile(filepath.Join(dir, file), both, 0o600); err != nil {
		return tls.Certificate{}, fmt.Errorf("write %s: %w", file, err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

func (c *certs) client() *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(c.ca)
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{c.holder}}
}

func template(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

func certificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
