// Package node is the configuration of a one-node Kubernetes: its keys, and its components'
// arguments and files. It starts nothing.
package node

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// authority signs all certificates of a cluster.
type authority struct {
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
	pem         []byte
}

// life is the validity of certificates, which is longer than any sandbox's life.
const life = 30 * 24 * time.Hour

func newAuthority(now time.Time) (*authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	template := certificate(pkix.Name{CommonName: "tidemill-cluster"}, now)
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage |= x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign the authority's certificate: %w", err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read the authority's certificate: %w", err)
	}
	return &authority{key: key, certificate: parsed, pem: block("CERTIFICATE", der)}, nil
}

// identity is a certificate and its key, both as PEM.
type identity struct{ certificate, key []byte }

// client makes a certificate for a user in the groups.
func (a *authority) client(now time.Time, user string, groups ...string) (identity, error) {
	template := certificate(pkix.Name{CommonName: user, Organization: groups}, now)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.sign(template)
}

// server makes a certificate for a server with these addresses and names.
func (a *authority) server(now time.Time, addresses []net.IP, names ...string) (identity, error) {
	template := certificate(pkix.Name{CommonName: names[0]}, now)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.IPAddresses, template.DNSNames = addresses, names
	return a.sign(template)
}

func (a *authority) sign(template *x509.Certificate) (identity, error) {
	key, err := newKey()
	if err != nil {
		return identity{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return identity{}, fmt.Errorf("sign a certificate for %s: %w", template.Subject.CommonName, err)
	}
	private, err := keyPEM(key)
	return identity{certificate: block("CERTIFICATE", der), key: private}, err
}

func certificate(subject pkix.Name, now time.Time) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		serial = big.NewInt(now.UnixNano()) // rand.Reader does not fail; serials need only differ
	}
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    now.Add(-time.Hour), // in case a clock is set back
		NotAfter:     now.Add(life),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return key, nil
}

// keyPEM encodes a key in a form that Kubernetes also accepts as the key of service accounts.
func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("write a key: %w", err)
	}
	return block("EC PRIVATE KEY", der), nil
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
