package deliver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// pair is a self-signed certificate for loopback in two files; it is its own CA.
type pair struct{ cert, key string }

func newPair(t *testing.T) pair {
	t.Helper()
	dir := t.TempDir()
	p := pair{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	p.renew(t)
	return p
}

func (p pair) renew(t *testing.T) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{p.cert: {Type: "CERTIFICATE", Bytes: cert}, p.key: {Type: "PRIVATE KEY", Bytes: pkcs8}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func (p pair) load(t *testing.T) tls.Certificate {
	t.Helper()
	c, err := tls.LoadX509KeyPair(p.cert, p.key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (p pair) pool(t *testing.T) *x509.CertPool {
	t.Helper()
	text, err := os.ReadFile(p.cert)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return pool
}

// secured is a subscriber over TLS, whose config may be changed.
func secured(t *testing.T, c *tls.Config, h http.HandlerFunc) *httptest.Server {
	server := httptest.NewUnstartedServer(h)
	server.TLS, server.EnableHTTP2 = c, true
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

func TestTLS(t *testing.T) {
	t.Parallel()
	theirs, ours := newPair(t), newPair(t)
	var proto, who string
	server := secured(t, &tls.Config{Certificates: []tls.Certificate{theirs.load(t)}, ClientAuth: tls.RequestClientCert}, func(_ http.ResponseWriter, r *http.Request) {
		proto, who = r.Proto, ""
		for _, c := range r.TLS.PeerCertificates {
			who = c.Subject.CommonName
		}
	})
	trigger := triggerTo(server.URL)
	expect(t, newPoster(t, trigger, subscriberOptions{}).post(t.Context(), posted(), 1), again, "unknown authority", "caFile")

	trigger.To.Credentials.CAFile = theirs.cert
	expect(t, newPoster(t, trigger, subscriberOptions{}).post(t.Context(), posted(), 1), delivered)
	if proto != "HTTP/2.0" || who != "" {
		t.Errorf("%s, from %q", proto, who)
	}
	trigger.To.Credentials.CertFile, trigger.To.Credentials.KeyFile = ours.cert, ours.key
	expect(t, newPoster(t, trigger, subscriberOptions{}).post(t.Context(), posted(), 1), delivered)
	if who != "test" {
		t.Errorf("the certificate of %q was sent", who)
	}
}

// A replaced certificate is used at once, and a certificate that is no longer trusted is
// refused even if a connection is open.
func TestTLSFollowsItsFiles(t *testing.T) {
	t.Parallel()
	theirs, other, ours := newPair(t), newPair(t), newPair(t)
	server := secured(t, &tls.Config{Certificates: []tls.Certificate{theirs.load(t)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ours.pool(t)},
		func(http.ResponseWriter, *http.Request) {})
	trigger := triggerTo(server.URL)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	trigger.To.Credentials.CAFile, trigger.To.Credentials.CertFile, trigger.To.Credentials.KeyFile = ca, ours.cert, ours.key
	s := newPoster(t, trigger, subscriberOptions{})
	trust := func(p pair) {
		t.Helper()
		text, err := os.ReadFile(p.cert)
		if err == nil {
			err = os.WriteFile(ca, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	trust(theirs)
	expect(t, s.post(t.Context(), posted(), 1), delivered)
	first := s.connections.transport
	expect(t, s.post(t.Context(), posted(), 1), delivered)
	if s.connections.transport != first {
		t.Error("there are new connections although no file has changed")
	}
	trust(other)
	expect(t, s.post(t.Context(), posted(), 1), again, "unknown authority")
	trust(theirs)
	expect(t, s.post(t.Context(), posted(), 1), delivered)
	ours.renew(t) // the subscriber does not know the new certificate
	expect(t, s.post(t.Context(), posted(), 1), again, "no answer")
}

func TestTLSIsNotSpokenThere(t *testing.T) {
	t.Parallel()
	url := answering(t, func(http.ResponseWriter, *http.Request) {})
	o := newPoster(t, triggerTo("https"+url[len("http"):]), subscriberOptions{}).post(t.Context(), posted(), 1)
	expect(t, o, again, "may not speak TLS")
}
