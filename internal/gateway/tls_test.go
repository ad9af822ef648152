package gateway

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tidemill.dev/api"
)

// pairFiles are the files of a certificate and its key.
type pairFiles struct{ cert, key string }

// write makes a pair with a serial number, for localhost, that expires at that time.
func (f pairFiles) write(t *testing.T, serial int64, until time.Time) *x509.CertPool {
	t.Helper()
	key := must1(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotBefore: until.Add(-24 * time.Hour), NotAfter: until,
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der := must1(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
	f.put(t, f.cert, "CERTIFICATE", der)
	f.put(t, f.key, "PRIVATE KEY", must1(x509.MarshalPKCS8PrivateKey(key))(t))
	pool := x509.NewCertPool()
	pool.AddCert(must1(x509.ParseCertificate(der))(t))
	return pool
}

func (f pairFiles) put(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

func newPairFiles(t *testing.T) pairFiles {
	dir := t.TempDir()
	return pairFiles{filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	files := newPairFiles(t)
	pool := files.write(t, 1, time.Now().Add(time.Hour))
	w := newWorld(t, func(o *Options) { o.CertFile, o.KeyFile = files.cert, files.key })
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}
	client := &http.Client{Transport: transport}
	defer transport.CloseIdleConnections()
	req := must1(http.NewRequest(http.MethodPost, "https://"+w.gateway.Addr()+"/events", strings.NewReader("hi")))(t)
	for i, h := 0, eventHeaders("1"); i < len(h); i += 2 {
		req.Header.Set(h[i], h[i+1])
	}
	r := read(t, must1(client.Do(req))(t))
	if r.StatusCode != http.StatusAccepted || r.ProtoMajor != 2 {
		t.Errorf("%s %d %s", r.Proto, r.StatusCode, r.body)
	}
	// A late frame of the client, such as the acknowledgement of the settings, counts as the begin of a request.
	w.waitUntil("the connection is known to be idle", func() bool {
		if w.gateway.server.Resting() == 1 {
			return true
		}
		read(t, must1(client.Get("https://"+w.gateway.Addr()+"/healthz"))(t))
		return false
	})
	old := &tls.Config{RootCAs: pool, MaxVersion: tls.VersionTLS11}
	if c, err := tls.Dial("tcp", w.gateway.Addr(), old); err == nil {
		t.Error("TLS 1.1 was spoken", c.Close())
	}
	if answer := string(w.sendRaw("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")); !strings.HasPrefix(answer, "HTTP/1.0 400") {
		t.Errorf("plain HTTP was answered %q", answer)
	}
}

func TestACertificateIsReadAgain(t *testing.T) {
	t.Parallel()
	files := newPairFiles(t)
	now := time.Now()
	files.write(t, 1, now.Add(time.Hour))
	c := must1(openCertificate(files.cert, files.key))(t)
	see := func(serial int64, status api.Status, part string) {
		t.Helper()
		now = now.Add(2 * lookEvery)
		pair, _ := c.reload(now)
		check := c.check(now)
		if pair.Leaf.SerialNumber.Int64() != serial || check.Status != status || !strings.Contains(check.Detail, part) {
			t.Errorf("serial %d, %+v; want %d, %s", pair.Leaf.SerialNumber, check, serial, status)
		}
	}
	see(1, api.OK, "until")
	files.write(t, 2, now.Add(time.Hour))
	if pair, _ := c.reload(now); pair.Leaf.SerialNumber.Int64() != 1 {
		t.Error("it looks with every connection")
	}
	see(2, api.OK, "until")
	files.put(t, files.key, "PRIVATE KEY", []byte("torn"))
	see(2, api.Degraded, files.key)
	if err := os.Remove(files.cert); err != nil {
		t.Fatal(err)
	}
	see(2, api.Degraded, files.cert)
	files.write(t, 3, now.Add(time.Minute))
	see(3, api.OK, "until")
	now = now.Add(time.Hour)
	see(3, api.Degraded, "renew it")
}

func TestACertificateThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	files := newPairFiles(t)
	for _, o := range []Options{{CertFile: files.cert}, {KeyFile: files.key}, {CertFile: files.cert, KeyFile: files.key}} {
		o.Listen = "127.0.0.1:0"
		if _, err := Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("opened, or %v", err)
		}
	}
}
